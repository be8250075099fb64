"""The ways a run can end badly, each with the exit code the command line gives it.

A message says what was given, which rule it breaks and what to type instead, in one line.
"""

from __future__ import annotations


class SamepathError(Exception):
    """Anything samepath stops for on purpose."""

    exit_code = 1


class UserError(SamepathError, ValueError):
    """Something the person can change: exit code 2, nothing half-written."""

    exit_code = 2


def no_run(folder: object) -> UserError:
    """The error of a folder that is to hold a run."""
    return UserError(f"{folder} holds no run (there is no run.json); check the path")


class Diverged(SamepathError):
    """A loss or gradient became NaN or infinite: exit code 3; the weights are those before."""

    exit_code = 3

    def __init__(self, step: int, what: str, value: float, hint: str = "") -> None:
        super().__init__(step, what, value, hint)  # all in args, so that it survives pickling
        self.step = step
        self.what = what
        self.value = value
        self.hint = hint

    def __str__(self) -> str:
        return (
            f"diverged: the {self.what} became {self.value} at step {self.step}; "
            f"the weights kept are those before that step{self.hint}"
        )


class WorkerFailed(SamepathError):
    """A worker raised or died; the message carries its traceback or signal."""

    exit_code = 1


class WorkerLost(SamepathError):
    """Another worker did not answer in time."""

    exit_code = 1


class ReplicasDiffer(SamepathError):
    """Workers that should hold the same model do not: nothing of it is saved."""

    exit_code = 1


class CheckpointDamaged(SamepathError):
    """A checkpoint does not match its checksum or cannot be read."""

    exit_code = 1


class NotSaved(SamepathError):
    """A run came to its end and its folder does not take what is to be kept of it."""

    exit_code = 1
