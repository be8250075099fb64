"""The critical batch measured by branches, beside what the noise scale says at the same step.

Runs `samepath advise --critical-batch measured` for each job, in folders that are gone on with, and
keeps what it found in benchmarks/results/critical_batch.json (other jobs' results stay).

    python benchmarks/critical_batch.py FOLDER [--jobs digits-2,digits-10]

(each job two or three minutes of two idle cores; cifar10-part-2, `cifar10-small` on 10,000 images
from ../shared/data, about six)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from about import commit
from samepath.timing.stopwatch import machine

DIGITS = ["digits", "--batch-size", "64", "--batch-sizes", "128,256,512,1024"]
NODULES = ["nodules-small", "--batch-size", "8", "--grain", "4", "--batch-sizes", "16,32,64,128"]
PART = os.path.relpath(Path(__file__).with_name("cifar10_part.py"))
CIFAR10 = [PART, "--batch-size", "64", "--batch-sizes", "128,256,512,1024"]
JOBS = {f"digits-{at}": [*DIGITS, "--branch-at", str(at), "--branch-epochs", "5"] for at in (2, 10)}
"""After which epoch of its 20: the noise scale grows meanwhile."""
JOBS["nodules-small-2"] = [*NODULES, "--branch-at", "2", "--branch-epochs", "2"]
JOBS["cifar10-part-2"] = [*CIFAR10, "--branch-at", "2", "--branch-epochs", "2"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the advice, one folder a job")
    parser.add_argument("--jobs", default=",".join(JOBS))
    given = parser.parse_args()
    out = Path(__file__).parent / "results" / "critical_batch.json"
    report = json.loads(out.read_text()) if out.exists() else {}
    for name in given.jobs.split(","):
        asked = ["advise", *JOBS[name], "--critical-batch", "measured"]
        place = ["--minutes", "0.3", "--out", str(given.folder / name), "--json"]
        program = str(Path(sys.executable).with_name("samepath"))
        done = subprocess.run([program, *asked, *place], stdout=subprocess.PIPE, check=True)
        advice = json.loads(done.stdout)
        found = advice["measured_batch"]
        for branch in found["branches"]:
            branch["curve"] = []  # long, and in the advice
        report[name] = {
            "command": " ".join(["samepath", *asked]),
            "verdict": advice["verdict"],
            "seconds": advice["seconds"]["branches_seconds"],
            "measured_batch": found,
        }
        print(name, advice["verdict"].rpartition(". ")[2])
    report["about"] = {"machine": machine(), "commit": commit()}
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
