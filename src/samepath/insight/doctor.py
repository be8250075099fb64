"""What this machine is, and what on it would slow down or end a training (`samepath doctor`).

In: a folder in which runs are to be written. Out: Findings, each with what to do where something is
wrong. Guaranteed: nothing is changed (a temporary folder comes and goes); nothing is asked of the
network beyond this machine; what cannot be found out is said to be unknown.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from samepath.engine.checks.fingerprints import describe_cpu, versions
from samepath.engine.comm.collective import Alone
from samepath.engine.comm.environment import LOOPBACK
from samepath.engine.launch.leftovers import find
from samepath.engine.run.request import available_workers
from samepath.engine.step.compiled import refuse_without_compiler
from samepath.errors import UserError
from samepath.files import is_locked, memory_bytes, take_lock
from samepath.timing.stopwatch import BusyCores

TESTED_TORCH = "2.13.0"
GIB = 1 << 30
LEAST_SHARED, LEAST_DISK = GIB // 4, GIB
LEAST_FILES = 1024
MOST_BUSY = 0.5
"""Cores that other processes may use."""
MOST_SKEW_SECONDS = 2.0
LOOK_SECONDS = 0.5
LAUNCHERS = ("torchrun", "mpirun", "srun", "sbatch")
EXTRAS = (
    *("tensorboard", "wandb", "mlflow-skinny", "trackio", "SimpleITK", "pydicom", "highdicom"),
    *("pyarrow", "onnx", "onnxscript", "onnxruntime", "monai", "nibabel", "lightning"),
    *("transformers", "accelerate", "distributed", "dask-jobqueue", "ray", "torchvision"),
)
"""Packages that parts of samepath need, and torchvision, which some of them bring."""
_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME"),
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "TMPDIR"),
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    found: str
    advice: str = ""
    """What to do; empty where nothing is wrong."""


def examine(folder: Path) -> list[Finding]:
    """Look at everything; `folder` is where runs would be written."""
    looks: tuple[Callable[[], Finding], ...] = (
        _machine,
        lambda: judge_cores(available_workers(), os.cpu_count() or 1, cpu_quota(), busy_cores()),
        lambda: Finding(name="memory", found=_size(memory_bytes())),
        lambda: judge_torch(torch.__version__),
        _blas,
        _gpus,
        _compiler,
        lambda: _listed("launchers", [name for name in LAUNCHERS if shutil.which(name)]),
        lambda: _listed("optional packages", list(_installed())),
        _ports,
        lambda: judge_shared(*_room(Path("/dev/shm"))),
        _left_over,
        lambda: judge_files(resource.getrlimit(resource.RLIMIT_NOFILE)),
        lambda: judge_disk("disk", folder, *_room(folder)),
        lambda: judge_disk(
            "temporary folder", Path(tempfile.gettempdir()), *_room(Path(tempfile.gettempdir()))
        ),
        lambda: _writable(folder),
        lambda: _listed(
            "variables", [f"{n}={os.environ[n]}" for n in _VARIABLES if n in os.environ]
        ),
    )
    return [look() for look in looks]


# ---- computing


def _machine() -> Finding:
    about = versions()
    found = f"{socket.gethostname()}: {describe_cpu()}, Python {about['python']}, "
    return Finding(name="machine", found=f"{found}samepath {about['samepath']}")


def judge_cores(usable: int, there: int, quota: float | None, busy: float) -> Finding:
    """How many cores this process has, and what shares them."""
    found = f"{usable} of {there} usable, {busy:.1f} used by other processes"
    advice = ""
    if quota is not None and quota < usable:
        found += f", at most {quota:g} at a time (cgroup)"
        advice = (
            f"workers beyond {max(1, int(quota))} slow each other down: -n {max(1, int(quota))}"
        )
    elif busy > MOST_BUSY:
        advice = "times that are measured now are too long, and a slow worker holds up all: wait"
    return Finding(name="cores", found=found, advice=advice)


def cpu_quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """Read how many cores' time the cgroup of this process has; None: no limit, or not known."""
    with suppress(OSError, ValueError):
        quota, period = file.read_text().split()
        return int(quota) / int(period)
    return None


def busy_cores(seconds: float = LOOK_SECONDS) -> float:
    """Measure how many cores other processes use now."""
    busy = BusyCores()
    time.sleep(seconds)
    return busy.others(Alone(torch.device("cpu"), timeout_seconds=seconds))


def judge_torch(version: str) -> Finding:
    """Which torch it is."""
    advice = ""
    if version.partition("+")[0] != TESTED_TORCH:
        advice = f"samepath is tested with {TESTED_TORCH}: try `samepath verify digits -n 1,2`"
    return Finding(name="torch", found=version, advice=advice)


