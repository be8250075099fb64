"""Who is blamed for what evidence."""

from __future__ import annotations

import pytest

from samepath.engine.verify.compare import GrainParting, Parting
from samepath.engine.verify.explain import Evidence, explain
from samepath.engine.verify.trace import GrainEvent


def evidence(point: str = "output", name: str = "noise", **changes: object) -> Evidence:
    event = GrainEvent(point, name, "", "1")
    agreed = [GrainEvent("backward", "head", None, "1")]
    given: dict[str, object] = {
        "parting": Parting(3, "model/a.weight"),
        "event": GrainParting(4, False, event, agreed),
        "repeatable": False,
        "reproduced": True,
        "kinds": {"": "Net", "noise": "Noise", "head": "Linear"},
    }
    return Evidence(**(given | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("point", "where", "module", "word"),
    [
        ("loaded", "data", None, "__getitem__"),
        ("weight", "weight", None, "weight"),
        ("augmented", "augment", None, "draws"),
        ("input", "module", "", "global generator"),
        ("call", "module", "", "global generator"),
        ("output", "module", "noise", "global generator"),
        ("loss", "loss", None, "model and the batch"),
        ("gradient", "gradient", "head", "save_for_backward"),
        ("backward", "gradient", "head", "save_for_backward"),
    ],
)
def test_the_first_event_decides_who_is_blamed(
    point: str, where: str, module: str | None, word: str
) -> None:
    cause = explain(evidence(point))
    assert (cause.where, cause.module) == (where, module)
    assert word in cause.remedy
    assert "4" in cause.found


def test_a_buffer_blames_its_module() -> None:
    assert explain(evidence("buffer", "noise.mean")).module == "noise"


def test_what_repeats_is_state_and_what_does_not_comes_from_outside() -> None:
    kept, drawn = explain(evidence(repeatable=True)), explain(evidence(repeatable=False))
    assert "keeps" in kept.likely
    assert "buffer" in kept.remedy
    assert "process id" in drawn.likely


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"parting": Parting(0, "model/a.weight")}, "initial weights"),
        ({"parting": Parting(0, "groups")}, "settings"),
        ({"event": None}, "update"),
        ({"event": None, "same_batch_gradient": False}, "sum"),
        ({"event": None, "parting": Parting(3, "valid loss")}, "evaluate"),
        ({"reproduced": False}, "unknown"),
    ],
)
def test_without_an_event_the_stage_is_blamed(changes: dict[str, object], where: str) -> None:
    assert explain(evidence(**changes)).where == where  # type: ignore[arg-type]


def test_data_made_by_the_recipe_have_a_remedy_of_their_own() -> None:
    assert "manual_seed" in explain(evidence("loaded", data_in_memory=True)).remedy


def test_a_run_that_was_continued_has_lost_something() -> None:
    kept = explain(evidence(repeatable=True, resumed_at=2))
    assert (kept.where, kept.module) == ("resume", "noise")
    assert "read back as it was" in kept.found
    assert "its output differs" in kept.found
    not_read = explain(evidence(repeatable=True, resumed_at=3, event=None))
    assert not_read.where == "resume"
    assert "is not what was read back" in not_read.found
    drawn = explain(evidence(repeatable=False, resumed_at=2))
    assert drawn.where == "module", "another run would part too: it is no fault of the checkpoint"


@pytest.mark.parametrize("name", ["digest", "message", "logged train_loss"])
def test_what_only_the_end_shows_is_our_fault(name: str) -> None:
    assert explain(evidence(parting=Parting(3, name), event=None)).where == "end"
