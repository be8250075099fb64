"""Which rates the range test of a study tries, and which it chooses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samepath.engine.run.options import Overrides, resolve
from samepath.errors import UserError
from samepath.recipe import find_recipe
from samepath.study import rates as module
from samepath.study.rates import largest_rate, range_epochs
from samepath.study.results import Rate


def search(monkeypatch: pytest.MonkeyPatch, losses: Any, recipe_rate: float = 1.0) -> Rate:
    """With runs that end with the loss of their rate (None: diverged)."""
    folders: dict[Path, float] = {}

    def read(folder: Path) -> dict[str, Any]:
        loss = losses(folders[folder])
        status = "diverged" if loss is None else "finished"
        return {"status": status, "result": {"valid_loss": loss, "message": ""}}

    def train(runs: Any) -> None:
        (run,) = runs
        assert (run.options.epochs, run.options.target) == (2, None)
        folders[Path("study") / run.folder] = run.options.learning_rate

    monkeypatch.setattr(module, "RunFolder", lambda path: SimpleNamespace(read=lambda: read(path)))
    options = resolve(find_recipe("digits"), Overrides(epochs=4))
    return largest_rate(options, recipe_rate, Path("study"), train)


def test_doubled_until_it_fails_then_halved_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    found = search(monkeypatch, lambda rate: None if rate > 5.0 else 1.0 / rate)
    tried = [t.learning_rate for t in found.tried]
    assert tried == pytest.approx([1.0, 2.0, 4.0, 2**2.25, 2**2.5, 8.0])
    assert found.value == pytest.approx(2**2.25)
    # 1.0 ended with more than twice the lowest loss, but only because it is slow
    assert [t.converged for t in found.tried] == [False, False, True, True, False, False]


def test_a_rate_that_ends_twice_as_high_does_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    found = search(monkeypatch, lambda rate: 1.0 if rate < 3.0 else 2.5)
    assert found.value == pytest.approx(2**1.5)
    assert {t.why for t in found.tried if not t.converged} == {"its loss stays high"}


def test_a_recipe_rate_that_is_too_high_goes_down(monkeypatch: pytest.MonkeyPatch) -> None:
    found = search(monkeypatch, lambda rate: 0.5 if rate < 0.3 else None)
    assert [t.learning_rate for t in found.tried] == pytest.approx(
        [0.25, 2**-1.75, 2**-1.5, 0.5, 1.0]
    )
    assert found.value == pytest.approx(2**-1.75)


def test_rates_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(monkeypatch, lambda rate: 1.0).value == 2.0**12
    with pytest.raises(UserError, match=r"no rate from 1 down to 0\.000244 converges in 2 epochs"):
        search(monkeypatch, lambda rate: None)


def test_short_beside_the_study() -> None:
    assert [range_epochs(epochs) for epochs in (1, 40, 100)] == [2, 2, 5]
