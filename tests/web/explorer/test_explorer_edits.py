"""Edits of a keep-list: undo, redo, and what a crash leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from curation_folders import make_curation_folder
from safetensors.numpy import load_file, save_file

from samepath.curation.folder import control_of
from samepath.data.keep_list import read_keep_list
from samepath.errors import UserError
from samepath.web.explorer.explorer import Explorer


@pytest.fixture
def explorer(tmp_path: Path) -> Explorer:
    return Explorer(make_curation_folder(tmp_path / "curated", 300))


@pytest.fixture
def folder(explorer: Explorer) -> Path:
    return explorer.folder.path


def rows(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


def kept_row(explorer: Explorer, number: int = 0) -> int:
    return int(np.flatnonzero(explorer.edits.columns.kept)[number])


def dropped_row(explorer: Explorer) -> int:
    return int(np.flatnonzero(~explorer.edits.columns.kept)[0])


def drop_one(explorer: Explorer) -> None:
    explorer.mark(rows(kept_row(explorer)), False)


def look(explorer: Explorer) -> list[list[object]]:
    return [column.tolist() for column in explorer.edits.columns]


def test_marks_have_reasons_and_can_be_undone(explorer: Explorer) -> None:
    before = look(explorer)
    kept, dropped = kept_row(explorer), dropped_row(explorer)
    answer = explorer.mark(rows(kept), False, "blurred")
    assert answer["undo"] == f"drop example {kept}"
    assert explorer.edits.columns.reasons[kept] == "dropped by hand"
    assert explorer.edits.columns.notes[kept] == "blurred"
    explorer.mark(rows(dropped), True)
    assert explorer.edits.columns.reasons[dropped] == "kept by hand"
    after = look(explorer)
    explorer.undo()
    explorer.undo()
    assert look(explorer) == before
    assert explorer.edits.is_saved
    with pytest.raises(UserError, match="nothing to undo"):
        explorer.undo()
    explorer.redo()
    explorer.redo()
    assert look(explorer) == after
    with pytest.raises(UserError, match="nothing to redo"):
        explorer.redo()
    explorer.undo()
    assert explorer.note(rows(5), "odd")["redo"] is None, "a new edit ends what could be redone"


def test_what_is_so_already_is_no_edit(explorer: Explorer) -> None:
    with pytest.raises(UserError, match="already kept"):
        explorer.mark(rows(kept_row(explorer)), True)
    assert not explorer.edits.journal.exists()
    dropped = dropped_row(explorer)
    both = explorer.mark(np.sort(rows(kept_row(explorer), dropped)), True)
    assert both["rows"] == [dropped]


def test_opened_again_everything_is_there(explorer: Explorer, folder: Path) -> None:
    explorer.mark(rows(kept_row(explorer), kept_row(explorer, 7)), False, "why")
    explorer.use(explorer.cluster(3, 1.0, 4))
    explorer.note(rows(11), "a note")
    explorer.undo()
    lines = [json.loads(line) for line in explorer.edits.journal.read_text().splitlines()]
    assert lines[0]["keep"] == "keep.csv"
    assert lines[3]["edit"] == "note on example 11"
    assert lines[4] == {"undo": 1}
    again = Explorer(folder)  # the first one never ended: as after a crash
    assert look(again) == look(explorer)
    assert again.state() == explorer.state()
    assert again.state()["settings"] == {3: (1.0, 4)}
    assert again.redo()["notes"] == ["a note"]


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_line_that_was_cut_off_is_as_if_never_begun(
    explorer: Explorer, folder: Path, cut: int
) -> None:
    drop_one(explorer)
    whole = look(explorer)
    drop_one(explorer)
    journal = explorer.edits.journal
    os.truncate(journal, journal.stat().st_size - cut)
    again = Explorer(folder)
    assert look(again) == whole
    again.note(rows(1), "goes on")
    assert Explorer(folder).edits.columns.notes[1] == "goes on"


def test_a_damaged_journal_is_named(explorer: Explorer, folder: Path) -> None:
    drop_one(explorer)
    with explorer.edits.journal.open("a") as file:
        file.write('{"edit": "x", "rows": [100000]}\n{"undo": 1}\n')
    with pytest.raises(UserError, match=r"keep\.csv\.edits, line 3 cannot be read"):
        Explorer(folder)


def test_edits_of_another_keep_list_are_set_aside(explorer: Explorer, folder: Path) -> None:
    drop_one(explorer)
    content = explorer.edits.journal.read_bytes()
    text = (folder / "keep.csv").read_text()
    (folder / "keep.csv").write_text(text.replace(",noise", ",outlier"))
    again = Explorer(folder)
    assert again.state()["num_edits"] == 0
    assert again.edits.set_aside == folder / "keep.csv.edits-1"
    assert (folder / "keep.csv.edits-1").read_bytes() == content
    assert not (folder / "keep.csv.edits").exists()


def test_saving_never_writes_over(explorer: Explorer, folder: Path) -> None:
    first, row = (folder / "keep.csv").read_bytes(), kept_row(explorer)
    explorer.mark(rows(row), False, 'a, "quoted" note')
    saved = explorer.save()
    assert saved["file"] == str(folder / "keep-2.csv")
    assert saved["train"] == f"samepath train digits --keep {folder / 'keep-2.csv'}"
    assert saved["is_saved"]
    second = (folder / "keep-2.csv").read_bytes()
    (folder / "keep-7.csv").write_bytes(second)
    explorer.undo()
    assert not explorer.edits.is_saved
    assert explorer.save()["file"] == str(folder / "keep-8.csv")
    assert (folder / "keep.csv").read_bytes() == first
    assert (folder / "keep-2.csv").read_bytes() == second
    back = read_keep_list(folder / "keep-2.csv")
    assert not back.kept[row]
    assert back.reasons[row] == "dropped by hand"
    assert back.notes is not None
    assert back.notes[row] == 'a, "quoted" note'
    undone, base = read_keep_list(folder / "keep-8.csv"), read_keep_list(folder / "keep.csv")
    assert undone.kept.tolist() == base.kept.tolist()
    assert np.array_equal(undone.positions, base.positions)


def test_a_saved_list_has_a_control_of_its_size(explorer: Explorer, folder: Path) -> None:
    """What `samepath curate compare --keep keep-2.csv` trains beside it."""
    explorer.mark(rows(*[kept_row(explorer, n) for n in range(5)]), False)
    (folder / "random-4.csv").write_text("mine")
    saved = Path(explorer.save()["file"])
    assert saved.name == "keep-5.csv", "random-4.csv is not written over"
    control = control_of(saved)
    assert control == folder / "random-5.csv"
    edited, drawn = read_keep_list(saved), read_keep_list(control)
    assert edited.labels is not None
    for label in range(10):
        mine = edited.labels == label
        assert drawn.kept[mine].sum() == edited.kept[mine].sum()
    assert not np.array_equal(drawn.kept, edited.kept)
    assert control_of(folder / "keep.csv") == folder / "random.csv"
    assert control_of(folder / "keep-9.csv") == folder / "random.csv", "of an older samepath"


def test_a_control_is_of_what_the_curation_began_with(explorer: Explorer, folder: Path) -> None:
    candidates = np.arange(300) % 3 > 0
    file = folder / "map.safetensors"
    save_file(load_file(file) | {"candidates": candidates}, file)
    again = Explorer(folder)
    again.mark(np.flatnonzero(~candidates), False)
    kept = int(np.flatnonzero(~candidates)[0])
    again.mark(rows(kept), True)
    control = read_keep_list(control_of(Path(again.save()["file"])))
    assert not control.kept[np.flatnonzero(~candidates)[1:]].any()
    assert control.kept.sum() == again.edits.columns.kept.sum()


def test_after_a_save(explorer: Explorer, folder: Path) -> None:
    base = look(explorer)
    drop_one(explorer)
    edited = look(explorer)
    explorer.save()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    Explorer(folder, folder / "keep.csv", read_only=True)
    newest = Explorer(folder, read_only=True)
    assert newest.keep.name == "keep-2.csv"
    assert look(newest) == edited
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files, "only looked at"
    drop_one(explorer)
    again = Explorer(folder)
    assert again.keep.name == "keep.csv", "which has unsaved edits"
    assert look(again) == look(explorer)
    again.undo()
    assert look(Explorer(folder, folder / "keep.csv")) == base, "its edits are all saved"


def test_clusters_leave_what_was_decided_otherwise(explorer: Explorer) -> None:
    columns, labels = explorer.edits.columns, explorer.curation.labels
    mine, of_others = np.flatnonzero(labels == 2), np.flatnonzero(labels != 2)
    by_hand = int(next(row for row in mine if columns.kept[row]))
    explorer.mark(rows(by_hand), False)
    others = [r for r in mine if columns.reasons[r] in ("duplicate", "label error")]
    other_classes = [column.tolist() for column in columns.take(of_others)]
    explorer.use(explorer.cluster(2, 1e-4, 5))  # all noise
    assert (columns.clusters[mine] == -1).all()
    assert not columns.kept[mine].any()
    assert columns.reasons[by_hand] == "dropped by hand"
    assert all(columns.reasons[r] in ("duplicate", "label error") for r in others)
    explorer.use(explorer.cluster(2, 1e4, 2))  # one cluster
    assert (columns.clusters[mine] == 0).all()
    free = [r for r in mine if r != by_hand and r not in others]
    assert columns.kept[free].all()
    assert not columns.kept[by_hand]
    assert [column.tolist() for column in columns.take(of_others)] == other_classes


def test_what_cannot_be_written_is_not_done(explorer: Explorer) -> None:
    before = look(explorer)
    explorer.edits.journal.mkdir()
    with pytest.raises(UserError, match="nothing was changed"):
        drop_one(explorer)
    assert look(explorer) == before
    assert explorer.state()["undo"] is None


def test_relabelled_examples_are_kept_and_saved_with_their_label(
    explorer: Explorer, folder: Path
) -> None:
    own = explorer.curation.labels
    suggested = explorer.known["suggested"]
    rows = np.flatnonzero((suggested != own) & ~explorer.edits.columns.kept)[:2]
    explorer.mark(rows[:1], kept=True)
    explorer.mark(rows[:1], kept=False)
    explorer.relabel(rows, None, "as the model says")
    now = explorer.edits.columns
    assert now.kept[rows].all()
    assert now.targets[rows].tolist() == suggested[rows].tolist()
    assert set(now.reasons[rows]) == {"relabelled by hand"}
    with pytest.raises(UserError, match="already as suggested"):
        explorer.relabel(rows, None)
    same = np.flatnonzero(now.kept & (now.reasons == ""))[:1]
    with pytest.raises(UserError, match="already as"):
        explorer.relabel(same, int(own[same[0]]))
    again = Explorer(folder)
    assert again.edits.columns.targets.tolist() == now.targets.tolist(), "from the journal"
    explorer.relabel(rows[1:], 3)
    saved = read_keep_list(Path(explorer.save()["file"]))
    assert saved.decisions[rows[0]] == saved.decisions[rows[1]] == "relabel"
    assert saved.targets is not None
    assert saved.targets[rows].tolist() == [suggested[rows[0]], 3]
    assert saved.doubt is None or np.isfinite(saved.doubt).all()
    reopened = Explorer(folder, Path(folder / "keep-2.csv"))
    assert reopened.edits.columns.targets[rows].tolist() == saved.targets[rows].tolist()
    reopened.mark(rows, kept=True)
    assert (reopened.edits.columns.targets == -1).all(), "kept: with their own labels"


def test_a_review_is_remembered(explorer: Explorer, folder: Path) -> None:
    assert explorer.reviewed(np.array([3, 5]))["num_reviewed"] == 2
    assert explorer.reviewed(np.array([5, 8]))["num_reviewed"] == 3
    file = folder / "reviewed.txt"
    assert file.read_text() == "3\n5\n8\n"
    with file.open("a") as cut:
        cut.write("1")  # of 14, say
    again = Explorer(folder)
    assert np.flatnonzero(again.review.seen).tolist() == [3, 5, 8]
    again.reviewed(np.array([9]))
    assert file.read_text() == "3\n5\n8\n9\n"
    assert again.reviewed(None)["num_reviewed"] == 0
    assert not Explorer(folder).review.seen.any()
    file.write_text("3\nx\n")
    with pytest.raises(UserError, match=r"reviewed\.txt: 'x' is no example"):
        Explorer(folder)
