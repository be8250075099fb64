"""Golden digests: what this code computed once, for changes that must not move a bit.

    python tests/parity/golden.py record    writes golden.json beside this file
    python tests/parity/golden.py check     trains everything again; exit code 1 where it differs

Trained are the built-in recipes that need no outside data, every strategy, every parity case and
every construct that keeps the promise, at 1, 2 and 3 workers; a run that is stopped and resumed at
another count; a run whose worker is killed; a curation, generated nodules and a Hessian's
eigenvalues. Bits depend on the processor, so golden.json names the one it was recorded on.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GOLDEN = HERE / "golden.json"
TINY = str(HERE / "tiny_recipe.py")
COUNTS = (1, 2, 3)
KILL_SECONDS = 120.0
COMMAND = [sys.executable, "-c", "from samepath.cli import main; main()"]

Found = dict[str, str]


def machine() -> dict[str, str]:
    """What bits depend on, of this machine."""
    from samepath.engine.checks.fingerprints import versions

    names = ("torch", "numpy", "machine", "cpu", "cpu_model", "cpu_caches", "kernels")
    return {name: value for name, value in versions().items() if name in names}


def sha(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def samepath(*arguments: str, check: bool = True) -> dict[str, Any]:
    """What a command prints with --json."""
    ended = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    if check and ended.returncode:
        raise SystemExit(f"samepath {' '.join(arguments)}: {ended.stderr}")
    return dict(json.loads(ended.stdout)) if "--json" in arguments else {}


def logged(folder: Path) -> list[dict[str, Any]]:
    """A run's metrics without its times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: v for name, v in line.items() if name != "seconds"} for line in lines]


def finished(folder: Path, result: dict[str, Any]) -> str:
    return f"{result['digest'][:16]} {sha([logged(folder), result['metrics']])}"


def trained(folder: Path, recipe: str, *options: str) -> str:
    return finished(folder, samepath("train", recipe, "--out", str(folder), "--json", *options))


def recipes(folder: Path) -> Iterator[tuple[str, str]]:
    for number in map(str, COUNTS):
        yield (
            f"digits -n {number}",
            trained(folder / f"digits-{number}", "digits", "-n", number, "--epochs", "2"),
        )
        yield (
            f"nodules-small -n {number}",
            trained(folder / f"small-{number}", "nodules-small", "-n", number, "--epochs", "1"),
        )
        yield (
            f"nodules -n {number}",
            trained(folder / f"nodules-{number}", "nodules", "-n", number, "--steps", "6"),
        )


def strategies(folder: Path) -> Iterator[tuple[str, str]]:
    from samepath.strategies.registry import BUILT_IN

    for name in BUILT_IN:
        if name == "asynchronous":
            continue  # whichever worker comes first
        for number in ("1", "3"):
            out = folder / f"{name}-{number}"
            options = ("--strategy", name, "--as-workers", "3", "-n", number, "--epochs", "3")
            yield f"strategy {name} -n {number}", trained(out, TINY, *options)


def resumed(folder: Path) -> Iterator[tuple[str, str]]:
    out = folder / "resumed"
    trained(out, TINY, "-n", "2", "--steps", "7")
    yield "stopped at 2 workers, resumed at 3", trained(out, TINY, "-n", "3", "--resume")


def killed(folder: Path) -> Iterator[tuple[str, str]]:
    """A worker of a range is killed; the run goes on by itself."""
    out = folder / "killed"
    started = subprocess.Popen(
        [*COMMAND, "train", TINY, "-n", "1:2", "--out", str(out), "--json"],
        env={**os.environ, "SLOW_SECONDS": "0.1"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + KILL_SECONDS
    metrics = out / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 2:
        if time.monotonic() > until:
            started.kill()
            raise SystemExit("the run to be hurt does not begin")
        time.sleep(0.02)
    servers = (c for c in _children(started.pid) if b"forkserver" in _command(c))
    os.kill(max(worker for server in servers for worker in _children(server)), signal.SIGKILL)
    printed, _ = started.communicate(timeout=KILL_SECONDS)
    yield "one of two workers killed", finished(out, json.loads(printed))


def _children(process: int) -> list[int]:
    files = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def _command(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def insight(folder: Path) -> Iterator[tuple[str, str]]:
    """What is computed from a trained run."""
    run = folder / "small-1"
    samepath("generate", str(run), "--count", "8", "--no-judge",
             "--out", str(folder / "generated.npz"))  # fmt: skip
    import numpy as np

    with np.load(folder / "generated.npz") as file:
        names = [name for name in file.files if name != "provenance"]  # which has the run's path
        parts = {name: hashlib.sha256(file[name].tobytes()).hexdigest() for name in names}
    yield "generated nodules", sha(parts)
    out = folder / "curated"
    samepath("curate", "digits", "--out", str(out), "--from", str(folder / "digits-1"), "-n", "1")
    yield "keep-list", sha((out / "keep.csv").read_text())


def bodies(folder: Path) -> Iterator[tuple[str, str]]:
    """Parity cases and constructs, which are Python and not recipes."""
    from samepath.engine.launch.launch import launch

    for number in COUNTS:
        launch(body, (str(folder),), number)
        found = json.loads((folder / f"bodies-{number}.json").read_text())
        yield from ((f"{name} -n {number}", value) for name, value in found.items())


def body(folder: str) -> None:
    """What every worker of a launch does."""
    sys.path.insert(0, str(HERE))
    import cases
    import constructs

    import samepath

    warnings.simplefilter("ignore")
    found: Found = {}
    with samepath.start(seed=7) as session:
        for name, make in cases.CASES.items():
            found[f"case {name}"] = sha(cases.run(make, session))
        for name, construct in constructs.CONSTRUCTS.items():
            if construct.verdict == "same bits":
                found[f"construct {name}"] = sha(constructs.train(construct.begin(), session))
        if session.worker == 0:
            (Path(folder) / f"bodies-{session.num_workers}.json").write_text(json.dumps(found))


PARTS: tuple[Callable[[Path], Iterator[tuple[str, str]]], ...] = (
    bodies, recipes, strategies, resumed, killed, insight,
)  # fmt: skip


def everything() -> Found:
    found: Found = {}
    with tempfile.TemporaryDirectory() as place:
        for part in PARTS:
            for name, value in part(Path(place)):
                found[name] = value
                print(f"{value:34} {name}", flush=True)
    return found


def between_counts(found: Found) -> list[str]:
    """Names whose value depends on the worker count."""
    groups: dict[str, set[str]] = {}
    for name, value in found.items():
        groups.setdefault(re.sub(r" -n \d$", "", name), set()).add(value)
    return [name for name, values in groups.items() if len(values) > 1]


def main() -> None:
    (what,) = sys.argv[1:] or ["check"]
    found = everything()
    different = between_counts(found)
    if different:
        raise SystemExit(f"differs between worker counts: {', '.join(different)}")
    if what == "record":
        text = json.dumps({"machine": machine(), "found": found}, indent=1, sort_keys=True)
        GOLDEN.write_text(text + "\n")
        print(f"{len(found)} values in {GOLDEN.name}")
        return
    golden = json.loads(GOLDEN.read_text())
    if golden["machine"] != machine():
        raise SystemExit(f"recorded on another machine: {golden['machine']}")
    names = sorted(golden["found"].keys() | found.keys())
    wrong = [name for name in names if golden["found"].get(name) != found.get(name)]
    if wrong:
        raise SystemExit("another result than the golden one: " + ", ".join(wrong))
    print(f"{len(found)} values, all as in {GOLDEN.name}")


if __name__ == "__main__":
    main()
