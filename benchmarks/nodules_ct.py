"""How often nodules of `nodules-ct` are told from real ones on held-out CT, and what a step costs.

A run's reconstructions and new nodules, both in real surroundings, against real cubes of the
validation part, by the classifier of `samepath generate` (two-sample test, five folds); then, with
--test, against the test part, which nothing was trained on or chosen by. `alone`: the same test on
what is under the soft mask, everything else black, which surroundings cannot help with. `grain`: on
four numbers of texture and edge alone, which that classifier hardly sees. Copies: the
share of nodules (alone) that come closer to a training nodule than all but 1% of real ones do.
And a training step at 32^3 against the same step with the density broadcast. Prints, writes JSON.

    samepath train nodules-ct --data ct_nodules32.npz --out runs/ct
    python benchmarks/nodules_ct.py runs/ct [--test] [--step]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samepath.engine.state.reopen import reopen
from samepath.recipes.nodules import deepdensity
from samepath.recipes.nodules.ct import (
    Floats,
    Masks,
    as_intensities,
    frames,
    load_ct_nodules,
    soft,
)
from samepath.recipes.nodules.ct_generation import CubeGenerator
from samepath.recipes.nodules.deepdensity import DeepDensity, Mixture, mean_squared_log_error
from samepath.recipes.nodules.judgement import QUANTILES, TwoSample, measure, two_sample
from samepath.recipes.nodules.surroundings import layers

COUNT = 300
GRAIN = ["spread", "roughness", "surface minus core", "steepness of the edge"]
GOALS = {"reconstructions": 0.60, "generated": 0.65}
ROUNDS, BATCH, SIDE, COMPONENTS = 5, 8, 32, 50


def looks(volumes: Floats) -> Floats:
    """What the classifier sees: measures, then voxels."""
    return np.hstack([measure(volumes), volumes.reshape(len(volumes), -1)])


def alone(volumes: Floats, masks: Masks) -> Floats:
    return np.stack([v * soft(m) for v, m in zip(volumes, masks, strict=True)])


def grain(volumes: Floats, masks: Masks) -> Floats:
    """What gives texture and edges away: spread and roughness under the mask, the surface's mean
    against the rest's, and the steepest part of the edge."""
    rows = []
    for volume, mask in zip(volumes, masks, strict=True):
        layer = layers(mask)
        inside, surface = volume[mask], volume[layer == 1]
        deep = volume[layer > 1]
        rough = np.abs(np.diff(volume, axis=2))[mask[:, :, 1:] & mask[:, :, :-1]]
        slope = np.sqrt(np.sum(np.square(np.gradient(volume)), axis=0))
        core = deep.mean() if deep.size else inside.mean()
        edge = np.quantile(slope[layer == 1], 0.75) if surface.size else 0.0
        rows.append(
            [inside.std(), rough.mean() if rough.size else 0.0, surface.mean() - core, edge]
        )
    return np.array(rows)


def told(first: Floats, second: Floats, paired: bool = False) -> dict[str, float]:
    return told_by(looks(first), looks(second), paired)


def told_by(first: Floats, second: Floats, paired: bool = False) -> dict[str, float]:
    found: TwoSample = two_sample(first, second, paired=paired)
    return {
        "accuracy": found.accuracy,
        "standard error": found.standard_error,
        "p": found.p_value,
        "examples": found.num_examples,
    }


def judge_part(generator: CubeGenerator, cubes: np.ndarray, masks: Masks, seed: int) -> Any:
    """Every test on one part of the data."""
    seen = frames(cubes, masks, generator.model.side)
    real = as_intensities(cubes)
    again = generator.reconstruct(seen, real, masks)
    made = generator.generate(COUNT, seed=seed)
    away = {
        "generated": generator.nearness(made.frames),
        "real": generator.nearness(seen),
        "reconstructed": generator.nearness(frames(again, masks, generator.model.side)),
    }
    near = float(np.quantile(away["real"], QUANTILES[0]))
    return {
        "nodules": len(real),
        "in their surroundings": {
            "reconstructions": told(again, real, paired=True),
            "generated": told(made.volumes, real),
            "real, of training": told(generator.volumes, real),
        },
        "alone": {
            "reconstructions": told(alone(again, masks), alone(real, masks), paired=True),
            "generated": told(alone(made.volumes, made.masks), alone(real, masks)),
            "real, of training": told(
                alone(generator.volumes, generator.masks), alone(real, masks)
            ),
        },
        "grain": {
            "reconstructions": told_by(grain(again, masks), grain(real, masks), paired=True),
            "generated": told_by(grain(made.volumes, made.masks), grain(real, masks)),
            "real, of training": told_by(
                grain(generator.volumes, generator.masks), grain(real, masks)
            ),
        },
        "grain, means": {
            "numbers": GRAIN,
            "reconstructions": grain(again, masks).mean(0).tolist(),
            "generated": grain(made.volumes, made.masks).mean(0).tolist(),
            "real": grain(real, masks).mean(0).tolist(),
        },
        "nearest training nodule, median": {n: float(np.median(of)) for n, of in away.items()},
        "copies": {n: float(np.mean(of < near)) for n, of in away.items()},
    }


