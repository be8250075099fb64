"""Figures 6 and 7 and Table I of Gahlot et al. 2020, in several sittings.

    python benchmarks/curation_paper.py --hours 0         what is done, and an estimate of the rest
    python benchmarks/curation_paper.py --hours 8         a night
    taskset -c 1 nice -n 19 python benchmarks/curation_paper.py --hours 8  # beside other work

All CIFAR-10 images that are there (--data, or shared/data), narrow ResNets, the paper's weight
decays and batch sizes, four seeds; all data, what curation keeps, and as many at random. Runs are
as long as convergence takes at their batch size: at least EPOCHS epochs and STEPS steps, the rate
falling tenfold at half and at four fifths of them (50 epochs at batch 6272 are 200 steps of 20,000
images). The parts come one after the other, figure by figure; a sitting that is over stops with
SIGINT and the same command goes on. What came of finished runs, and the keep-list they are about,
is kept in benchmarks/results/curation_paper*: commit it. docs/curation.md shows what is there
(scripts/write_curation_docs.py).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from curation import SHARED
from paper_study import INTERRUPTED, restore, save
from samepath.curation.reasons import random_control
from samepath.data.keep_list import KeepList, read_keep_list, write_keep_list
from samepath.files import read_object, write_atomically
from samepath.recipe import find_recipe

HERE = Path(__file__).resolve().parent
RECIPE = HERE / "curation_paper_recipe.py"
RESULTS = HERE / "results"
FOUND = RESULTS / "curation_paper.json"
DATA = SHARED / "data" / "cifar-10-batches-bin"
EPOCHS, STEPS = 30, 600
GRAIN = 32
SEEDS = 4
VARIANTS = ("full", "filtered", "random")
DEPTHS = (18, 34, 50)
LAST_BATCH = 48
"""Examples of the last batch that was suspected, at batch 1024, in an earlier comparison."""


@dataclass(frozen=True)
class Part:
    """One comparison."""

    name: str
    batch: int
    decays: tuple[float, ...]
    drop_last: bool = False
    lists: str = "keep"
    """keep: the curation's; short: two lists drawn at random, whose last batch has LAST_BATCH."""

    def epochs(self, number: int) -> int:
        return max(EPOCHS, math.ceil(STEPS / math.ceil(number / self.batch)))

    @property
    def num_runs(self) -> int:
        return len(self.decays) * len(VARIANTS) * SEEDS

    @property
    def file(self) -> Path:
        return RESULTS / f"curation_paper-{self.name}.jsonl"


SMALL = (0.005, 0.01, 0.012, 0.0135)
PARTS = (
    Part("batch256", 256, SMALL),
    Part("batch6272", 6272, SMALL[:1]),
    Part("batch1024", 1024, SMALL[:1]),
    Part("last-batch", 1024, SMALL[:1], lists="short"),
    Part("last-batch-dropped", 1024, SMALL[:1], drop_last=True, lists="short"),
    Part("batch128", 128, SMALL),
    Part("batch64", 64, SMALL),
    Part("batch3136", 3136, SMALL[:1]),
    Part("batch10368", 10368, SMALL[:1]),
)
"""Figure 6 is at 64 to 256 with four decays, figure 7 at 256 to 10,480 with the smallest. (The
paper's text says 0.01 there too, in another place.)"""


def content() -> dict[str, Any]:
    """What is known of the networks and their keep-lists."""
    return read_object(FOUND) if FOUND.exists() else {"networks": {}}


def finished(part: Part) -> dict[str, dict[str, Any]]:
    """Finished runs by name."""
    if not part.file.exists():
        return {}
    lines = part.file.read_text(encoding="utf-8").splitlines()[1:]
    return {line["run"]: line for line in map(json.loads, lines)}


# ---- how long it takes


