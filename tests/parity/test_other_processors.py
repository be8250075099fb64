"""Workers whose processors compute differently are told apart before the first step.

torch's kernels are chosen by instruction set; one worker is kept from the newer ones, as a machine
without them would be.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from workers_by_hand import start_by_hand

SCRIPT = """
import sys
import torch
import torch.nn.functional as F
from torch import nn
import samepath
from samepath.errors import UserError

def loss(model, batch):
    return model(batch[0]).softmax(1).log().mul(batch[1]).sum(1).mean()

with samepath.start(seed=0) as session:
    made = torch.Generator().manual_seed(1)
    data = torch.randn(64, 33, generator=made), torch.randn(64, 1000, generator=made)
    model = nn.Sequential(nn.Linear(33, 77), nn.LayerNorm(77), nn.GELU(), nn.Linear(77, 1000))
    if sys.argv[2] == "loaded":
        for number, p in enumerate(model.parameters()):
            p.data = (torch.arange(p.numel()) * (number + 3) % 17 - 8.0).view(p.shape) / 64
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = []
    try:
        trainer = session.prepare(
            model, optimizer, loss, batch_size=16, grain_size=4, other_hardware=sys.argv[1] == "yes"
        )
        trainer.warn = told.append
        trainer.step(next(trainer.batches(data, 0)))
        print("went on:", *told)
    except UserError as error:
        print("refused:", error)
"""


@pytest.fixture(autouse=True)
def _all_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)


def run(folder: Path, capability: str | None, allowed: str, start: str = "drawn") -> list[str]:
    """What each of two workers says, the second with older kernels."""
    file = folder / "script.py"
    file.write_text(SCRIPT)
    started = start_by_hand(
        [[sys.executable, str(file), allowed, start]] * 2,
        [{}, {} if capability is None else {"ATEN_CPU_CAPABILITY": capability}],
    )
    return [worker.communicate(timeout=120)[0].strip() for worker in started]


needs_kernels = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="this processor has no newer kernels to be kept from",
)


@needs_kernels
@pytest.mark.parametrize("start", ["drawn", "loaded"])
def test_a_mixed_crew_is_refused_and_told_which_machine_differs(start: str, tmp_path: Path) -> None:
    """By the weights they draw, or else by the first grain."""
    for said in run(tmp_path, "default", "no", start):
        what = "differs from worker 0's before" if start == "drawn" else "computes the first grain"
        assert said.startswith("refused: ")
        assert what in said
        assert "ATEN_CPU_CAPABILITY=default" in said
        assert "add --other-hardware" in said


@needs_kernels
def test_with_the_flag_it_goes_on_and_says_so(tmp_path: Path) -> None:
    for said in run(tmp_path, "default", "yes", "loaded"):
        assert said.startswith("went on: worker 1 computes the first grain differently")
        assert said.endswith("so that the path depends on which of them computes what")


def test_machines_of_one_kind_have_nothing_to_say(tmp_path: Path) -> None:
    assert run(tmp_path, None, "no") == ["went on:", "went on:"]
