"""`samepath ui`: starts, says where, ends; and what it says of folders it cannot open."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from samepath.cli.web import ui
from samepath.errors import UserError

SAMEPATH = str(Path(sys.executable).with_name("samepath"))


def refused(*arguments: object) -> str:
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(ui, [str(a) for a in arguments], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_it_serves_the_current_folder_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    command = [SAMEPATH, "ui", "--no-browser"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, cwd=tmp_path, text=True) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        address = started.stdout.readline().strip()
        assert started.stdout.readline() == f"shows {tmp_path}; Ctrl-C ends it\n"
        with urllib.request.urlopen(address, timeout=10) as answer:
            cookie = answer.headers["set-cookie"].partition(";")[0]
        base = address.partition("?")[0]
        asked = urllib.request.Request(f"{base}api/overview", headers={"cookie": cookie})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            overview = json.load(answer)
        assert overview == {"folder": ".", "place": str(tmp_path), "items": [], "notes": []}
        started.send_signal(signal.SIGINT)
        assert started.wait(60) == 0
        assert started.stdout.read() == ""
        assert started.stderr.read() == ""


def test_torch_is_not_needed_to_look() -> None:
    code = "import sys, samepath.web.dashboard.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_what_is_no_folder(tmp_path: Path) -> None:
    assert "there is no such folder" in refused(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(tmp_path / "file")


def test_ports(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "already in use" in refused(tmp_path, "--port", taken.getsockname()[1])
    assert "from 1 to 65535" in refused(tmp_path, "--port", 70000)
