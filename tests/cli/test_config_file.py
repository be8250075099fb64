"""Options from a file are those that were typed; a run's own file makes the same run again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from samepath.cli import main

RECIPE = Path(__file__).parents[1] / "helpers" / "linear_recipe.py"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, "train", *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize("kind", ["toml", "yaml"])
def test_a_file_is_as_if_typed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(RECIPE, "mine.py")
    values = {"recipe": "mine.py", "n": 1, "epochs": 2, "batch_size": 4, "learning-rate": 0.01}
    values["exact"] = True if kind == "yaml" else "on"  # what YAML makes of `on`
    sign = " = " if kind == "toml" else ": "
    lines = (f"{name}{sign}{json.dumps(value)}\n" for name, value in values.items())
    Path(f"run.{kind}").write_text("".join(lines))
    typed = ("mine.py", "-n", "1", "--epochs", "3", "--batch-size", "4", "--learning-rate", "0.01")
    expected = result(capsys, *typed, "--out", "typed")
    found = result(capsys, "--config", f"run.{kind}", "--epochs", "3", "--out", "read")
    assert found["digest"] == expected["digest"]
    assert found["epochs"] == 3, "what is typed goes first"
    again = result(capsys, "--config", "read/config.toml", "--out", "again")
    assert again["digest"] == expected["digest"], "the run's own file makes the same run"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.toml", "epoch = 2", "train has no option epoch; do you mean epochs?"),
        ("a.toml", "epochs = ", "is no TOML"),
        ("a.yaml", "a: [", "is no YAML"),
        ("a.yaml", "- 1", "write a line for each option"),
        ("a.yaml", "epochs: {a: 1}", "epochs has 1 part; give one value"),
        ("a.yaml", "resume: maybe", "is 'maybe'; give true or false"),
        ("a.json", "{}", "give a file that ends in .toml, .yaml or .yml"),
        ("gone.toml", None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_file_that_is_wrong(
    name: str, text: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    code, _, err = run(capsys, "train", "digits", "--config", str(tmp_path / name))
    assert code == 2
    assert says in err
    assert err.count("\n") == 1


def test_a_study_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from samepath.study.opening import StudyRequest

    flags = StudyRequest(recipe="digits", workers=(1, 2), target="auto", fraction=0.5, tune=3).flags
    assert flags["recipes"] == ["digits"]
    assert (flags["workers"], flags["target"], flags["tune"]) == ((1, 2), "auto:0.5", 3)
    (tmp_path / "a.yaml").write_text("recipes: [digits]\nworkers: [1, 0]\n")
    code, _, err = run(capsys, "study", "--config", str(tmp_path / "a.yaml"))
    assert code == 2
    assert "--workers 1,0: '0' is not a whole number of at least 1" in err
