"""The shape of the code: imports point backwards along the flow, and quick things stay quick."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from samepath.cli.main import cli

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "samepath"
FLOW = [
    {"console", "errors", "keys", "threads", "version", "builtin"},
    {"faults"},
    {"files", "owners"},
    {"data"},
    {"init"},
    {"plan"},
    {"recipe"},
    {"adapters"},
    {"lightning", "huggingface", "monai"},
    {"strategies"},
    {"engine"},
    {"output", "notebook"},
    {"timing"},
    {"study"},
    {"insight"},
    {"curation"},
    {"report"},
    {"web"},
    {"recipes"},
    {"cli"},
]
STAGE = {name: number for number, names in enumerate(FLOW) for name in names}
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
ENGINE_FLOW = [
    {"noise_scale", "faults"},
    {"comm"},
    {"checks"},
    {"step"},
    {"state"},
    {"elastic"},
    {"launch"},
    {"run"},
    {"server"},
    {"worker", "train"},
    {"verify"},
]
ENGINE_STAGE = {name: number for number, names in enumerate(ENGINE_FLOW) for name in names}

MOST_FILES = 16
"""Of a folder, beside its __init__: about a dozen; more is a sign of a missing subfolder."""


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def imported(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Full names of what import statements name: modules, or things in them."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def everywhere(module: str) -> set[str]:
    return set(imported(ast.walk(tree(module))))


def at_import(module: str) -> set[str]:
    """Only what runs when the module is imported."""

    def statements(nodes: list[ast.stmt]) -> Iterator[ast.AST]:
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            yield node
            for part in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, part, []))

    return set(imported(statements(tree(module).body)))


def stage_of(name: str) -> str | None:
    """errors, data, engine, ...: the part of samepath that a full name is in."""
    parts = name.split(".")
    return parts[1] if parts[0] == "samepath" and len(parts) > 1 else None


def test_there_is_something_to_look_at() -> None:
    assert len(MODULES) > 30
    assert "samepath.engine.run.trainer.Trainer" not in everywhere("samepath.plan.tree")
    assert "samepath.plan.Plan" in everywhere("samepath.engine.run.trainer")


@pytest.mark.parametrize(
    "module", [m for m in MODULES if not m.endswith("__init__") or m.count(".") > 1]
)
def test_imports_point_backwards(module: str) -> None:
    mine = stage_of(module)
    assert mine in STAGE, f"{module} has no place in the flow: add it to FLOW"
    for name in everywhere(module):
        other = stage_of(name)
        if other is not None:
            assert other in STAGE, f"{module} imports {name} through the package itself"
            assert STAGE[other] <= STAGE[mine], f"{module} imports {name}"


def test_planning_is_pure() -> None:
    allowed = {"keys", "errors", "plan"}
    for module in MODULES:
        if stage_of(module) in {"plan", "keys", "errors", "version", "builtin"}:
            for name in everywhere(module):
                assert name.split(".")[0] != "torch", f"{module} imports {name}"
                assert stage_of(name) in {None, *allowed}, f"{module} imports {name}"


def test_torch_distributed_is_imported_in_three_rooms() -> None:
    found = {m for m in MODULES for name in everywhere(m) if name.startswith("torch.distributed")}
    assert {m.split(".")[2] for m in found} == {"comm", "launch", "elastic"}
    for module in MODULES:
        if module not in found:
            assert "torch.distributed" not in {
                ast.unparse(node)
                for node in ast.walk(tree(module))
                if isinstance(node, ast.Attribute)
            }, module


def test_no_cycles_between_modules() -> None:
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        names = at_import(module)
        graph[module] = {
            other
            for name in names
            for other in (name, name.rpartition(".")[0])
            if other in MODULES and other != module
        }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("samepath.engine.")])
def test_imports_point_backwards_in_the_engine(module: str) -> None:
    mine = ENGINE_STAGE.get(module.split(".")[2])
    for name in everywhere(module):
        if name.startswith("samepath.engine.") and mine is not None:
            assert ENGINE_STAGE[name.split(".")[2]] <= mine, f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES)
def test_modules_say_what_they_are(module: str) -> None:
    assert ast.get_docstring(tree(module))


def test_folders_are_small() -> None:
    """The command line is one file a command, and so apart."""
    paths = [path for path in MODULES.values() if path.name != "__init__.py"]
    files = Counter(path.parent for path in paths if path.parent.name != "cli")
    assert {str(f): n for f, n in files.items() if n > MOST_FILES} == {}


def test_a_public_class_has_one_meaning() -> None:
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        for node in tree(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    "run",
    [
        "import samepath; samepath.__version__",
        "from samepath.cli import main; main(['--help'])",
        "from samepath.cli import main; main(['train', '--help'])",
        "from samepath.cli import main; main(['recipes'])",
        "from samepath.cli import main; main(['--version'])",
        "from samepath.timing.links import find_cluster; find_cluster('summit')",
        "import samepath.timing.model, samepath.insight.simulate, samepath.insight.folder",
    ],
)
def test_quick_things_do_not_load_torch(run: str) -> None:
    code = (
        "import atexit, sys\n"
        "heavy = ('torch', 'sklearn', 'matplotlib', 'plotly', 'rich')\n"
        "look = lambda: print([m for m in heavy if m in sys.modules], file=sys.stderr)\n"
        f"atexit.register(look)\n{run}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stderr == "[]\n"


def test_an_own_loop_does_not_load_crash_recovery() -> None:
    code = (
        "import sys, samepath\n"
        "samepath.start().close()\n"
        "rooms = ('elastic', 'launch', 'server', 'verify')\n"
        "names = tuple(f'samepath.engine.{room}' for room in rooms)\n"
        "print([m for m in sys.modules if m.startswith(names)])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "[]\n"


def commands(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", found) for inner, found in commands(command))
        else:
            yield name, command


@pytest.mark.parametrize("name", dict(commands(cli)))
def test_every_command_shows_an_example(name: str) -> None:
    command = dict(commands(cli))[name]
    assert command.help
    text = command.get_help(click.Context(command, info_name=f"samepath {name}"))
    assert "Example" in text
    assert f"samepath {name}" in text.split("Example", 1)[1], "the example is of this command"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"--{parameter.name} says what it is for"
