"""`samepath explore`: starts, says where, ends; and what it says of folders it cannot open."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from curation_folders import make_curation_folder
from safetensors.numpy import load_file, save_file

from samepath.cli.web import explore
from samepath.errors import UserError
from samepath.web.explorer.app import open_explorer

SAMEPATH = str(Path(sys.executable).with_name("samepath"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_curation_folder(tmp_path / "curated", 120)


def refused(*arguments: object) -> str:
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(explore, [str(a) for a in arguments], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.alone  # it looks at the time
def test_it_serves_and_ends_at_ctrl_c(folder: Path) -> None:
    command = [SAMEPATH, "explore", str(folder), "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        address = json.loads(started.stdout.readline())["address"]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert b"samepath" in answer.read()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(address.partition("?")[0], timeout=10)
        assert caught.value.code == 403
        caught.value.close()
        began = time.monotonic()
        started.send_signal(signal.SIGINT)
        assert started.wait(60) == 0
        assert time.monotonic() - began < 5
        assert started.stdout.read() == b""
        assert b"Traceback" not in started.stderr.read()


def test_one_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samepath.files.LOCK_SECONDS", 0.1)
    with open_explorer(folder):
        assert "is being explored by another process" in refused(folder, "--no-browser")
    with open_explorer(folder):
        pass  # let go of


def test_exports_without_a_server(folder: Path, tmp_path: Path) -> None:
    for kind in ("html", "csv"):
        out = tmp_path / "below" / f"map.{kind}"
        done = CliRunner().invoke(explore, [str(folder), "--export", str(out), "--json"])
        assert json.loads(done.stdout) == {"export": str(out)}
        assert out.stat().st_size > 1000
    assert not list(folder.glob("*.edits"))


def test_what_is_no_curation_folder(tmp_path: Path) -> None:
    assert "there is no such folder" in refused(tmp_path / "nothing")
    assert "it has no curation.json" in refused(tmp_path)


def write_about(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        about = json.loads((folder / "curation.json").read_text())
        (folder / "curation.json").write_text(json.dumps({**about, **changes}))

    return change


def write_arrays(name: str, **changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        arrays = load_file(folder / name)
        for key, value in changes.items():
            if value is None:
                del arrays[key]
            else:
                assert isinstance(value, np.ndarray)
                arrays[key] = value
        save_file(arrays, folder / name)

    return change


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-50])  # type: ignore[return-value]


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (write("curation.json", "{"), "curation.json cannot be used"),
        (write("curation.json", "[]"), "format is not 1"),
        (write_about(format=2), "format is not 1"),
        (write_about(num_examples="many"), "num_examples"),
        (write_about(num_examples=121), "120 rows where 121 are due"),
        (write_about(class_names=[]), "class_names"),
        (write_about(class_names=["one"]), "labels that have no class name"),
        (write_about(classes=[1]), "classes is wrong"),
        (remove("map.safetensors"), "map.safetensors cannot be used: it is missing"),
        (cut("map.safetensors"), "map.safetensors cannot be used"),
        (cut("features.safetensors"), "features.safetensors cannot be used"),
        (cut("images.safetensors"), "images.safetensors cannot be read"),
        (write_arrays("map.safetensors", reduced=None), "no 'reduced'"),
        (write_arrays("map.safetensors", map=np.full((120, 2), np.nan, "f4")), "NaN"),
        (write_arrays("map.safetensors", map=np.zeros((120, 3), "f4")), "two dimensions"),
        (write_arrays("features.safetensors", losses=np.zeros((120, 2), "f4")), "one number"),
        (write_arrays("images.safetensors", images=np.zeros((7, 4, 4), "u1")), "7 rows"),
        (write_arrays("images.safetensors", images=np.zeros((120, 4, 4), "f4")), "U8"),
        (remove("keep.csv"), "has no keep.csv"),
        (write("keep.csv", "index,label\n"), "keep.csv"),
    ],
)
def test_damaged_folders(folder: Path, damage: Callable[[Path], None], words: str) -> None:
    damage(folder)
    assert words in refused(folder, "--no-browser")


def test_keep_lists_of_other_data(folder: Path, tmp_path: Path) -> None:
    other = make_curation_folder(tmp_path / "other", 100)
    assert "100 examples" in refused(folder, "--keep", other / "keep.csv")
    assert "no such keep-list" in refused(folder, "--keep", tmp_path / "none.csv")
    text = (folder / "keep.csv").read_text().splitlines()
    text[1] = "0,9" + text[1][text[1].index(",", 2) :]
    text[2] = "1,9" + text[2][text[2].index(",", 2) :]
    (tmp_path / "labels.csv").write_text("\n".join(text) + "\n")
    assert "other labels" in refused(folder, "--keep", tmp_path / "labels.csv")


def test_ports(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "Address already in use" in refused(folder, "--port", port)
    assert "from 1 to 65535" in refused(folder, "--port", 70000)