def _blas() -> Finding:
    library = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    mkldnn = "oneDNN" if torch.backends.mkldnn.is_available() else "no oneDNN"
    return Finding(name="BLAS", found=f"{library[1] if library else 'unknown'}, {mkldnn}")


def _gpus() -> Finding:
    names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    if names or not shutil.which("nvidia-smi"):
        return _listed("GPUs", names)
    advice = "there is a driver, and this torch sees no GPU: install a CUDA build of torch"
    return Finding(name="GPUs", found="none", advice=advice)


def _compiler() -> Finding:
    try:
        refuse_without_compiler()
    except UserError as error:
        return Finding(name="C++ compiler", found="none", advice=f"only for --compile: {error}")
    return Finding(name="C++ compiler", found="there is one, for --compile")


def _installed() -> Iterator[str]:
    for name in EXTRAS:
        with suppress(importlib.metadata.PackageNotFoundError):
            yield f"{name} {importlib.metadata.version(name)}"


# ---- what processes share


def _ports() -> Finding:
    """Whether workers of this machine can reach each other."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection((LOOPBACK, port), timeout=5.0):
                found = f"workers can connect on {LOOPBACK}"
    except OSError as error:
        advice = (
            f"workers cannot meet on {LOOPBACK} ({error.strerror}): look at firewall and limits"
        )
        return Finding(name="network", found="no connection", advice=advice)
    others = ", ".join(name for _, name in socket.if_nameindex() if name != "lo")
    return Finding(
        name="network", found=f"{found}; interfaces to other machines: {others or 'none'}"
    )


def judge_shared(free: int | None, total: int) -> Finding:
    """Whether workers can exchange sums in memory."""
    if free is None:
        advice = "workers of this machine use the network instead, which is slower: mount /dev/shm"
        return Finding(name="shared memory", found="none", advice=advice)
    advice = ""
    if free < LEAST_SHARED:
        advice = "free some (`samepath clean`), or give a container more (--shm-size=2g)"
    found = f"{_size(free)} free of {_size(total)} in /dev/shm"
    return Finding(name="shared memory", found=found, advice=advice)


def _left_over() -> Finding:
    number = len(find())
    advice = "remove it: samepath clean" if number else ""
    return Finding(name="left by killed processes", found=str(number), advice=advice)


def judge_files(limits: tuple[int, int]) -> Finding:
    """How many files a process may open."""
    soft, hard = (None if n == resource.RLIM_INFINITY else n for n in limits)
    advice = ""
    if soft is not None and soft < LEAST_FILES:
        advice = f"many workers and loader processes need more: ulimit -n {hard or 4096}"
    return Finding(
        name="open files", found="no limit" if soft is None else f"{soft:,}", advice=advice
    )


# ---- where runs are written


def judge_disk(name: str, folder: Path, free: int | None, total: int) -> Finding:
    """Whether a folder's disk has room for checkpoints."""
    if free is None:
        return Finding(name=name, found=f"{folder} is not there", advice="give a folder that is")
    advice = ""
    if free < LEAST_DISK:
        advice = "free some: a run keeps two checkpoints, each about three times its weights"
    return Finding(
        name=name, found=f"{_size(free)} free of {_size(total)} ({folder})", advice=advice
    )


def _room(folder: Path) -> tuple[int | None, int]:
    """Free and all bytes; None where there is no such folder."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None, 0
    return usage.free, usage.total


def _writable(folder: Path) -> Finding:
    """Whether runs can be written in a folder, and locked; and whether its clock is this one's."""
    name = "run folders"
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".samepath-doctor-") as inner:
            before = time.time()
            (Path(inner) / "file").touch()
            skew = (Path(inner) / "file").stat().st_mtime - before
            lock = take_lock(Path(inner))
            has_locks = lock is not None and is_locked(Path(inner))
            if lock is not None:
                os.close(lock)
    except OSError as error:
        advice = f"give another --out, or make {folder} writable"
        return Finding(name=name, found=f"cannot be written ({error.strerror})", advice=advice)
    return judge_writing(name, skew, has_locks=has_locks)


def judge_writing(name: str, skew_seconds: float, *, has_locks: bool) -> Finding:
    """What a folder that can be written to is worth."""
    if not has_locks:
        advice = "two runs in one folder are not kept apart: use a file system with locks"
        return Finding(name=name, found="writable, without locks", advice=advice)
    if abs(skew_seconds) > MOST_SKEW_SECONDS:
        advice = "set the clocks (NTP): times in lists of runs are wrong; no result depends on it"
        found = f"writable, with a clock that is {skew_seconds:+.0f} s off"
        return Finding(name=name, found=found, advice=advice)
    return Finding(name=name, found="writable, with locks, the clock is this machine's")


# ---- in words


def _listed(name: str, found: list[str]) -> Finding:
    return Finding(name=name, found=", ".join(found) or "none")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / (1 << 20):.0f} MiB"
