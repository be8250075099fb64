"""Where the runs of a study are trained, as `--on` says it.

In: a text such as `local`, `dask:tcp://10.0.0.1:8786,cores=4` or `dask:slurm,memory=8GB,jobs=20`.
Out: a Destination, or a UserError that says what to type. Nothing is connected to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from samepath.errors import UserError

LOCAL = "local"
QUEUES = ("slurm", "pbs", "lsf")
"""Batch systems that dask-jobqueue submits jobs to."""
MOST_JOBS = 10
_EXAMPLES = (
    "local, dask:tcp://HOST:8786, dask:slurm, dask:pbs, dask:lsf, ray or ray:HOST:6379, and after "
    "it, for each run, such as ,cores=4,memory=8GB"
)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{letter}i": 2 ** (10 * power) for power, letter in enumerate("KMGT", 1)}


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Where runs are trained, and what each of them asks for."""

    engine: str
    """local, dask or ray."""
    address: str = ""
    """A scheduler's, or a batch system's name; of Ray, empty for a cluster of this machine."""
    cores: int = 1
    memory: int = 0
    """Bytes; 0: whatever there is."""
    jobs: int = MOST_JOBS
    """The most jobs of a batch system at a time."""

    @property
    def is_queue(self) -> bool:
        return self.engine == "dask" and self.address in QUEUES


def parse_destination(text: str) -> Destination:
    """Read what --on is given."""
    where, *settings = text.split(",")
    engine, _, address = where.partition(":")
    if engine not in (LOCAL, "dask", "ray") or (engine == LOCAL and address):
        raise UserError(f"--on {text}: give {_EXAMPLES}")
    if engine == LOCAL and settings:
        raise UserError(
            f"--on {text}: {settings[0]} is for a cluster; local uses all cores of this machine"
        )
    if engine == "dask" and address not in QUEUES and not _has_port(address, "tcp://", "tls://"):
        raise UserError(
            f"--on {text}: give the scheduler's address, such as dask:tcp://10.0.0.1:8786, or a "
            "batch system: dask:slurm, dask:pbs or dask:lsf"
        )
    if engine == "ray" and address and not _has_port(address, "ray://", ""):
        raise UserError(
            f"--on {text}: give the address of a Ray cluster, such as ray:10.0.0.1:6379 or "
            "ray:ray://10.0.0.1:10001, or ray alone for one on this machine"
        )
    read = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name == "memory":
            read[name] = _bytes(text, value)
        elif name == "cores" or (name == "jobs" and address in QUEUES):
            if not value.isdecimal() or int(value) < 1:
                raise UserError(f"--on {text}: {name} must be a whole number of at least 1")
            read[name] = int(value)
        else:
            raise UserError(
                f"--on {text}: there is no setting {name!r}; there are cores, memory and, for "
                "slurm, pbs and lsf, jobs"
            )
    return Destination(engine=engine, address=address, **read)


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of an address that `parse_destination` has taken."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    return host.strip("[]"), int(port)


def _has_port(address: str, *schemes: str) -> bool:
    scheme, slashes, rest = address.rpartition("//")
    if scheme + slashes not in schemes:
        return False
    return re.fullmatch(r"([\w.-]+|\[[\w:]+\]):\d{1,5}", rest) is not None


def _bytes(text: str, value: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)((?:[KMGT]i?)?)B?", value)
    if match is None:
        raise UserError(f"--on {text}: memory {value!r} is no size; write memory=8GB")
    return round(float(match[1]) * _UNITS[match[2]])
