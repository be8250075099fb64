"""How many threads numerical libraries compute with: the one place that sets it.

In: a number. Out: torch, and BLAS and OpenMP of whatever library, use that many: those that are
loaded, and by their environment variables those that are loaded later and in processes started from
here. Sums are added in another order by another number of threads, so results must depend neither
on the machine's cores nor on the variables a person has set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from samepath.errors import UserError

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def set_threads(threads: int) -> None:
    """Set the number of threads for as long as this process lives."""
    _refuse(threads)
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    os.environ.update(dict.fromkeys(VARIABLES, str(threads)))
    threadpool_limits(threads)
    torch.set_num_threads(threads)


@contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """Limit threads for what is done inside. Afterwards everything is as before, except for
    libraries that were first loaded inside: those keep the number."""
    _refuse(threads)
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threads_of_children(threads), threadpool_limits(threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@contextmanager
def threads_of_children(threads: int, *, unless_set: bool = False) -> Iterator[None]:
    """Limit threads of processes that are started inside, and not for this one. `unless_set` leaves
    them to a person who has set any of the variables."""
    before = {name: os.environ.get(name) for name in VARIABLES}
    if not (unless_set and any(before.values())):
        os.environ.update(dict.fromkeys(VARIABLES, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _refuse(threads: int) -> None:
    if threads < 1:
        raise UserError(f"threads is {threads}; it must be at least 1")
