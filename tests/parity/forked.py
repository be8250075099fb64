"""A process that no launcher started, for `verify`, without the seconds that imports take.

`verify` trains on one worker in a fresh interpreter. In most of its tests that process is forked
from the launcher's server instead, which has imported torch and done nothing else.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
from pathlib import Path

from samepath.engine.launch.reports import WorkerReport, read_reports
from samepath.engine.train import Request, train
from samepath.owners import owned_folder


def train_in_forked_process(request: Request) -> None:
    """What samepath.engine.verify.runs does in a fresh process."""
    with owned_folder() as reports:
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=_train, args=(request, Path(reports)))
        process.start()
        process.join()
        for report in read_reports(Path(reports)).values():
            raise report.error()
        if process.exitcode:
            raise WorkerReport.of_exit(0, process.exitcode, process.pid or 0).error()


def _train(request: Request, reports: Path) -> None:
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
    try:
        train(request)
    except BaseException as error:
        WorkerReport.of_error(0, error).write(reports)
        raise SystemExit(1) from None
