"""Documentation that runs, and that says what the code says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from commands import samepath

from samepath.recipe import Recipe
from samepath.strategies import BUILT_IN, find_strategy
from write_bring_docs import run as run_script
from write_insight_docs import render as render_advice
from write_nodules_docs import render as render_nodules
from write_promise_docs import render as render_promise
from write_readme import PAGES as FILLED
from write_readme import diff
from write_readme import render as render_readme
from write_reliability_docs import render as render_reliability

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "parity" / "tiny_recipe.py"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OWN_LOOP = "own-loop.md-0"
"""A block with a test of its own."""


def python_blocks() -> list[tuple[str, str]]:
    return [
        (f"{page.name}-{number}", block)
        for page in PAGES
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
    ]


EXAMPLES = {path.read_text() for path in (ROOT / "examples" / "bring").glob("*.py")}
"""test_bring runs these."""
BLOCKS = [
    (name, code) for name, code in python_blocks() if name != OWN_LOOP and code not in EXAMPLES
]


@pytest.mark.parametrize(("name", "code"), BLOCKS, ids=lambda value: value[:24])
def test_python_blocks_run(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recipes are trained for two steps on two workers, with the strategy they register if any;
    strategies are trained with for eight; scripts are run as they are."""
    file = tmp_path / "block.py"
    file.write_text(code)
    monkeypatch.chdir(tmp_path)
    train = ("train", "-n", "2", "--out", tmp_path / "run")
    if "def recipe()" in code:
        named = re.findall(r'register_strategy\("([\w-]+)"', code)
        more = [word for each in named for word in ("--strategy", each, "--as-workers", "4")]
        samepath(*train, file, "--steps", "2", *more)
    elif "def strategy(" in code:
        samepath(*train, TINY, "--steps", "8", "--strategy", file, "--as-workers", "4")
    else:
        done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


def test_the_own_loop_goes_on_where_it_was(tmp_path: Path) -> None:
    """The page's script runs as it is; stopped after its first epoch, it goes on; after its last,
    it ends as it did. Epochs are printed by the start that trained them."""
    (code,) = (code for name, code in python_blocks() if name == OWN_LOOP)
    assert "range(3)" in code

    def run(folder: str, num_epochs: int) -> tuple[list[str], str]:
        (tmp_path / folder).mkdir(exist_ok=True)
        file = tmp_path / folder / "block.py"
        file.write_text(code.replace("range(3)", f"range({num_epochs})"))
        done = subprocess.run(
            [sys.executable, file], cwd=file.parent, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        *epochs, digest = done.stdout.splitlines()
        return [line.split()[0] for line in epochs], digest

    epochs, straight = run("straight", 3)
    assert epochs == ["0", "1", "2"]
    assert straight.startswith("digest ")
    assert run("stopped", 1)[0] == ["0"]
    assert run("stopped", 3) == (["1", "2"], straight)
    assert run("stopped", 3) == ([], straight), "there was nothing left to train"


def test_early_stopping_goes_on_where_it_was(tmp_path: Path) -> None:
    """The page's script, stopped before it has stopped by itself, goes on at another worker count;
    started once more, it trains nothing."""
    (code,) = (code for name, code in python_blocks() if name == "own-loop.md-1")
    assert "range(40)" in code

    def trained(folder: str, num_workers: int, num_epochs: int) -> tuple[list[int], list[str]]:
        (tmp_path / folder).mkdir(exist_ok=True)
        file = tmp_path / folder / "block.py"
        file.write_text(code.replace("range(40)", f"range({num_epochs})"))
        ran = run_script(file, num_workers, inside=file.parent)
        return [int(line.split()[0]) for line in ran.output.splitlines()[:-1]], ran.digests

    epochs, straight = trained("straight", 1, 40)
    assert epochs == list(range(len(epochs)))
    assert 3 < len(epochs) < 40
    assert trained("stopped", 2, 2)[0] == [0, 1]
    assert trained("stopped", 1, 40) == (epochs[2:], straight)
    assert trained("stopped", 3, 40) == ([], straight)


def test_commands_page_is_up_to_date() -> None:
    # in a process of its own: click remembers the help option of a command's first context
    script = ROOT / "scripts" / "write_command_docs.py"
    run = subprocess.run(
        [sys.executable, script, "--print"], capture_output=True, text=True, check=True
    )
    assert (ROOT / "docs" / "commands.md").read_text() == run.stdout, (
        "run: python scripts/write_command_docs.py"
    )


def test_every_recipe_field_is_documented() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    missing = [field.name for field in fields(Recipe) if f"`{field.name}`" not in page]
    assert not missing


def _said(parameter: str, default: object) -> str:
    """How the table of strategies writes a parameter."""
    if isinstance(default, tuple):
        return f"`{parameter}={'+'.join(map(str, default))}`"
    return f"`{parameter}`" if default is None else f"`{parameter}={default:g}`"


def test_every_strategy_and_its_parameters_are_documented() -> None:
    page = (ROOT / "docs" / "strategies.md").read_text()
    table = page.split("## All of them")[1].split("Parameters go after")[0]
    rows = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}
    assert rows.keys() == BUILT_IN.keys()
    for name, row in rows.items():
        for parameter, default in vars(find_strategy(name).function).items():
            assert _said(parameter, default) in row, f"{name}: {parameter}"


