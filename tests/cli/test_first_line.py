"""What a command says before it loads the library, which takes seconds; and what it refuses there.

Each runs in a process that ends at the first import of something heavy, so that no clock is needed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from samepath.cli.main import cli

ENDED = 77
CODE = f"""
import importlib.abc, os, sys

HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "plotly", "rich", "safetensors",
    "starlette", "uvicorn")

class End(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in HEAVY:
            sys.stdout.flush()
            os._exit({ENDED})

sys.meta_path.insert(0, End())
from samepath.cli import main
main(sys.argv[1:])
"""

FIRST = {
    "advise digits": "measuring digits here, into insight/digits-advice-1",
    "advise digits --out a": "measuring digits here, into a",
    "clean": "looking for what killed processes have left",
    "cubes scans --out a": "making cubes of scans, into a",
    "curate digits --out a -n 2": "curating digits on 2 workers, into a",
    "curate compare digits --keep b/keep.csv": "training digits with and without b/keep.csv, into "
    "b/compare",
    "curvature run": "measuring the loss around run on all cores (or GPUs), into "
    "insight/run-curvature-1",
    "digest run": "computing the digest of run",
    "doctor": "looking at this machine",
    "doctor --certify": "certifying digits on this machine, into insight/digits-certificate-1",
    "download cifar10 --to a": "downloading cifar10, into a",
    "explore curated": "opening curated",
    "export run --to model.onnx": "exporting the model of run, into model.onnx",
    "folds digits -n 1": "training 5 folds of digits on 1 worker, into folds/digits",
    "generate run --out a.npz": "generating 100 nodules from run, into a.npz",
    "join run": "joining the run in run",
    "pairs cubes.npz --out a": "writing cubes.npz as nifti pairs, into a",
    "predict run --out a.csv -n 1": "writing predictions of run for valid on 1 worker, into a.csv",
    "profile digits -n 2 --out a": "profiling digits on 2 workers, into a",
    "run -n 3 script.py": "running script.py on 3 workers",
    "show run": "drawing run, into run/show",
    "simulate digits": "measuring and simulating digits, into insight/digits-simulation-1",
    "simulate advice --out a": "simulating advice, into a",
    "study digits": "racing strategies of digits, into studies/digits",
    "study digits nodules": "racing strategies of digits, nodules, into studies/digits+nodules",
    "study digits --batch-sizes 8,16": "training each batch size of digits, into studies/digits",
    "tensorboard run": "writing event files of run",
    "train digits": "training digits on all cores (or GPUs)",
    "train digits -n 2 --out a": "training digits on 2 workers, into a",
    "train digits -n 1:8 --out a": "training digits on 1:8 workers, into a",
    "train digits -n 2 --out a --json": "training digits on 2 workers, into a",
    "train digits --resume --out run": "continuing the run of digits on all cores (or GPUs), into "
    "run",
    "turing a.npz b.npz": "opening a.npz and b.npz, into turing.json",
    "ui": "opening what is under HERE",
    "verify digits": "verifying digits on several worker counts",
    "verify digits -n 1,2": "verifying digits on 1,2 workers",
    "verify script.py -n 1,2": "verifying the script script.py on 1,2 workers",
    "worth nodules --data a.npz -n 2": "measuring what nodules of nodules are worth to "
    "nodules-classifier on 2 workers, into worth/nodules",
}

REFUSED = {
    "advise didgits": "unknown recipe 'didgits'; did you mean 'digits'?",
    "curate gone.py --out a": "recipe file 'gone.py' does not exist",
    "folds didgits": "unknown recipe",
    "profile didgits": "unknown recipe",
    "study digits gone.py": "recipe file 'gone.py' does not exist",
    "train didgits": "unknown recipe",
    "train digits -n 0": "-n 0: give a whole number",
    "train digits -n 2-4": "as -n 2:4",
    "verify didgits": "unknown recipe",
    "verify digits -n 0": "-n 0: '0' is not a whole number",
    "verify neither.py": "neither a recipe() nor a call of samepath.start()",
    "verify digits -- --epochs 2": "only a script takes that",
    "curvature gone": "gone holds no run",
    "digest gone": "gone holds no run",
    "export gone --to a.onnx": "gone holds no run",
    "generate gone --out a.npz": "gone holds no run",
    "join gone": "gone holds no run",
    "show run gone": "gone holds no run",
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("run", "advice", "curated", "scans"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "script.py").write_text("import samepath\nsamepath.start()\n")
    (tmp_path / "neither.py").write_text("print(1)\n")
    return tmp_path


def said(words: str, here: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE, *words.split()]
    environment = {**os.environ, **more}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=here, env=environment, check=False
    )


@pytest.mark.parametrize("words", FIRST)
def test_it_says_what_it_does_before_it_loads_the_library(words: str, here: Path) -> None:
    ended = said(words, here)
    first = FIRST[words].replace("HERE", str(here))
    assert (ended.returncode, ended.stdout) == (ENDED, ""), ended.stderr
    assert ended.stderr == f"samepath: {first}\n"


def test_every_command_is_among_them() -> None:
    quick = {"init", "recipes"}  # they load nothing heavy: their results come as soon
    assert {words.split()[0] for words in FIRST} | quick == set(cli.commands)


@pytest.mark.parametrize("words", ["recipes", "init table.csv"])
def test_quick_commands_end_without_the_library(words: str, here: Path) -> None:
    (here / "table.csv").write_text("age,outcome\n1,0\n2,1\n3,0\n")
    ended = said(words, here)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_is_refused_before_the_library_is_loaded(words: str, here: Path) -> None:
    ended = said(words, here)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert ended.stderr.count("\n") == 1
    assert REFUSED[words] in ended.stderr


@pytest.mark.parametrize("name", ["RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"])
def test_of_a_launchers_workers_the_first_says_it(name: str, here: Path) -> None:
    assert said("train digits", here, **{name: "0"}).stderr.startswith("samepath: training digits")
    assert said("train digits", here, **{name: "3"}).stderr == ""
