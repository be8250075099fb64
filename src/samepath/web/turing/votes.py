"""A reader's test: cubes in an order of their own, a person's votes, and what they come to.

In: a file of real cubes, one of generated ones, how many of each, a seed. Out: cubes by their place
in the test, and, when it has ended, how often the person was right, with Clopper and Pearson's
(1934) exact interval. Guaranteed: what is real is told to nobody before the end; every vote is on
disk before it is answered; a test goes on where it was left, with the same files only; after its
end no vote changes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.volumes import load_volumes
from samepath.errors import UserError
from samepath.files import brief, lock_folder, read_object, write_atomically
from samepath.keys import key

FORMAT = 1
REAL, GENERATED = "real", "generated"
WORDS = (REAL, GENERATED)
MOST_CUBES = 10_000
_FACTS = ("category", "label")


@dataclass(frozen=True, kw_only=True)
class ReaderScore:
    """How often a reader was right about some cubes."""

    what: str
    """all, real, generated, or a class of nodules."""
    num_right: int
    num_votes: int
    low: float
    high: float
    """Where the share lies with 95%."""
    p: float
    """Of a share this far from a half, if the reader only guessed."""

    @property
    def share(self) -> float:
        return self.num_right / self.num_votes if self.num_votes else float("nan")


class ReadersTest:
    """One person's test, kept in a file."""

    def __init__(self, real: Path, generated: Path, out: Path, *, count: int, seed: int) -> None:
        cubes = [_bytes_of(path) for path in (real, generated)]
        sides = [array.shape[-1] for array, _ in cubes]
        if sides[0] != sides[1]:
            raise UserError(
                f"{real} has cubes of {sides[0]} voxels a side, {generated} of {sides[1]}; make "
                "them alike (samepath cubes --side, samepath generate --side)"
            )
        most = min(len(cubes[0][0]), len(cubes[1][0]), MOST_CUBES // 2)
        if not 1 <= count <= most:
            raise UserError(
                f"--count {count}: give 1 to {most}; there are {len(cubes[0][0])} real and "
                f"{len(cubes[1][0])} generated cubes"
            )
        self.out, self.side = out, sides[0]
        random = np.random.default_rng(key("turing", seed))
        rows = [random.permutation(len(array))[:count] for array, _ in cubes]
        order = random.permutation(2 * count)
        chosen = [array[mine] for (array, _), mine in zip(cubes, rows, strict=True)]
        self._cubes = np.concatenate(chosen)[order]
        self._truth = np.repeat(WORDS, count)[order]
        kinds = [kind for _, kind in cubes]
        self._kinds: NDArray[np.str_] | None = None
        if kinds[0] is not None and kinds[1] is not None:
            both = [kind[mine] for kind, mine in zip(kinds, rows, strict=True) if kind is not None]
            self._kinds = np.concatenate(both)[order]
        self._about = {
            "format": FORMAT,
            "real": str(real),
            "generated": str(generated),
            "count": count,
            "seed": seed,
            "cubes": hashlib.sha256(self._cubes.tobytes()).hexdigest(),
        }
        self.votes: dict[int, str] = {}
        self.has_ended = False
        if out.exists():
            self._go_on()

    def __len__(self) -> int:
        return len(self._cubes)

    def cube(self, number: int) -> bytes:
        """The voxels of a cube, z slowest."""
        return bytes(self._cubes[number].tobytes())

    def about(self) -> dict[str, Any]:
        """What the page may know."""
        return {
            "number": len(self),
            "side": self.side,
            "votes": [self.votes.get(number) for number in range(len(self))],
            "ended": self.has_ended,
            "file": self.out.name,
        }

    def vote(self, number: int, said: str) -> dict[str, Any]:
        """Keep a vote, in place of an earlier one."""
        if self.has_ended:
            raise UserError("the test has ended; its votes stay as they are")
        self._save({**self.votes, number: said}, self.has_ended)
        return self.about()

    def end(self) -> dict[str, Any]:
        """End the test: from now on it tells, and takes no votes."""
        if not self.votes:
            raise UserError("there is no vote yet; say of one cube at least what it is")
        self._save(self.votes, True)
        return self.result()

    def result(self) -> dict[str, Any]:
        """Scores, and the truth about every cube that was voted on."""
        if not self.has_ended:
            raise UserError("the test has not ended; end it first")
        return {
            "scores": [vars(score) | {"share": score.share} for score in self.scores()],
            "truth": [
                str(self._truth[number]) if number in self.votes else None
                for number in range(len(self))
            ],
        }

    def scores(self) -> list[ReaderScore]:
        """Of all votes, of each word, and of each class of nodules where the files tell."""
        voted = np.array(sorted(self.votes), dtype=np.int64)
        right = np.array([self.votes[int(n)] == self._truth[n] for n in voted], dtype=np.bool_)
        truth = self._truth[voted]
        found = [_score("all", right)]
        found += [_score(word, right[truth == word]) for word in WORDS]
        if self._kinds is not None:
            kinds = self._kinds[voted]
            found += [_score(f"class {name}", right[kinds == name]) for name in np.unique(kinds)]
        return [score for score in found if score.num_votes]

    def _save(self, votes: dict[int, str], has_ended: bool) -> None:
        said = {str(number): votes[number] for number in sorted(votes)}
        content: dict[str, Any] = {**self._about, "votes": said, "ended": has_ended}
        if has_ended:
            before = self.votes, self.has_ended
            self.votes, self.has_ended = votes, has_ended
            try:
                content["scores"] = [vars(score) for score in self.scores()]
                content["truth"] = [str(self._truth[number]) for number in sorted(votes)]
                write_atomically(self.out, json.dumps(content, indent=1) + "\n")
            except OSError:
                self.votes, self.has_ended = before
                raise
            return
        write_atomically(self.out, json.dumps(content, indent=1) + "\n")
        self.votes = votes

    def _go_on(self) -> None:
        """Take the votes of the file, if it is of this test."""
        try:
            content = read_object(self.out)
            if any(content.get(name) != self._about[name] for name in ("format", "seed", "count")):
                raise UserError(
                    f"--out {self.out} holds another test (--count {brief(content.get('count'))} "
                    f"--seed {brief(content.get('seed'))}); give these, or another name"
                )
            if content.get("cubes") != self._about["cubes"]:
                raise UserError(
                    f"--out {self.out} holds a test of other cubes ({brief(content.get('real'))}, "
                    f"{brief(content.get('generated'))}); give another name"
                )
            said = {int(number): word for number, word in content["votes"].items()}
            known = all(0 <= n < len(self) and word in WORDS for n, word in said.items())
            if not known or not isinstance(content["ended"], bool):
                raise ValueError("its votes are of no cubes of this test")
            if content["ended"] and not said:
                raise ValueError("it ended without a vote")
        except UserError:
            raise
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(
                f"--out {self.out} cannot be read as a reader's test ({brief(error)}); give "
                "another name"
            ) from None
        self.votes, self.has_ended = said, content["ended"]


@contextmanager
def opened_test(
    real: Path, generated: Path, out: Path, *, count: int, seed: int
) -> Iterator[ReadersTest]:
    """A test that no other process takes at the same time in this folder."""
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it")
    test = ReadersTest(real, generated, out, count=count, seed=seed)
    lock = lock_folder(out.parent, f"a reader's test in {out.parent} is being taken")
    try:
        yield test
    finally:
        os.close(lock)


def _bytes_of(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.str_] | None]:
    """Cubes as bytes, so that steps of intensity give nothing away; and the nodules' classes."""
    volumes = load_volumes(path)
    cubes = np.asarray(volumes.cubes)
    if cubes.dtype != np.uint8:
        cubes = np.rint(cubes * 255.0).astype(np.uint8)
    name = next((name for name in _FACTS if name in volumes.facts), None)
    return cubes, None if name is None else volumes.facts[name].astype(np.str_)


def _score(what: str, right: NDArray[np.bool_]) -> ReaderScore:
    from scipy.stats import binomtest

    number, hits = len(right), int(right.sum())
    if not number:
        return ReaderScore(what=what, num_right=0, num_votes=0, low=0.0, high=1.0, p=1.0)
    test = binomtest(hits, number, 0.5)
    interval = test.proportion_ci(0.95, "exact")
    return ReaderScore(
        what=what,
        num_right=hits,
        num_votes=number,
        low=float(interval.low),
        high=float(interval.high),
        p=float(test.pvalue),
    )
