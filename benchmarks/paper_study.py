"""The paper's experiment, fairly tuned: an ordinary `samepath study`, in several sittings.

    python benchmarks/paper_study.py --hours 2
    taskset -c 1 nice -n 19 python benchmarks/paper_study.py --hours 2  # beside other work
    python benchmarks/paper_study.py --time-steps  # at the end, alone on the machine

Strong, weak, linear, warm-up, square-root scaling and LAMB with 1 to 32 workers on `nodules-small`,
as prescribed and tuned, five studies one after the other: some 950 runs. A sitting that is over
stops the study with SIGINT; the same command goes on, also on another machine: what came of
finished runs (their curves and ends) is kept in benchmarks/results/paper_study.jsonl, which every
sitting begins from and writes. Commit that file. A run that was under way goes on from its
checkpoint where the folder is still there, and begins again where it is not.

How long a step takes is no part of it: it is measured anew on the machine of each sitting, and the
pages are written only when that machine was idle (--time-steps measures again and trains nothing
that is known). Then its tables and figures go to docs/study.md, and every run's end to `results/`.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samepath.engine.state.run_folder import ENDED, RunFolder
from samepath.files import finite, read_object, write_atomically

STUDIES = 5
STUDY = (
    "nodules-small",
    *("--strategies", "strong,weak,linear,warmup,sqrt,lamb", "--workers", "1,2,4,8,16,32"),
    *("--max-epochs", "24", "--max-workers", "4", "--tune", "5"),
)
"""The limit is four times what the sequential run takes, as the paper's was."""
INTERRUPTED = 130
BUSY_CORES = 0.1
"""Used by other processes while steps were timed: more, and the times are not shown."""
KEPT = Path(__file__).parent / "results" / "paper_study.jsonl"
PAGES = Path(__file__).parents[1] / "scripts" / "write_study_docs.py"
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
        _restore_run(out / "runs" / name, runs[name])
    return len(missing)


def _restore_run(folder: Path, kept: Mapping[str, Any]) -> None:
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
        "starts": [{"command": ["restored from", KEPT.name], "versions": versions}],
        "result": kept["result"],
    }
    write_atomically(folder / "run.json", json.dumps(run, indent=2) + "\n")  # last: it is whole


# ---- a sitting


def sit(out: Path, hours: float) -> bool:
    """Go on with the study for so long; whether it is done."""
    until = time.monotonic() + 3600 * hours
    print(f"{restore(out, KEPT)} finished runs of other sittings are taken from {KEPT}", flush=True)
    try:
        for studies in range(1, STUDIES + 1):  # so that each is whole before the next begins
            if not _study(out, studies, until):
                return False
    finally:
        print(f"{save(out, KEPT)} finished runs are in {KEPT}; commit it", flush=True)
    return True


def _study(out: Path, studies: int, until: float) -> bool:
    command = [str(Path(sys.executable).with_name("samepath")), "study", *STUDY]
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
    parser.add_argument("--out", type=Path, default=Path("studies/paper"))
    parser.add_argument("--hours", type=float, default=2.0, help="length of this sitting")
    parser.add_argument("--time-steps", action="store_true", help="measure step times again")
    asked = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell had it ignored (`... &`)
        signal.signal(number, signal.default_int_handler)
    clock = asked.out / "clock.json"
    if asked.time_steps:
        clock.unlink(missing_ok=True)
    if not sit(asked.out, asked.hours):
        print("not done yet: run the same command again")
        sys.exit(INTERRUPTED)
    busy = json.loads(clock.read_text())["facts"]["busy_cores"]
    if busy > BUSY_CORES:
        sys.exit(
            f"all runs are done, but others used {busy:.1f} cores while steps were timed; run it "
            "again with --time-steps when the machine is idle"
        )
    subprocess.run([sys.executable, str(PAGES), "--tuned", str(asked.out)], check=True)
    print("done: docs/study.md and benchmarks/results are up to date")


if __name__ == "__main__":
    main()