def speed_now() -> float:
    """Examples a second of all cores, had they nothing else to do: by the CPU time of a plain
    loop on one."""
    os.environ["CURATION_PAPER"] = f"{DEPTHS[0]}:{EPOCHS}:0"
    torch.set_num_threads(1)
    recipe = find_recipe(str(RECIPE), str(data_file()))
    model = recipe.model()
    batch = tuple(column[:GRAIN] for column in recipe.train)  # type: ignore[union-attr]
    took = []
    for _ in range(6):
        began = time.process_time()
        recipe.loss(model, batch).backward()
        took.append(time.process_time() - began)
    return GRAIN / min(took) * len(os.sched_getaffinity(0))


def left(number: int) -> list[tuple[str, int, float]]:
    """Of each part: its name, runs that are missing, and the examples they will be trained on."""
    known = content()["networks"]
    depth = [d for d in DEPTHS if str(d) not in known]
    found = [(f"network{d}", 1, float(EPOCHS * number * {18: 1, 34: 2, 50: 2.5}[d])) for d in depth]
    for part in PARTS:
        runs = part.num_runs - len(finished(part))
        found.append((part.name, runs, float(runs * part.epochs(number) * number)))
    return found


def say_estimate(number: int) -> None:
    speed = speed_now()
    total = 0.0
    for name, runs, examples in left(number):
        hours = examples / speed / 3600
        total += hours
        print(f"  {name:20} {runs:4} runs left, about {hours:.1f} h")
    print(
        f"about {total:.0f} hours are left, at {speed:.0f} images a second of "
        f"{len(os.sched_getaffinity(0))} idle cores",
        flush=True,
    )


# ---- a sitting


def batches() -> list[Path]:
    """The batches of training images that are there."""
    folder = Path(os.environ.get("CURATION_PAPER_DATA", DATA))
    return sorted(folder.glob("data_batch_*.bin"))


def data_file() -> Path:
    """The last of them: all up to it are used."""
    return batches()[-1]