def test_links_and_named_files_exist() -> None:
    for page in [*PAGES, *sorted((ROOT / "docs" / "bring").glob("*.md"))]:
        text = page.read_text()
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
        for path in re.findall(
            r"`((?:tests|src|benchmarks|examples|scripts|docs)/[\w./-]+)`", text
        ):
            assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_the_index_of_what_people_bring_names_every_page() -> None:
    folder = ROOT / "docs" / "bring"
    linked = set(re.findall(r"\]\(([\w-]+\.md)", (folder / "README.md").read_text()))
    assert {page.name for page in folder.glob("*.md")} - {"README.md"} == linked


def test_the_readme_is_short_and_names_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert "make demo" in text
    assert "make test" in text


@pytest.mark.parametrize("page", FILLED)
def test_pages_show_the_examples_and_the_measured_numbers(page: str) -> None:
    text = (ROOT / page).read_text()
    assert text == render_readme(text), "run: python scripts/write_readme.py"


def test_pages_stand_where_a_benchmark_was_stopped_half_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ratio = {"2 workers against DDP": {"median": 1.5, "low": 1.0, "high": 2.0}}
    found = {"digits": {"ratios": ratio, "peak_mb": {"ratio": 1.0}}}
    half = {"throughput": found, "bytes": {"2": {"DDP": 1.0, "new": 0.5}, "3": {"DDP": 1.25}}}
    monkeypatch.setattr("write_readme._found", lambda name: half if name == "engine" else {})
    pages = {page: render_readme((ROOT / page).read_text()) for page in FILLED}
    assert "| throughput | digits, 8 grains |\n" in pages["README.md"]
    assert "| new | 0.50 |  |\n" in pages["docs/speed.md"]
    assert "| at least 1.05 | 1.50 |  |\n" in pages["docs/speed.md"]
    assert "not measured" in pages["docs/speed.md"]


def test_own_loop_differs_in_at_most_ten_lines() -> None:
    added = [line for line in diff().splitlines() if line.startswith("+")]
    assert 0 < len(added) <= 10


def test_the_advice_shows_what_benchmarks_found() -> None:
    text = (ROOT / "docs" / "advise.md").read_text()
    assert text == render_advice(text), "run: python scripts/write_insight_docs.py"


def test_the_nodules_show_what_benchmarks_found() -> None:
    text = (ROOT / "docs" / "nodules.md").read_text()
    assert text == render_nodules(text), "run: python scripts/write_nodules_docs.py"


def test_the_promise_lists_every_construct_that_is_tested() -> None:
    text = (ROOT / "docs" / "promise.md").read_text()
    assert text == render_promise(text), "run: python scripts/write_promise_docs.py"


def test_reliability_shows_what_benchmarks_found() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    assert text == render_reliability(text), "run: python scripts/write_reliability_docs.py"


def test_every_function_of_the_architecture_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::([\w.]+)`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(named) > 30
    for file, name in named:
        scope: list[ast.stmt] = ast.parse((ROOT / "src" / "samepath" / file).read_text()).body
        for part in name.split("."):
            kinds = (ast.FunctionDef, ast.ClassDef)
            found = next((n for n in scope if isinstance(n, kinds) and n.name == part), None)
            assert found is not None, f"{file} has no {name}"
            scope = found.body
