"""Gradients as factors, with real processes: every parity case and construct with factors wherever
a layer can, at 1 (in this process), 2, 3 and 5 workers, over both links, and against a plain loop.
"""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path

import pytest
from cases import CASES, run
from constructs import BATCH, CONSTRUCTS, Construct, plain_loop, train
from launches import Everything, Found, launch_at

from samepath.engine.comm.tensors import same_bits
from samepath.engine.run.session import Link, Session, start

SETTINGS: list[tuple[int, Link]] = [(2, "auto"), (3, "auto"), (5, "auto"), (3, "network")]
SAME = [c for c in CONSTRUCTS.values() if c.verdict == "same bits"]


def forced(session: Session) -> Session:
    session.prepare = partial(session.prepare, factors="always")  # type: ignore[method-assign]
    return session


def everything(session: Session) -> Found:
    """Train every case and construct."""
    warnings.simplefilter("ignore")
    found = {f"case {name}": run(make, forced(session)) for name, make in CASES.items()}
    return found | {c.name: train(c, forced(session)) for c in SAME}


def run_all(link: Link, folder: str) -> None:
    """The body of every worker."""
    with start(seed=7, link=link) as session:
        Path(folder, f"worker-{session.worker}.json").write_text(json.dumps(everything(session)))


@pytest.fixture(scope="module")
def alone() -> Found:
    with warnings.catch_warnings(), start(seed=7) as session:
        return everything(session)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    return launch_at(SETTINGS, run_all, tmp_path_factory)


@pytest.mark.parametrize("name", [*(f"case {name}" for name in CASES), *(c.name for c in SAME)])
def test_same_bits(name: str, alone: Found, found: Everything) -> None:
    parts = ("losses", "digests") if name.startswith("case ") else ("losses", "digest", "between")
    for (num_workers, link), workers in found.items():
        for worker in workers:
            for part in parts:
                assert worker[name][part] == alone[name][part], f"{num_workers} workers, {link}"


@pytest.mark.parametrize("construct", [c for c in SAME if c.plain], ids=lambda c: c.name)
def test_one_grain_is_a_plain_loop(construct: Construct) -> None:
    plain = plain_loop(construct)["tensors"]
    models = []

    def keep() -> object:
        models.append(construct.make())
        return models[-1]

    with warnings.catch_warnings(), start(seed=7) as session:
        warnings.simplefilter("ignore")
        kept = Construct(**{**vars(construct), "make": keep})
        result = train(kept, forced(session), grain_size=BATCH)
    assert "digest" in result, result
    model = models[0].model
    ours = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in plain.items():
        assert same_bits(value.detach(), ours[name].detach()), name
