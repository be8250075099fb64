"""Threads of numerical libraries: set in one place, and put back where that was for a while."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

from samepath.errors import UserError
from samepath.recipe import find_recipe
from samepath.threads import VARIABLES, limited_threads, set_threads, threads_of_children

RECIPE = """
import json, os, sys
import numpy as np
import torch
from threadpoolctl import threadpool_info
from samepath import Recipe

def look():
    libraries = {library["num_threads"] for library in threadpool_info()}
    return [torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], sorted(libraries)]

seen = [look()]

def recipe():
    seen.append(look())
    return Recipe(model=lambda: torch.nn.Linear(1, 1), train=torch.ones(4, 1),
        loss=lambda model, batch: model(batch).sum(), batch_size=2, grain_size=1, epochs=1,
        optimizer=lambda parameters: torch.optim.SGD(parameters))
"""


def of_libraries() -> dict[str, int]:
    return {library["filepath"]: library["num_threads"] for library in threadpool_info()}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_recipe_computes_with_the_threads_of_the_plan(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    file = tmp_path / "looks.py"
    file.write_text(RECIPE)
    with limited_threads(2):
        before = of_libraries()
        assert set(before.values()) == {2}
        find_recipe(str(file), threads=threads)
        assert torch.get_num_threads() == 2, "as it was"
        assert of_libraries() == before
    assert os.environ["OMP_NUM_THREADS"] == "7"
    seen = sys.modules["samepath_recipe_looks"].seen
    assert seen == [[threads, str(threads), [threads]]] * 2


def test_children_can_be_left_to_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with threads_of_children(1, unless_set=True):
        assert os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    with threads_of_children(1, unless_set=True):
        assert os.environ["OMP_NUM_THREADS"] == "5"
        assert "MKL_NUM_THREADS" not in os.environ
    with threads_of_children(1):
        assert os.environ["OMP_NUM_THREADS"] == "1"
    assert os.environ["OMP_NUM_THREADS"] == "5"


def test_a_process_can_be_set_for_good() -> None:
    code = (
        "import os, numpy, torch, threadpoolctl\n"
        "from samepath.threads import set_threads\n"
        "set_threads(1)\n"
        "print(torch.get_num_threads(), os.environ['OPENBLAS_NUM_THREADS'],\n"
        "      {library['num_threads'] for library in threadpoolctl.threadpool_info()})\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert ended.stdout == "1 1 {1}\n"


def test_fewer_than_one_are_refused() -> None:
    with pytest.raises(UserError, match="threads is 0"):
        set_threads(0)
    with pytest.raises(UserError, match="threads is 0"), limited_threads(0):
        pass
