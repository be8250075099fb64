"""What commands print on narrow and wide terminals, in pipes, with NO_COLOR, without a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from measured_steps import made
from terminals import on_terminal, plain_lines

from samepath.timing.measured import write_measured

SAMEPATH = Path(sys.executable).with_name("samepath")
TINY = str(Path(__file__).parents[1] / "parity" / "tiny_recipe.py")
COMMANDS = {
    "--help": 0,
    "recipes": 0,
    "doctor": 0,
    "clean --dry-run": 0,
    "init table.csv": 0,
    "simulate advice --workers 1,2,4,8 --network 1GbE,10GbE": 0,
    f"train {TINY} -n 1 --epochs 2 --target 0.001": 0,
    "train didgits": 2,
    "verify digits -n 1": 2,
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "table.csv").write_text("age,outcome\n1,0\n2,1\n3,0\n")
    write_measured(tmp_path / "advice", made())
    return tmp_path


@pytest.mark.parametrize("colour", [True, False], ids=["colour", "NO_COLOR"])
@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("words", COMMANDS)
def test_on_a_terminal(words: str, width: int, colour: bool, here: Path) -> None:
    """No line is wider than the terminal (but a digest's, which is one word), nothing is cut."""
    environment = {} if colour else {"NO_COLOR": "1"}
    code, text = on_terminal([SAMEPATH, *words.split()], width, here, **environment)
    assert code == COMMANDS[words], text
    assert max(len(line) for line in plain_lines(text) if not line.startswith("  digest")) <= width
    assert "\u2026" not in text
    if not colour:
        assert not re.search(r"\x1b\[[0-9;]*m", text)


@pytest.mark.parametrize("words", COMMANDS)
def test_without_a_terminal(words: str, here: Path) -> None:
    """In pipes there is no code of a terminal, and no line of a table is broken."""
    done = subprocess.run(
        [SAMEPATH, *words.split()], cwd=here, capture_output=True, text=True, timeout=120,
        stdin=subprocess.DEVNULL, start_new_session=True, check=False,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
    )  # fmt: skip
    assert done.returncode == COMMANDS[words], done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\u2026" not in done.stdout + done.stderr
