"""What `samepath ui` finds under a folder, and what it never opens."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from ui_folders import make_finding, make_run

from samepath.files import lock_folder
from samepath.insight.folder import BRANCHES, KINDS
from samepath.web.dashboard import contents
from samepath.web.dashboard.contents import MARKS, RootFolder, search


def found_in(folder: Path) -> dict[str, str]:
    return {item.folder: item.kind for item in search(RootFolder(folder)).items}


def test_every_kind_of_finding_is_known() -> None:
    assert {f"{kind}.json": kind for kind in KINDS}.items() <= MARKS.items()


def test_things_and_what_they_are_part_of(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a")
    make_finding(tmp_path / "insight" / "digits-advice-1", "advice")
    study = tmp_path / "studies" / "s"
    make_run(study / "runs" / "k1")
    (study / "settings.json").write_text("{}")
    make_run(tmp_path / "curated" / "extractor")
    (tmp_path / "curated" / "curation.json").write_text("{}")
    for hidden in (".venv", "node_modules", ".git", "runs/a/checkpoints", "runs/a/weights"):
        make_run(tmp_path / hidden / "no")
    make_run(tmp_path / "env" / "lib" / "no")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    items = {item.folder: item for item in search(RootFolder(tmp_path)).items}
    assert {folder: item.kind for folder, item in items.items()} == {
        "runs/a": "run",
        "insight/digits-advice-1": "advice",
        "studies/s": "study",
        "studies/s/runs/k1": "run",
        "curated": "curation",
        "curated/extractor": "run",
    }
    assert items["studies/s/runs/k1"].parent == items["studies/s"].id
    assert items["curated/extractor"].parent == items["curated"].id
    assert items["runs/a"].parent is None
    (study / "study.json").write_text("{}")
    assert {item.id for item in search(RootFolder(tmp_path)).items} == {
        t.id for t in items.values()
    }


def test_branches_belong_to_the_study_they_were_made_for(tmp_path: Path) -> None:
    """While they are trained they are a study under way; later their study has what they found."""
    study, branches = tmp_path / "s", tmp_path / "s" / BRANCHES
    make_run(study / "runs" / "k1")
    make_run(branches / "runs" / "base")
    for folder in (study, branches):
        (folder / "settings.json").write_text("{}")
    assert found_in(tmp_path)["s/branches"] == "study"
    (study / "study.json").write_text("{}")
    items = {item.folder: item for item in search(RootFolder(tmp_path)).items}
    assert items.keys() == {"s", "s/runs/k1", "s/branches/runs/base"}
    assert items["s/branches/runs/base"].parent == items["s"].id


def test_the_folder_itself_can_be_a_run(tmp_path: Path) -> None:
    assert found_in(make_run(tmp_path / "a")) == {".": "run"}


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    make_run(outside / "a")
    make_run(inside / "b")
    (inside / "out").symlink_to(outside)
    (inside / "within").symlink_to(inside / "b")
    (inside / "c").mkdir()
    (inside / "c" / "run.json").symlink_to(outside / "a" / "run.json")
    os.mkfifo(inside / "study.json")
    result = search(RootFolder(inside))
    assert [item.folder for item in result.items] == ["b"]
    assert result.notes == ("links that lead out of this folder and are not followed: 1",)


def test_nothing_is_opened_through_a_link_or_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "in" / "a").mkdir(parents=True)
    root = RootFolder(tmp_path / "in")
    (tmp_path / "in" / "a" / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "in" / "a" / "pipe")
    (tmp_path / "in" / "b").symlink_to(tmp_path)  # was a folder when it was found
    why = {
        ("a", "link"): "symbolic links",
        ("a", "pipe"): "no plain file",
        ("b", "secret"): "a link to another place",
        ("a", "none"): "No such file",
        (".", "a"): "no plain file",
    }
    for (folder, name), words in why.items():
        with pytest.raises(OSError, match=words):
            root.open(folder, name)


def test_a_folder_that_was_named_through_a_link_is_opened(tmp_path: Path) -> None:
    make_run(tmp_path / "real" / "a")
    (tmp_path / "short").symlink_to(tmp_path / "real")
    root = RootFolder(tmp_path / "short")
    assert [item.folder for item in search(root).items] == ["a"]
    assert root.shown("a") == str(tmp_path / "short" / "a")
    root.open("a", "run.json").close()


def test_the_walk_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(12):
        make_run(tmp_path / f"r{k}", 1)
    deep = tmp_path / "1/2/3/4/5/6/7"
    make_run(deep, 1)
    assert len(found_in(tmp_path)) == 12
    monkeypatch.setattr(contents, "MAX_ITEMS", 5)
    result = search(RootFolder(tmp_path))
    assert len(result.items) == 5
    assert "there is more than 5" in result.notes[0]
    monkeypatch.setattr(contents, "MAX_FOLDERS", 3)
    assert "3 folders" in search(RootFolder(tmp_path)).notes[0]


def test_a_lock_is_seen_and_never_in_the_way(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    root = RootFolder(tmp_path)
    assert not root.is_locked("a")
    assert not root.is_locked("gone")
    held = lock_folder(tmp_path / "a", "held")
    assert root.is_locked("a")
    os.close(held)
    assert not root.is_locked("a")
    stop = threading.Event()

    def probe() -> None:
        while not stop.is_set():
            root.is_locked("a")

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        for _ in range(20):  # as a run that begins takes it
            os.close(lock_folder(tmp_path / "a", "held"))
    finally:
        stop.set()
        thread.join()
