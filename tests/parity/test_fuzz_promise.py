"""A bounded run of the fuzzer for the promise (`benchmarks/fuzz_promise.py` is the long one)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from promise_fuzz import SEED, Crew, Spec, problems, specs

from samepath.engine.run.session import Session, start


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with start(seed=SEED) as session:
        yield session


@pytest.fixture(scope="module")
def crews() -> Iterator[list[Crew]]:
    with Crew(2) as two, Crew(3) as three:
        yield [two, three]


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(spec=specs())
def test_any_training_keeps_the_promise(spec: Spec, session: Session, crews: list[Crew]) -> None:
    assert problems(spec, session, crews) == []
