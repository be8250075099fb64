"""What one step of a recipe is made of, as the stopwatch measured it on this machine.

In: stopwatches. Out: frozen dataclasses, to JSON and back: a MeasuredStep (`measured.json`), which
`advise` and `simulate` draw from, and the ClockFacts of a study (`clock.json`, `study.json`).
Guaranteed: everything here was measured with one or a few real workers; nothing is modelled.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from samepath.errors import UserError
from samepath.files import brief, make_folder, read_as, read_object, write_atomically
from samepath.timing.links import NetworkFacts

How: TypeAlias = Literal["measured", "modelled"]
"""How a time is known: with that many real workers, here; or from the model."""
MOST_OFF = 0.25
"""A model that is further off than this, where several real workers were timed, is not quoted."""
FILE = "measured.json"
FORMAT = 1
MOST_EXAMPLES = 1 << 30
"""The most examples of a batch."""


@dataclass(frozen=True, kw_only=True)
class TimingFacts:
    """What is known of a recipe's step on one machine, of one step or for a whole study."""

    machine: str
    """Processor, cores: where it was measured."""
    threads: int
    """Threads of each worker."""
    grain_size: int
    grain_fixed: bool
    """The model normalises over a grain: more workers cannot mean finer grains."""
    tensor_bytes: tuple[int, ...]
    """Bytes of gradients, in the order in which backward finds them."""
    tensor_ready: tuple[float, ...]
    """When each is there, as a part of a grain's time."""
    crowding: dict[str, float]
    """A grain's time over its time alone, by how many processes compute side by side here."""
    local: NetworkFacts
    """The link that workers of this machine use (shared memory where they can)."""
    busy_cores: float
    """Cores used by other processes meanwhile."""
    buffer_bytes: int = 0
    """Bytes of float buffers (batch norm's), which workers merge after every step."""
    row_bytes: tuple[float, ...] = ()
    """Bytes by gradient for each example of the rows that samepath sends in its place, where they
    are fewer (gradient factors); 0 where it has none. Empty: no gradient has."""


@dataclass(frozen=True, kw_only=True)
class MeasuredStep(TimingFacts):
    """One recipe on one machine."""

    recipe: str
    identity: str
    """The identity of the recipe's code and plan (`Options.identity`), so that another's is not
    taken for it."""
    device: str
    batch_size: int
    num_examples: int
    grain_times: dict[str, tuple[float, ...]]
    """Seconds of single grains, forward and backward, of one worker alone, by grain size."""
    update_seconds: float
    """The fixed cost of a step (data, update): the same at any number of workers."""
    tensor_names: tuple[str, ...]
    network: NetworkFacts
    """The network collective between two workers of this machine."""
    step_seconds: dict[str, float]
    """Median seconds of whole steps, by how many real workers ran here."""
    coarsest_step_seconds: dict[str, float] | None = None
    """Seconds like `step_seconds`, in the largest grains that so many workers can share; None: not
    timed."""


@dataclass(frozen=True, kw_only=True)
class ClockFacts(TimingFacts):
    """What the times of a study are made of."""

    network: NetworkFacts
    """The link that times are modelled for; `local` is for predictions of what was measured."""
    gradient_bytes: int
    serial_seconds: float
    """`update_seconds` of a MeasuredStep."""
    grain_seconds: dict[str, float]
    """Median seconds of a grain, by its size, with one worker alone."""
    measured_step_seconds: dict[str, float]
    """Seconds by "batch x workers", such as "64x2", of a step with that many real workers here."""


def step_key(batch_size: int, workers: int) -> str:
    """The name of a step in `measured_step_seconds`."""
    return f"{batch_size}x{workers}"


def write_measured(folder: Path, measured: MeasuredStep) -> None:
    """Write `measured.json`; the folder is made if need be."""
    make_folder(folder)
    content = {"format": FORMAT, **asdict(measured)}
    write_atomically(folder / FILE, json.dumps(content, indent=1) + "\n")


def read_measured(folder: Path) -> MeasuredStep:
    """Read `measured.json` in the folder of an advice, a profile or a simulation."""
    file = folder / FILE
    if not file.is_file():
        raise UserError(
            f"{folder} holds no measured step (there is no {FILE}); give a folder that "
            "`samepath profile` or `samepath advise` wrote, or a recipe"
        )
    try:
        content = read_object(file)
        if content.pop("format") != FORMAT:
            raise ValueError("another format")
        found: MeasuredStep = read_as(MeasuredStep, content)
        _check(found)
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{file} cannot be read ({brief(why)}); measure again") from None


def _check(found: MeasuredStep) -> None:
    """Raise unless the numbers are such as a measurement gives."""
    links = (found.local, found.network)
    positive = [*found.step_seconds.values(), *found.crowding.values()]
    positive += (found.coarsest_step_seconds or {}).values()
    positive += [time for times in found.grain_times.values() for time in times]
    positive += [link.bytes_per_second for link in links]
    if not all(0.0 < value < math.inf for value in positive):
        raise ValueError("a time, a crowding or a link's speed is not above 0")
    waits = (found.update_seconds, *(link.latency_seconds for link in links))
    if not all(0.0 <= value < math.inf for value in waits):
        raise ValueError("its update or a latency takes less than no time")
    if not 1 <= found.grain_size <= found.batch_size <= MOST_EXAMPLES:
        raise ValueError(f"no grain of {found.grain_size} in a batch of {found.batch_size}")
    counts = [int(size) for size in (*found.grain_times, *found.crowding)]
    if not found.grain_times or not all(found.grain_times.values()) or min(counts) < 1:
        raise ValueError("its grain_times or crowding are not by numbers from 1 on")
    ready, sizes = [0.0, *found.tensor_ready, 1.0], (*found.tensor_bytes, found.buffer_bytes)
    if not len(sizes) - 1 == len(ready) - 2 > 0 or ready != sorted(ready) or min(sizes) < 0:
        raise ValueError("its tensors are not in order")
    rows = found.row_bytes
    if rows and (len(rows) != len(found.tensor_bytes) or not 0.0 <= min(rows) <= max(rows) < 1e15):
        raise ValueError("its row_bytes are not those of its tensors")
