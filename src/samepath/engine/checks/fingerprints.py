"""Fingerprints of what the bits of a run depend on and no option names: its data, the user's own
modules, the machine, and the libraries that compute.

In: a recipe that was found, this machine, and what an earlier start wrote. Out: fingerprints for
run.json, or a UserError that names what has changed. Guaranteed: what an older samepath did not
write is not compared.

The user's own modules are those that a recipe has imported, by their path relative to the recipe's
folder, or by the module's name where it lies elsewhere. Not among them: the recipe's file (which is
compared by itself), samepath, the standard library, installed packages and what they generate, and
compiled code, which differs from one build to the next. The machine counts because kernels choose
by instruction set and by the sizes of caches.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import samepath
from samepath.builtin import BUILT_IN
from samepath.data.content import content_of, held_content, same_content
from samepath.errors import UserError
from samepath.files import content_hash
from samepath.recipe import Recipe, find_recipe
from samepath.version import __version__

FINGERPRINTS = ("train_content", "valid_content", "modules")
"""Fields of a run's options."""
_DATA = {"train": "training", "valid": "validation"}


def fingerprints(recipe: Recipe, before: Mapping[str, Any]) -> dict[str, Any]:
    """Take the fingerprints of a recipe whose functions have run once; those that were known
    `before` stay."""
    contents = {
        f"{name}_content": before.get(f"{name}_content") or _content(recipe, name) for name in _DATA
    }
    return contents | {"modules": own_modules(recipe.origin.name) | (before.get("modules") or {})}


def refuse_others(recipe: Recipe, before: Mapping[str, Any], *, began: str = "run") -> None:
    """Raise unless data and modules are those of which `before` holds the fingerprints."""
    instead = f"; start a new {began}, or restore"
    for file in changed_modules(recipe.origin.name, before):
        raise UserError(f"cannot resume: {file} changed since the {began} began{instead} the file")
    for name, word in _DATA.items():
        known = before.get(f"{name}_content")
        if known and not same_content(known, _content(recipe, name) or {}):
            raise UserError(
                f"cannot resume: the {word} data changed since the {began} began{instead} the data"
            )


def refuse_others_now(recipe: Recipe, before: Mapping[str, Any]) -> None:
    """Raise in a worker that begins while the run goes on, for changes of the data that can be seen
    at a glance."""
    for name, word in _DATA.items():
        data, known = getattr(recipe, name), before.get(f"{name}_content")
        if not known or data is None:
            continue
        if not same_content(known, held_content(data, recipe.collate)):
            raise UserError(
                f"the {word} data of this worker is not the run's: recipe() draws it anew in every "
                "process (use torch.Generator().manual_seed(0)), or it has changed since the run "
                "began (put it back as it was)"
            )


def find_again(
    config: Mapping[str, Any], source: bytes | None = None, run: str = "the run"
) -> Recipe:
    """Find the recipe of a run's configuration again, on the data it was trained with. `source` is
    what the recipe's file held when the run began. Raise where anything is not what it was; nothing
    of a recipe is executed that would import a module that has changed."""
    name = config["recipe"]
    for file in changed_modules(name, config):
        raise has_changed(file, run)
    paths = config.get("data"), config.get("keep")
    recipe = find_recipe(name, *paths, source, threads=config.get("threads", 1))
    for word, what, identity in (
        ("recipe", "recipe", "identity"),
        ("data", "data", "data_identity"),
        ("keep-list", "keep", "keep_identity"),
    ):
        if config.get(identity) != getattr(recipe.origin, identity):
            raise has_changed(f"the {word} {config.get(what)}", run)
    return recipe


def has_changed(what: str, run: str) -> UserError:
    """Make the error for a file or data that is not what it was."""
    return UserError(f"{what} has changed since {run} began; put it back as it was")


def _content(recipe: Recipe, name: str) -> dict[str, str] | None:
    data = getattr(recipe, name)
    if data is None:
        return None
    return content_of(data, collate=recipe.collate, loader_workers=recipe.loader_workers)


# ---- the user's own modules

_INSTALLED = {"site-packages", "dist-packages"}
_LOADED_BY_US = ("__main__", "__mp_main__", "samepath_recipe_", "samepath_strategy_")


def own_modules(recipe: str) -> dict[str, str]:
    """Hash the user's modules that are imported now. Call it when the recipe's functions have run
    once, so that those they import are there."""
    folder, found = _folder(recipe), {}
    for name, module in list(sys.modules.items()):
        file, package = _file_of(module), _file_of(sys.modules.get(name.partition(".")[0]))
        if file is None or name.startswith(_LOADED_BY_US) or not _is_own(file):
            continue
        if package is not None and not _is_own(package):
            continue
        file = file.resolve()
        if folder is not None and file == Path(recipe).resolve():
            continue
        if folder is not None and file.is_relative_to(folder):
            name = file.relative_to(folder).as_posix()
        if digest := _digest(file):
            found[name] = digest
    return dict(sorted(found.items()))


