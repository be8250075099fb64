"""The reader's test: what is told when, what is kept, and who may ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_client import CHANGE, client_of
from scipy.stats import beta

from samepath.errors import UserError
from samepath.web.turing.app import turing_app
from samepath.web.turing.votes import ReadersTest, opened_test

COUNT, SIDE = 6, 8


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Real cubes are bright (bytes), generated ones dark (floats)."""
    random = np.random.default_rng(0)
    real = random.integers(200, 256, (8, SIDE, SIDE, SIDE)).astype(np.uint8)
    np.savez(tmp_path / "real.npz", volume=real, label=np.arange(8) % 2)
    made = random.uniform(0, 0.2, (7, SIDE, SIDE, SIDE)).astype(np.float32)
    np.savez(tmp_path / "new.npz", volume=made, label=np.arange(7) % 2)
    return tmp_path / "real.npz", tmp_path / "new.npz"


def opened(files: tuple[Path, Path], seed: int = 0, count: int = COUNT) -> ReadersTest:
    return ReadersTest(*files, files[0].parent / "votes.json", count=count, seed=seed)


def truth_of(test: ReadersTest) -> list[str]:
    means = [np.frombuffer(test.cube(n), np.uint8).mean() for n in range(len(test))]
    return ["real" if mean > 128 else "generated" for mean in means]


def test_the_order_is_the_seeds(files: tuple[Path, Path]) -> None:
    one, same, other = opened(files), opened(files), opened(files, seed=1)
    assert truth_of(one).count("real") == COUNT
    cubes = [[each.cube(n) for n in range(len(each))] for each in (one, same, other)]
    assert cubes[0] == cubes[1]
    assert cubes[0] != cubes[2]
    assert len(set(cubes[0])) == 2 * COUNT


def test_votes_are_kept_and_the_test_goes_on(files: tuple[Path, Path]) -> None:
    test = opened(files)
    test.vote(3, "real")
    test.vote(3, "generated")
    test.vote(0, "real")
    kept = json.loads(test.out.read_text(encoding="utf-8"))
    assert kept["votes"] == {"0": "real", "3": "generated"}
    assert "truth" not in kept  # a reader may look at the file
    again = opened(files)
    assert again.votes == {0: "real", 3: "generated"}
    with pytest.raises(UserError, match="has not ended"):
        again.result()
    again.end()
    with pytest.raises(UserError, match="has ended"):
        again.vote(1, "real")
    assert opened(files).has_ended
    assert opened(files).scores() == again.scores()


def test_a_file_of_another_test_is_left_alone(files: tuple[Path, Path]) -> None:
    test = opened(files)
    test.vote(0, "real")
    before = test.out.read_bytes()
    with pytest.raises(UserError, match=r"holds another test \(--count 6 --seed 0\)"):
        opened(files, seed=5)
    np.savez(files[1], volume=np.zeros((7, SIDE, SIDE, SIDE), np.float32))
    with pytest.raises(UserError, match="a test of other cubes"):
        opened(files)
    for damage in (b"{", b'{"format": 1}', before.replace(b'"0"', b'"99"')):
        test.out.write_bytes(damage)
        with pytest.raises(UserError, match="--out"):
            opened(files)
        assert test.out.read_bytes() == damage


def test_what_cannot_be_compared_is_refused(files: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="--count 8: give 1 to 7"):
        opened(files, count=8)
    np.savez(files[1], volume=np.zeros((7, 4, 4, 4), np.float32))
    with pytest.raises(UserError, match=r"cubes of 8 voxels a side, .* of 4"):
        opened(files)
    with (
        pytest.raises(UserError, match="there is no folder"),
        opened_test(*files, files[0].parent / "no" / "a.json", count=1, seed=0),
    ):
        pass
    assert not (files[0].parent / "votes.json").exists()


def test_accuracy_has_an_exact_interval(files: tuple[Path, Path]) -> None:
    test = opened(files)
    truth = truth_of(test)
    wrong = {"real": "generated", "generated": "real"}
    for number, what in enumerate(truth):  # wrong about one real cube alone
        test.vote(number, wrong[what] if number == truth.index("real") else what)
    test.end()
    scores = {score.what: score for score in test.scores()}
    assert list(scores) == ["all", "real", "generated", "class 0", "class 1"]
    every = scores["all"]
    assert (every.num_right, every.num_votes) == (11, 12)
    assert every.low == pytest.approx(beta.ppf(0.025, 11, 2))
    assert every.high == pytest.approx(beta.ppf(0.975, 12, 1))
    assert every.p == pytest.approx(2 * 13 / 2**12)
    assert (scores["real"].num_right, scores["generated"].num_right) == (5, 6)
    kept = json.loads(test.out.read_text(encoding="utf-8"))
    assert kept["scores"][0]["num_right"] == 11
    assert kept["truth"] == truth


# ---- the server


def test_the_server_tells_nothing_before_the_end(files: tuple[Path, Path]) -> None:
    test = opened(files)
    client = client_of(turing_app(test, "t"))
    assert client.get("/").status_code == 200
    told = client.get("/api/test").json()
    assert told == {
        "number": 12,
        "side": SIDE,
        "votes": [None] * 12,
        "ended": False,
        "file": "votes.json",
    }
    assert client.get("/api/cube/11").content == test.cube(11)
    assert client.get("/api/result").status_code == 400
    assert client.post("/api/end", headers=CHANGE).status_code == 400  # no vote yet
    voted = client.post("/api/vote", headers=CHANGE, json={"number": 2, "said": "real"})
    assert voted.json()["votes"][2] == "real"
    assert test.out.exists()
    result = client.post("/api/end", headers=CHANGE).json()
    assert result["truth"] == [None, None, truth_of(test)[2]] + [None] * 9
    assert client.get("/api/result").json() == result


BAD: list[Any] = [
    [],
    {},
    {"number": 12, "said": "real"},
    {"number": -1, "said": "real"},
    {"number": True, "said": "real"},
    {"number": "1", "said": "real"},
    {"number": 1, "said": "fake"},
    {"number": 1, "said": ["real"]},
]


@pytest.mark.parametrize("body", BAD)
def test_bad_requests_change_nothing(body: Any, files: tuple[Path, Path]) -> None:
    test = opened(files)
    client = client_of(turing_app(test, "t"))
    answer = client.post("/api/vote", headers=CHANGE, json=body)
    assert (answer.status_code, list(answer.json())) == (400, ["error"])
    assert not test.out.exists()


def test_strangers_are_refused(files: tuple[Path, Path]) -> None:
    test = opened(files)
    client = client_of(turing_app(test, "t"))
    vote = {"number": 1, "said": "real"}
    assert client.post("/api/vote", json=vote).status_code == 403  # no header of our page
    for path in ("12", "-1", "a", "1.0", "999999999", "..%2Freal.npz"):
        assert client.get(f"/api/cube/{path}").status_code == 404
    client.cookies.clear()
    for address in ("/", "/api/test", "/api/cube/0", "/api/result"):
        assert client.get(address).status_code == 403
    assert not test.votes
