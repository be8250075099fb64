"""`samepath simulate` on a step that was measured before: what it prints, writes and refuses."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from measured_steps import made

from samepath.cli.simulate import parse_worker_range, simulate
from samepath.errors import UserError
from samepath.insight.simulate import POLICIES, default_workers, parse_policy
from samepath.timing.measured import read_measured, write_measured
from samepath.timing.model import Buckets, Queue, workload_from


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_measured(tmp_path / "profile", made())
    return tmp_path / "profile"


def run(*words: object) -> Result:
    return CliRunner().invoke(simulate, [str(word) for word in words])


def refused(*words: object) -> str:
    result = run(*words)
    assert isinstance(result.exception, UserError), result.output
    message = str(result.exception)
    assert "\n" not in message
    return message


def test_everything_is_written_and_called_modelled(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(
        folder, "--workers", "1:64", "--network", "10GbE,here", "--scaling", "weak", "--out", out,
        "--trials", 20, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    content: dict[str, Any] = json.loads((out / "simulation.json").read_text())
    assert printed["curves"] == content["curves"]
    assert printed["folder"] == str(out)
    assert (content["kind"], content["recipe"]) == ("simulation", "made up")
    names = [(curve["network"], curve["policy"]) for curve in content["curves"]]
    assert names == [(link, how) for link in ("10GbE", "here") for how in ("samepath", "queue")]
    for curve in content["curves"]:
        assert [point["workers"] for point in curve["points"]] == [1, 2, 4, 8, 16, 32, 64]
        assert {point["how"] for point in curve["points"]} == {"modelled"}
    assert content["measured_step_seconds"] == {"1": 0.022}  # two were measured sharing a batch
    page = (out / "simulation.html").read_text()
    assert "samepath, 10GbE (modelled)" in page
    assert "data:image/svg+xml;base64," in page
    assert read_measured(out) == made()  # it can be simulated again
    again = run(out, "--network", "1GbE", "--out", tmp_path / "again", "--trials", 5)
    assert again.exit_code == 0, again.output
    assert "samepath, 1GbE (modelled)" in again.stdout
    assert f"report: {tmp_path / 'again' / 'simulation.html'}" in again.stdout


def test_the_same_seed_gives_the_same_numbers_and_stragglers_cost(
    folder: Path, tmp_path: Path
) -> None:
    places = (tmp_path / str(number) for number in itertools.count())

    def curves(*words: object) -> Any:
        how = ("--policy", "samepath", "--trials", 50, "--json", "--out", next(places))
        result = run(folder, *how, *words)
        return json.loads(result.stdout)["curves"][0]["points"]

    assert curves("--seed", 3) == curves("--seed", 3) != curves("--seed", 4)
    slow, quick = curves("--stragglers", 0.5), curves()
    assert slow[-1]["step_seconds"] > 1.2 * quick[-1]["step_seconds"]
    assert [point["workers"] for point in quick] == [1, 2, 4, 8]  # a worker for each example


def test_what_was_measured_stands_beside(folder: Path, tmp_path: Path) -> None:
    words = (folder, "--network", "here", "--trials", 5, "--json", "--out")
    content = json.loads(run(*words, tmp_path / "a").stdout)
    assert content["measured_step_seconds"] == {"1": 0.022, "2": 0.016}
    other = json.loads(run(*words, tmp_path / "b", "--batch-size", 16).stdout)
    assert other["measured_step_seconds"] == {}  # of another batch
    assert other["batch_size"] == 16


def test_bad_input_writes_nothing(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "there is no such network; use 1GbE, 10GbE" in refused(
        folder, "--network", "infiniband", "--out", out
    )
    assert "--policy push: use samepath, queue, ddp" in refused(folder, "--policy", "push")
    assert "more than 8 curves" in refused(
        folder, "--policy", "samepath,queue,ddp", "--network", "1GbE,10GbE,here", "--out", out
    )
    assert "--stragglers -1" in refused(folder, "--stragglers", -1, "--out", out)
    assert "0 trials" in refused(folder, "--trials", 0, "--out", out)
    assert "--seconds is for a recipe" in refused(folder, "--seconds", 9, "--out", out)
    (tmp_path / "empty").mkdir()
    assert "holds no measured step" in refused(tmp_path / "empty", "--out", out)
    assert "unknown recipe" in refused("nodule", "--out", out)
    assert "--out" in refused(folder, "--out", folder)
    assert not out.exists()


def test_a_profile_of_another_recipe_is_refused(folder: Path, tmp_path: Path) -> None:
    message = refused("digits", "--profile", folder, "--out", tmp_path / "out")
    assert message.startswith(f"--profile {folder} is of another recipe (made up)")
    write_measured(folder, made(recipe="digits", identity="digits"))
    result = run("digits", "--profile", folder, "--trials", 5, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output


def test_a_folder_is_simulated_without_torch(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["simulate", str(folder), "--network", "1GbE,here", "--trials", "5", "--out", str(out)]
    code = (
        "import atexit, sys\n"
        "from samepath.cli import main\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        f"main({words})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stderr.splitlines()[-1] == "False"
    versions = json.loads((out / "simulation.json").read_text())["versions"]
    assert {"samepath", "torch", "numpy", "python"} <= versions.keys()


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("1,2,96", [1, 2, 96]),
        ("8, 2,2", [2, 8]),
        ("1:6", [1, 2, 4, 6]),
        ("1,...,8", [1, 2, 4, 8]),
        ("1:4,96:200", [1, 2, 4, 96, 192, 200]),
        ("5:5", [5]),
    ],
)
def test_numbers_of_workers(text: str, counts: list[int]) -> None:
    assert parse_worker_range(text) == counts


@pytest.mark.parametrize("text", ["", "0", "1:", "8:2", "two", "1:1000000", "1,...", "-3"])
def test_no_numbers_of_workers(text: str) -> None:
    with pytest.raises(
        UserError, match=f"--workers {text!r}" if not text else "--workers"
    ) as error:
        parse_worker_range(text)
    assert "\n" not in str(error.value)


def test_policies_by_name() -> None:
    assert parse_policy("samepath") == Buckets()
    assert parse_policy("queue") == Queue()
    assert parse_policy("ddp") == POLICIES["ddp"]
    assert parse_policy("samepath:tree") == Buckets(algorithm="tree")
    assert parse_policy("queue:tree") == Queue(algorithm="tree", waits=False)
    assert parse_policy("queue:samepath") == Queue(algorithm="samepath")
    for text in ("samepath:star", "samepath:", "static", "", "tree"):
        with pytest.raises(UserError, match=f"--policy {text}"):
            parse_policy(text)


def test_workers_by_default() -> None:
    workload = workload_from(made())
    assert default_workers(workload, "strong") == [1, 2, 4, 8]
    assert default_workers(workload, "weak") == [*(1 << power for power in range(11)), 1536]
    assert default_workers(workload_from(made(), batch_size=1), "strong") == [1]
    fixed = workload_from(made(grain_fixed=True, batch_size=24))
    assert default_workers(fixed, "strong") == [1, 2, 4, 6]