def changed_modules(recipe: str, before: Mapping[str, Any]) -> list[str]:
    """List the modules among the fingerprints `before` whose files hold something else now.
    (Importing one that is gone fails by itself.)"""
    modules = before.get("modules")
    folder, changed = _folder(recipe), []
    for name, expected in modules.items() if isinstance(modules, dict) else ():
        file = _find(name, folder)
        now = None if file is None else _digest(file)
        if now is not None and now != expected:
            changed.append(name if "/" in name or name.endswith(".py") else str(file))
    return changed


def _folder(recipe: str) -> Path | None:
    return None if recipe in BUILT_IN else Path(recipe).resolve().parent


def _file_of(module: ModuleType | None) -> Path | None:
    """The Python file that a module was read from."""
    file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    if not isinstance(file, str) or not os.path.isabs(file) or not file.endswith(".py"):
        return None
    return Path(file)


def _find(name: str, folder: Path | None) -> Path | None:
    """The file of a module as `own_modules` names it, imported or not."""
    if folder is not None and (folder / name).is_file():
        return folder / name
    if name in sys.modules:
        return _file_of(sys.modules[name])
    package, *inside = name.split(".")
    try:
        spec = importlib.util.find_spec(package)  # of a module in it, it would import the package
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    if not inside:
        return None if spec.origin is None else Path(spec.origin)
    for place in spec.submodule_search_locations or ():
        base = Path(place).joinpath(*inside)
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file
    return None


@cache
def _not_own() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    places = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    assert samepath.__file__ is not None
    places |= {os.path.dirname(samepath.__file__)}
    return tuple({Path(place) for place in places} | {Path(place).resolve() for place in places})


def _is_own(file: Path) -> bool:
    if _INSTALLED & set(file.parts):
        return False
    return not any(file.is_relative_to(place) for place in _not_own())


def _digest(file: Path) -> str | None:
    try:
        return content_hash(file)
    except OSError:
        return None  # in an archive, or generated: there is nothing to compare


# ---- the machine and its libraries

_LIBRARIES = ("torch", "numpy")
_MACHINE = ("machine", "cpu_model", "cpu", "cpu_caches", "kernels", "gpu")
_PINS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
"""Environment variables that choose kernels."""


def versions() -> dict[str, str]:
    """Describe this machine and its libraries for run.json; empty where there is no such thing."""
    return {
        "samepath": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cpu_model": _cpu_model(),
        "cpu_caches": _cpu_caches(),
        "kernels": " ".join(f"{name}={os.environ[name]}" for name in _PINS if name in os.environ),
        "gpu": _gpu(),
    }


def describe_cpu() -> str:
    """This machine's CPU in one line."""
    return describe(versions())


def describe(machine: Mapping[str, str], also: tuple[str, ...] = ("kernels",)) -> str:
    """A machine in one line: its CPU and instruction set, and `also` what sets it apart."""
    model = machine.get("cpu_model") or machine.get("machine") or "an unknown CPU"
    details = [machine.get("cpu", ""), *(machine.get(name, "") for name in also)]
    known = ", ".join(text for text in details if text)
    return f"{model} ({known})" if known else model


def refuse_other_hardware(before: Mapping[str, str], *, allowed: bool) -> bool:
    """Say whether this machine or its libraries are others than those of a run's last start;
    that is an error unless it is `allowed`. (What an older samepath did not write is not
    compared.)"""
    now = versions()
    other = {name for name in before.keys() & now.keys() if before[name] != now[name]}
    words = []
    if other.intersection(_MACHINE):
        also = tuple(name for name in ("cpu_caches", "kernels", "gpu") if name in other)
        then, here = describe(before, also), describe(now, also)
        words.append(f"this run was trained on {then}; this machine is {here}")
    for name in _LIBRARIES:
        if name in other:
            words.append(f"this run was trained with {name} {before[name]}; here is {now[name]}")
    if words and not allowed:
        raise UserError(
            f"{'; '.join(words)}: the bits would differ from here on; add --other-hardware to go "
            "on all the same"
        )
    return bool(words)


def _cpu_model() -> str:
    """The model's name with its numbers: virtual machines shorten the name."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
        facts = dict(re.findall(r"^([^\t:]+?)\s*: (.*)$", text, re.M))
        numbers = [f"{k} {facts[k]}" for k in ("cpu family", "model", "CPU part") if k in facts]
        name = facts.get("model name") or facts.get("CPU implementer", "")
        return ", ".join(part for part in (name, " ".join(numbers)) if part)
    return platform.processor()


def _cpu_caches() -> str:
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        with suppress(OSError):
            names = ("level", "type", "size")
            level, kind, size = ((index / name).read_text().strip() for name in names)
            found.append(f"L{level}{'' if kind == 'Unified' else kind[:1].lower()} {size}")
    return " ".join(found)


def _gpu() -> str:
    """Names of the GPUs, as the driver lists them: asking torch would start CUDA in a process that
    may still be forked."""
    if torch.version.cuda is None:
        return ""
    names = set()
    for file in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        with suppress(OSError):
            names |= set(re.findall(r"^Model:\s*(.+?)\s*$", file.read_text(), re.M))
    return " and ".join(sorted(names))
