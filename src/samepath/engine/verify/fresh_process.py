"""One run in a process of its own, as `samepath train` would be started by a person.

In: a Request. Out: it has been trained; what it raised is raised here. Nothing that this process
has done reaches it: not its memory, not that it was started by multiprocessing.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from samepath.engine.launch.processes import interruptible
from samepath.engine.launch.reports import Report, read_reports
from samepath.engine.run.train import Request, train
from samepath.orphans import die_with_parent
from samepath.owners import owned_folder


def train_in_fresh_process(request: Request) -> None:
    """Train, and wait for the end."""
    with owned_folder() as reports:
        with interruptible():
            # -P: the folder one happens to be in is not importable under `samepath train`
            command = [sys.executable, "-P", "-m", "samepath.engine.verify.fresh_process"]
            with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
                try:
                    process.communicate(pickle.dumps((request, Path(reports))))
                except BaseException:
                    process.kill()
                    raise
        for report in read_reports(Path(reports)).values():
            raise report.error()
        if process.returncode:
            raise Report.of_exit(0, process.returncode, process.pid).error()


def _main() -> None:
    die_with_parent()
    request, reports = pickle.load(sys.stdin.buffer)
    try:
        train(request)
    except BaseException as error:
        Report.of_error(0, error).write(reports)
        raise SystemExit(1) from None


if __name__ == "__main__":
    _main()