def run(command: list[str], until: float, depth: int, epochs: int, drop_last: bool) -> bool:
    """Run samepath until it ends or the sitting does; whether it ended."""
    program = str(Path(sys.executable).with_name("samepath"))
    print("samepath", *command, flush=True)
    env = {**os.environ, "CURATION_PAPER": f"{depth}:{epochs}:{int(drop_last)}"}
    process = subprocess.Popen([program, *command], process_group=0, env=env)
    try:
        code = process.wait(timeout=max(0.0, until - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.send_signal(signal.SIGINT)
        code = process.wait()
    if code not in (0, INTERRUPTED):
        sys.exit(code)
    return code == 0


def look_through(depth: int, out: Path, until: float) -> bool:
    """Train a network, curate through it, and keep what it found."""
    if str(depth) in content()["networks"]:
        return True
    trained, curated = out / f"network{depth}", out / f"curated{depth}"
    at = [str(RECIPE), "--data", str(data_file())]
    record = trained / "run.json"
    status = read_object(record)["status"] if record.exists() else None
    if status != "finished":
        go_on = ["--resume"] if status else []
        if not run(["train", *at, "--out", str(trained), *go_on], until, depth, EPOCHS, False):
            return False
    given = ["curate", *at, "--from", str(trained), "--out", str(curated)]
    if not run(given, until, depth, EPOCHS, False):
        return False
    about, keep = read_object(curated / "curation.json"), read_keep_list(curated / "keep.csv")
    reasons = {each: keep.reasons.count(each) for each in sorted({*keep.reasons} - {""})}
    test = read_object(record)["result"]
    known = content()
    known["networks"][str(depth)] = {
        "num_examples": len(keep),
        "num_kept": about["num_kept"],
        "reasons": reasons,
        "train_loss": test["train_loss"],
        "kept": np.packbits(keep.kept).tobytes().hex(),
        "random": np.packbits(read_keep_list(curated / "random.csv").kept).tobytes().hex(),
    }
    write_atomically(FOUND, json.dumps(known, indent=1) + "\n")
    return True


def keep_lists(out: Path, kind: str, batch: int) -> tuple[Path, Path]:
    """The filtered list and its control, written from what is kept of the first network."""
    found = content()["networks"][str(DEPTHS[0])]
    os.environ["CURATION_PAPER"] = f"{DEPTHS[0]}:{EPOCHS}:0"
    labels = find_recipe(str(RECIPE), str(data_file())).train[1].numpy()  # type: ignore[index]
    lists = []
    for name in ("kept", "random"):
        bits = np.frombuffer(bytes.fromhex(found[name]), np.uint8)
        kept = np.unpackbits(bits)[: len(labels)].astype(bool)
        lists.append(
            KeepList(
                labels=labels,
                positions=np.zeros((len(labels), 2), np.float32),
                clusters=np.zeros(len(labels), np.int64),
                kept=kept,
                reasons=["" if one else "dropped" for one in kept],
            )
        )
    if kind == "short":  # as many of no class in particular: only the last batch is asked about
        number = len(labels) - (len(labels) - LAST_BATCH) % batch
        one = KeepList(
            **{**vars(lists[0]), "labels": None, "kept": np.arange(len(labels)) < number}
        )
        drawn = [random_control(one, np.ones(len(labels), bool), seed) for seed in (1, 2)]
        lists = [KeepList(**{**vars(each), "labels": labels}) for each in drawn]
    paths = out / f"{kind}.csv", out / f"{kind}-random.csv"
    for path, each in zip(paths, lists, strict=True):
        write_keep_list(path, each, overwrite=True)
    return paths


def compare(part: Part, out: Path, number: int, until: float) -> bool:
    """Go on with one comparison; whether it is done."""
    if len(finished(part)) == part.num_runs:
        return True
    folder = out / part.name
    if part.file.exists():
        print(f"{restore(folder, part.file)} runs of other sittings are taken from {part.file}")
    keep, control = keep_lists(out, part.lists, part.batch)
    command = ["curate", "compare", str(RECIPE), "--data", str(data_file())]
    command += ["--keep", str(keep), "--random", str(control), "--out", str(folder)]
    command += ["--batch-sizes", str(part.batch), "--seeds", str(SEEDS)]
    command += ["--weight-decays", ",".join(map(str, part.decays))]
    command += ["--max-epochs", str(part.epochs(number))]
    try:
        return run(command, until, DEPTHS[0], part.epochs(number), part.drop_last)
    finally:
        if (folder / "settings.json").exists():
            print(
                f"{save(folder, part.file)} of {part.num_runs} runs are in {part.file}; commit it"
            )


def sit(out: Path, number: int, until: float) -> bool:
    """Go on for so long; whether all is done."""
    return (
        look_through(DEPTHS[0], out, until)
        and all(compare(part, out, number, until) for part in PARTS)
        and all(look_through(depth, out, until) for depth in DEPTHS[1:])
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/curation_paper"))
    parser.add_argument("--hours", type=float, default=8.0, help="length of this sitting")
    parser.add_argument("--data", type=Path, default=DATA, help="CIFAR-10's binary files")
    asked = parser.parse_args()
    for each in (signal.SIGINT, signal.SIGTERM):  # also where a shell had it ignored (`... &`)
        signal.signal(each, signal.default_int_handler)
    until = time.monotonic() + 3600 * asked.hours
    os.environ["CURATION_PAPER_DATA"] = str(asked.data)
    number = 10_000 * len(batches())
    if not number:
        sys.exit(f"{asked.data} holds no data_batch_1.bin; give CIFAR-10's folder with --data")
    say_estimate(number)
    if asked.hours <= 0:
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    if not sit(asked.out, number, until):
        print("not done yet: run the same command again")
        sys.exit(INTERRUPTED)
    print("done: run scripts/write_curation_docs.py")


if __name__ == "__main__":
    main()
