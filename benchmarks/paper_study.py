"""The paper's experiment, fairly tuned, and a profile over three recipes: ordinary runs of
`samepath study`, in several sittings.

    python benchmarks/paper_study.py --hours 2
    taskset -c 1 nice -n 19 python benchmarks/paper_study.py --hours 2  # beside other work
    python benchmarks/paper_study.py --time-steps  # at the end, alone on the machine
    python benchmarks/paper_study.py --time-steps --studies 2  # when no more than two are whole
    python benchmarks/paper_study.py --job profile  # about an hour of one core

`paper`: strong, weak, linear, warm-up, square-root scaling and LAMB with 1 to 32 workers on
`nodules-small`, as prescribed and tuned, five studies one after the other: some 950 runs.
`profile`: the same strategies with 1, 4 and 16 workers and three trials on three recipes, once
(CIFAR-10 from ../shared/data, or the folder in SAMEPATH_DATA).

A sitting that is over stops the study with SIGINT; the same command goes on, also on another
machine: what came of finished runs (their curves and ends) is kept in benchmarks/results/*.jsonl,
which every sitting begins from and writes. Commit those files. A run that was under way goes on
from its checkpoint where the folder is still there, and begins again where it is not.

How long a step takes is no part of it: it is measured anew on the machine of each sitting, and the
pages are written only when that machine was idle (--time-steps measures again and trains nothing
that is known). Then its tables and figures go to docs/study.md, and every run's end to `results/`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samepath.engine.state.run_folder import ENDED, RunFolder
from samepath.files import finite, read_object, write_atomically

HERE = Path(__file__).parent
RESULTS = HERE / "results"
STRATEGIES = ("--strategies", "strong,weak,linear,warmup,sqrt,lamb")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A study of one recipe or several, repeated: what is typed, and where it is written."""

    recipes: tuple[str, ...]
    flags: tuple[str, ...]
    studies: int
    kept: str
    """The beginning of the names of the files in which finished runs are kept."""
    page: str
    """The option of `write_study_docs.py`."""

    def places(self, out: Path) -> list[tuple[Path, Path]]:
        """The folder of each recipe's study, and the file that its finished runs are kept in."""
        if len(self.recipes) == 1:
            return [(out, RESULTS / f"{self.kept}.jsonl")]
        names = [Path(recipe).stem for recipe in self.recipes]
        return [(out / name, RESULTS / f"{self.kept}_{name}.jsonl") for name in names]


JOBS = {
    "paper": Job(
        recipes=("nodules-small",),
        # the limit is four times what the sequential run takes, as the paper's was
        flags=(
            *(*STRATEGIES, "--workers", "1,2,4,8,16,32"),
            *("--max-epochs", "24", "--max-workers", "4", "--tune", "5"),
        ),
        studies=5,
        kept="paper_study",
        page="--tuned",
    ),
    "profile": Job(
        recipes=("digits", os.path.relpath(HERE / "cifar10_part.py"), "nodules-small"),
        flags=(*STRATEGIES, "--workers", "1,4,16", "--tune", "3"),
        studies=1,
        kept="profile_study",
        page="--profile",
    ),
}
INTERRUPTED = 130
BUSY_CORES = 0.1
"""Used by other processes while steps were timed: more, and the times are not shown."""
PAGES = HERE.parent / "scripts" / "write_study_docs.py"
OF_RESULT = ("status", "steps", "epochs", "train_loss", "valid_loss", "message", "digest")
OF_EPOCH = ("step", "epoch", "epoch_train_loss", "batch_size", "seconds")


# ---- finished runs in one file


def save(out: Path, file: Path) -> int:
    """Write what came of a study's finished runs, beside what the file has of others; how many
    there are."""
    _, runs = _read(file)
    for folder in sorted(out.glob("runs/*")):
        if not (folder / "run.json").exists():
            continue
        run = RunFolder(folder).read()
        if run["status"] in ENDED:
            versions = run["starts"][-1]["versions"]
            runs[folder.name] = {
                "run": folder.name,
                "config": run["config"],
                "torch": versions["torch"],
                "cpu": versions["cpu_model"],
                "result": {key: run["result"][key] for key in OF_RESULT},
                "epochs": _epochs(RunFolder(folder)),
            }
    configs = [run["config"] for run in runs.values()]
    common = {
        name: value
        for name, value in (configs[0] if configs else {}).items()
        if all(config.get(name, ...) == value for config in configs)
    }
    lines: list[dict[str, Any]] = [{"settings": read_object(out / "settings.json")}]
    lines[0]["config"] = common
    for _, run in sorted(runs.items()):
        own = {name: value for name, value in run["config"].items() if name not in common}
        lines.append(run | {"config": own})
    write_atomically(file, "".join(json.dumps(finite(line)) + "\n" for line in lines))
    return len(runs)


