"""Where findings are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from samepath.errors import UserError
from samepath.insight.folder import Kind, choose_folder, kind_of, read_finding, write_finding


def write(folder: Path, kind: Kind, **content: Any) -> None:
    write_finding(folder, kind, recipe="digits", command=["samepath", kind], content=content)


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
