"""Where findings are kept, and how they come into a run's report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from samepath.errors import UserError
from samepath.insight.folder import Kind, choose_folder, kind_of, read_finding, write_finding
from samepath.report.show import finding_sections


def write(folder: Path, kind: Kind, recipe: str = "digits", **content: Any) -> Path:
    write_finding(folder, kind, recipe=recipe, command=["samepath", kind], content=content)
    figure = Figure((1, 1))
    figure.savefig(folder / "a_picture.png")
    return folder


def test_numbers_go_up_and_what_is_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = choose_folder("profile", "some/where/mine.py", None)
    assert first == Path("insight/mine-profile-1")
    assert not first.exists(), "made only when there is something to write"
    write(first, "profile")
    assert choose_folder("profile", "mine.py", None) == Path("insight/mine-profile-2")
    (tmp_path / "empty").mkdir()
    assert choose_folder("advice", "mine.py", Path("empty")) == Path("empty")
    with pytest.raises(UserError, match="is not empty; give a new folder"):
        choose_folder("advice", "mine.py", first)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file; give a folder"):
        choose_folder("advice", "mine.py", Path("file"))


def test_there_and_back(tmp_path: Path) -> None:
    write(tmp_path / "a", "advice", value=float("nan"))
    assert kind_of(tmp_path / "a") == "advice"
    assert read_finding(tmp_path / "a", "advice")["value"] == "nan"
    with pytest.raises(UserError, match="holds no profile"):
        read_finding(tmp_path / "a", "profile")
    for damage, words in (
        ("{", "cannot be read"),
        ('{"format": 9}', "has format 9"),
        ("[]", "read"),
    ):
        (tmp_path / "a" / "advice.json").write_text(damage)
        with pytest.raises(UserError, match=words):
            read_finding(tmp_path / "a", "advice")


def test_the_newest_of_each_kind_about_this_run(tmp_path: Path) -> None:
    run, other = tmp_path / "runs/digits-1", tmp_path / "runs/digits-2"
    run.mkdir(parents=True)
    insight = tmp_path / "insight"
    write(insight / "digits-profile-1", "profile", verdict="old")
    write(insight / "digits-profile-2", "profile", verdict="new")
    write(insight / "nodules-profile-1", "profile", recipe="nodules", verdict="another recipe's")
    write(insight / "a-curvature-1", "curvature", runs=[{"path": str(run)}], verdict="flat")
    write(insight / "a-curvature-2", "curvature", runs=[{"path": str(other)}], verdict="sharp")
    write(run / "advice", "advice", verdict="take two")
    sections = finding_sections(run, "digits")
    words = {section.heading: section.words for section in sections if section.picture is None}
    assert words == {"Advice": "take two", "Curvature": "flat", "Profile": "new"}
    pictures = [section for section in sections if section.picture is not None]
    assert [p.heading.split(":")[1] for p in pictures] == [" a picture"] * 3


def test_a_damaged_one_is_named(tmp_path: Path) -> None:
    run = tmp_path / "runs/digits-1"
    write(run / "advice", "advice")
    (run / "advice/advice.json").write_text(json.dumps({"format": 1}))
    (section,) = finding_sections(run, "digits")
    assert "cannot be read" in section.words