def _read(file: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The study's settings, and each run with its whole configuration."""
    if not file.exists():
        return {}, {}
    first, *lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    runs = {line["run"]: line | {"config": first["config"] | line["config"]} for line in lines}
    return first["settings"], runs


def _epochs(run: RunFolder) -> dict[str, list[Any]]:
    """What a study reads of epochs: their ends, the highest and the last rate in each, and what the
    strategy measured after it."""
    ends: list[dict[str, Any]] = []
    rates: list[float] = []
    for line in run.read_metrics():
        if "learning_rate" in line:
            rates.append(line["learning_rate"])
        elif "measured" in line:
            ends[-1]["measured"] = line["measured"]
        elif "epoch_train_loss" in line:
            kept = {n: v for n, v in line.items() if n in OF_EPOCH or n.startswith("valid_")}
            kept["seconds"] = round(line["seconds"], 1)  # it says only how long the sitting took
            ends.append(kept | {"rates": [max(rates), rates[-1]]})
            rates.clear()
    names = dict.fromkeys(name for end in ends for name in end)
    return {name: [end.get(name) for end in ends] for name in names}


def restore(out: Path, file: Path) -> int:
    """Make the folders of finished runs that are not here; how many."""
    settings, runs = _read(file)
    if settings and not (out / "settings.json").exists():
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "settings.json", json.dumps(settings, indent=2) + "\n")
    missing = [name for name in runs if not (out / "runs" / name).exists()]
    for name in missing:
        _restore_run(out / "runs" / name, runs[name], file.name)
    return len(missing)


def _restore_run(folder: Path, kept: Mapping[str, Any], source: str) -> None:
    """Write what a study reads of a finished run."""
    folder.mkdir(parents=True)
    lines = []
    names = kept["epochs"].keys()
    for values in zip(*kept["epochs"].values(), strict=True):
        end = {name: v for name, v in zip(names, values, strict=True) if v is not None}
        rates, measured = end.pop("rates"), end.pop("measured", None)
        place = {"step": end["step"], "epoch": end["epoch"]}
        lines += [place | {"learning_rate": rate} for rate in rates] + [end]
        if measured is not None:
            lines.append(place | {"measured": measured})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    versions = {"torch": kept["torch"], "cpu_model": kept["cpu"]}
    run = {
        "status": kept["result"]["status"],
        "config": kept["config"],
        "starts": [{"command": ["restored from", source], "versions": versions}],
        "result": kept["result"],
    }
    write_atomically(folder / "run.json", json.dumps(run, indent=2) + "\n")  # last: it is whole


# ---- a sitting


def sit(job: Job, out: Path, hours: float, studies: int) -> bool:
    """Go on with so many studies for so long; whether they are done."""
    until = time.monotonic() + 3600 * hours
    for folder, file in job.places(out):
        print(f"{restore(folder, file)} finished runs are taken from {file}", flush=True)
    try:
        for number in range(1, studies + 1):  # so that each is whole before the next begins
            if not _study(job, out, number, until):
                return False
    finally:
        for folder, file in job.places(out):
            if (folder / "settings.json").exists():
                print(f"{save(folder, file)} finished runs are in {file}; commit it", flush=True)
    return True


def _study(job: Job, out: Path, studies: int, until: float) -> bool:
    command = [str(Path(sys.executable).with_name("samepath")), "study", *job.recipes, *job.flags]
    command += ["--studies", str(studies), "--out", str(out)]
    print(" ".join(command), flush=True)
    study = subprocess.Popen(command, process_group=0)  # Ctrl-C reaches it once, from here
    try:
        code = study.wait(timeout=max(0.0, until - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        study.send_signal(signal.SIGINT)
        code = study.wait()
    if code not in (0, INTERRUPTED):
        sys.exit(code)
    return code == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--job", choices=JOBS, default="paper")
    parser.add_argument("--out", type=Path, help="[studies/JOB]")
    parser.add_argument("--hours", type=float, default=2.0, help="length of this sitting")
    parser.add_argument("--studies", type=int, help="go no further than this many  [the job's]")
    parser.add_argument("--time-steps", action="store_true", help="measure step times again")
    asked = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell had it ignored (`... &`)
        signal.signal(number, signal.default_int_handler)
    job, out = JOBS[asked.job], asked.out or Path("studies") / asked.job
    studies = job.studies if asked.studies is None else min(asked.studies, job.studies)
    clocks = [folder / "clock.json" for folder, _ in job.places(out)]
    if asked.time_steps:
        for clock in clocks:
            clock.unlink(missing_ok=True)
    if not sit(job, out, asked.hours, studies):
        print("not done yet: run the same command again")
        sys.exit(INTERRUPTED)
    busy = max(json.loads(clock.read_text())["facts"]["busy_cores"] for clock in clocks)
    if busy > BUSY_CORES:
        sys.exit(
            f"all runs are done, but others used {busy:.1f} cores while steps were timed; run it "
            "again with --time-steps when the machine is idle"
        )
    write = [sys.executable, str(PAGES), job.page, str(out), "--of", str(job.studies)]
    subprocess.run(write, check=True)
    print("done: docs/study.md and benchmarks/results are up to date")


if __name__ == "__main__":
    main()
