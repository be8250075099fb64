"""Facts that the bits depend on beside the run's options: the machine, and the libraries that
compute.

Kernels choose by instruction set and by the sizes of caches, so another CPU gives other bits. In:
this machine; what an earlier start of a run wrote of its own. Out: a fingerprint, a line for
people; a UserError where the two differ and that was not allowed.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from samepath.errors import UserError
from samepath.version import __version__

_LIBRARIES = ("torch", "numpy")
_MACHINE = ("machine", "cpu_model", "cpu", "cpu_caches", "kernels", "gpu")
_PINS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
"""Environment variables that choose kernels."""


def versions() -> dict[str, str]:
    """List all of them, as run.json holds them. What there is none of is empty."""
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
    other = [name for name in before.keys() & now.keys() if before[name] != now[name]]
    words = []
    if any(name in _MACHINE for name in other):
        also = tuple(name for name in ("cpu_caches", "kernels", "gpu") if name in other)
        words.append(
            f"this run was trained on {describe(before, also)}; this machine is "
            f"{describe(now, also)}"
        )
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
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
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