# ---- a step


def broadcast_shaded(mixture: Mixture, shades: Tensor, side: int) -> Tensor:
    """Density and shaded density as the formulas are read: differences at every voxel."""
    centres = (torch.arange(side) + 0.5) * (2.0 / side) - 1.0
    voxels = torch.cartesian_prod(centres, centres, centres)
    covariance = deepdensity.covariances(mixture)
    difference = voxels - mixture.mu[:, :, None, :]  # (B, K, V, 3)
    square = (difference @ torch.linalg.inv(covariance) * difference).sum(-1)
    log_norm = 0.5 * (torch.logdet(covariance) + 3 * math.log(2.0 * math.pi))
    terms = (mixture.log_alpha[..., None] - log_norm[..., None] - 0.5 * square).exp()
    return torch.stack([terms.sum(1), (terms * shades).sum(1)], dim=1)


class Broadcast(DeepDensity):
    def forward(self, images: Tensor) -> Tensor:
        outputs = self.encode(images)
        mass = images[:, 0].flatten(1).sum(1) * (2.0 / self.side) ** 3
        made = broadcast_shaded(self.decode(outputs), self.shades(outputs), self.side)
        return (made * mass[:, None, None]).view_as(images)


def time_steps() -> dict[str, Any]:
    """Forward, backward and update of a grain of 8 at 32^3, in turns, one thread."""
    torch.set_num_threads(1)
    images = torch.rand(BATCH, 2, SIDE, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    ways = {"one matrix product": DeepDensity, "broadcasting": Broadcast}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    models, losses = {}, {}
    for name, kind in ways.items():
        torch.manual_seed(0)
        size: dict[str, Any] = {"side": SIDE, "num_filters": 16, "num_channels": 2}
        models[name] = kind(3, num_components=COMPONENTS, **size)
    for turn in range(ROUNDS + 1):
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            optimizer = torch.optim.Adam(models[name].parameters(), lr=0.00105)
            began = time.perf_counter()
            optimizer.zero_grad()
            loss = mean_squared_log_error(models[name](images), images)
            loss.backward()
            optimizer.step()
            if turn:  # the first one warms up, and shows that both compute the same
                seconds[name].append(time.perf_counter() - began)
            else:
                losses[name] = loss.item()
    one, other = losses.values()
    assert abs(one - other) < 1e-3 * one, losses
    ratios = [b / a for a, b in zip(*seconds.values(), strict=True)]
    return {
        "times faster": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "rounds": ROUNDS,
        "batch": BATCH,
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--test", action="store_true", help="Look at the test part, once.")
    parser.add_argument("--step", action="store_true", help="Time a step as well.")
    parser.add_argument("--seed", type=int, default=0)
    default = Path(__file__).parent / "results" / "nodules_ct.json"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    run = reopen(options.run)
    model, digest = run.model()
    generator = CubeGenerator(model, run.recipe)
    nodules = load_ct_nodules(Path(run.config["data"]))
    found: dict[str, Any] = {
        "data": Path(run.config["data"]).name,
        "weights": digest,
        "training nodules": len(generator.masks),
        "goals": GOALS,
        "torch": torch.__version__,
    }
    parts = {"validation": nodules.valid} | ({"test": nodules.test} if options.test else {})
    for name, rows in parts.items():
        result = judge_part(generator, nodules.volumes[rows], nodules.masks[rows], options.seed)
        found[name] = result
        print(f"{name}, {result['nodules']} nodules")
        for how in ("in their surroundings", "alone", "grain"):
            for what, test in result[how].items():
                goal = GOALS.get(what)
                verdict = (
                    ""
                    if goal is None or how != "in their surroundings"
                    else f"  (to reach: {goal:.2f})"
                )
                accuracy = f"{test['accuracy']:.2f} ± {test['standard error']:.2f}"
                print(f"  {how}, {what}: told in {accuracy}, p {test['p']:.2g}{verdict}")
        print("  copies: " + ", ".join(f"{n} {of:.1%}" for n, of in result["copies"].items()))
        near = result["nearest training nodule, median"]
        print("  nearest, median: " + ", ".join(f"{n} {of:.3f}" for n, of in near.items()))
    if options.step:
        found["step at 32^3"] = time_steps()
        print(f"step at 32^3: {found['step at 32^3']['times faster']:.1f} times faster")
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
