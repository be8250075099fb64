"""Records in shared memory stay whole, also where a gather is begun and given up."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from samepath.engine.comm.shared_memory import SharedMemory
from samepath.engine.launch.launch import launch
from samepath.engine.run.session import start


def give_one_up(folder: str) -> None:
    """The body of every worker: worker 1 reads its first record late, and both give up the second,
    as a step does that raises before its record is read."""
    with start() as session:
        collective = session.collective
        assert isinstance(collective, SharedMemory)
        mine = np.full(8, session.worker, np.uint8)
        end = collective.gather_begin(mine)
        if session.worker == 1:
            time.sleep(0.3)
        found = [end()]
        collective.gather_begin(mine + 10)
        found += [collective.gather(mine + 20), end()]
        Path(folder, str(session.worker)).write_text(str([np.stack(f).tolist() for f in found]))


def test_a_gather_that_is_given_up(tmp_path: Path) -> None:
    launch(give_one_up, (str(tmp_path),), 2)
    rows = [[[0] * 8, [1] * 8], [[20] * 8, [21] * 8], [[0] * 8, [1] * 8]]
    assert [Path(tmp_path, w).read_text() for w in "01"] == [str(rows)] * 2
