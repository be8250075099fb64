"""The loss that the paper's model reaches on real CT cubes of 16^3, and what over-fitting costs.

Cunha et al. 2018, section VI: 16^3 cubes, 32 filters, K = 50, Adam at 0.00105, batch 32; target
0.0016384. Here: a fifth of the cubes is a test part, 15% validation, both by the hashes of their
rows; each way trains for the same time, its weights are kept where the validation loss is lowest
(early stopping), and the test part is looked at once, with those. A plain loop in one thread; time
is the process's own, so that a busy machine changes little. A way that is in the file of results
already, from the same data and seconds, is not repeated: stop it, and go on later.

    python benchmarks/nodules_paper_loss.py ct_nodules16.npz --seconds 150
    python scripts/write_nodules_docs.py
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samepath.data import Draws
from samepath.data.formats.volumes import load_volumes
from samepath.recipes.nodules.ct import three_parts, turn
from samepath.recipes.nodules.deepdensity import DeepDensity
from samepath.recipes.nodules.recipe import as_images, reconstruction_loss

TARGET = 0.0016384


@dataclass(frozen=True)
class Way:
    """How the model is trained."""

    augment: bool = False
    weight_decay: float = 0.0
    share: float = 1.0
    """Of the training cubes."""


WAYS = {
    "as in the paper": Way(),
    "weight decay 0.01": Way(weight_decay=0.01),
    "mirrored and turned": Way(augment=True),
    "mirrored and turned, weight decay 0.01": Way(augment=True, weight_decay=0.01),
    "mirrored and turned, half of the cubes": Way(augment=True, share=0.5),
}


def mean_loss(model: nn.Module, volumes: Tensor) -> float:
    with torch.no_grad():
        parts = [(reconstruction_loss(model, part), len(part)) for part in volumes.split(64)]
    return sum(loss.item() * count for loss, count in parts) / len(volumes)


def train(
    way: Way, train_set: Tensor, valid: Tensor, seconds: float
) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    model = DeepDensity()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.00105, weight_decay=way.weight_decay, fused=True
    )
    train_set = train_set[: round(way.share * len(train_set))]
    began, epoch, step = time.process_time(), 0, 0
    course: list[tuple[int, float, float]] = []
    best = (float("inf"), 0, copy.deepcopy(model))
    while time.process_time() - began < seconds:
        order = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(epoch))
        losses = []
        for rows in order.split(32):
            images = as_images(train_set[rows])
            if way.augment:
                draws = Draws(seed=0, epoch=epoch, examples=rows.numpy())
                images, *_ = turn((images, images, images), draws)
            loss = reconstruction_loss(model, images.squeeze(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
        epoch += 1
        found = mean_loss(model, valid)
        course.append((epoch, float(np.mean(losses)), found))
        if found < best[0]:
            best = (found, epoch, copy.deepcopy(model))
    return best[2], {
        "training cubes": len(train_set),
        "epochs": epoch,
        "steps": step,
        "lowest validation loss": best[0],
        "at epoch": best[1],
        "last": course[-1],
        "course": course[:: max(1, len(course) // 40)],
    }


def finished(out: Path, about: dict[str, Any]) -> dict[str, Any]:
    """The ways that a file of the same data and seconds has already."""
    if not out.exists():
        return {}
    before = json.loads(out.read_text(encoding="utf-8"))
    same = all(before.get(name) == value for name, value in about.items())
    return dict(before["ways"]) if same else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seconds", type=float, default=200.0, help="Of one core, for each way.")
    default = Path(__file__).parent / "results" / "nodules_paper_loss.json"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    volumes = load_volumes(options.data)
    cubes = torch.from_numpy(np.asarray(volumes.cubes))
    train_rows, valid_rows, test_rows = three_parts(volumes.group)
    about = {"target": TARGET, "data": options.data.name, "cubes": len(cubes)}
    about |= {"seconds": options.seconds, "torch": torch.__version__}
    found = finished(options.out, about)
    for name, way in WAYS.items():
        if name in found:
            print(f"{name}: done before")
            continue
        model, result = train(way, cubes[train_rows], cubes[valid_rows], options.seconds)
        result["test loss"] = mean_loss(model, cubes[test_rows])
        found[name] = {**asdict(way), **result}
        print(
            f"{name}: validation {result['lowest validation loss']:.5f} at epoch "
            f"{result['at epoch']} of {result['epochs']}, test {result['test loss']:.5f}, "
            f"training {result['last'][1]:.5f} at the end",
            flush=True,
        )
        text = json.dumps(about | {"ways": found}, indent=1)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
