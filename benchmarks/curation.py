"""Curation: what it costs beside its t-SNE, how features scale, and what it finds.

    python benchmarks/curation.py speed     the pipeline after features, over openTSNE alone
    python benchmarks/curation.py features  two workers against one
    python benchmarks/curation.py errors    planted errors found, beside cleanlab

The first two use CIFAR-10's first 20,000 training images; the last digits, and 4000 of those.
Prints ratios, writes JSON. `errors` needs pip install 'samepath[benchmarks]'.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.curation.embed import Embedding
from samepath.curation.features import Extractor, extract, load_from, plan_extraction
from samepath.curation.pipeline import curate
from samepath.curation.reasons import held_out_beliefs, label_errors
from samepath.curation.request import CurateRequest
from samepath.engine.train import Request, train
from samepath.recipe import find_recipe

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "shared" / "data" / "cifar-10-batches-bin" / "data_batch_2.bin"
ROUNDS = 3
SEEDS = (10, 11, 12)
"""Not those that samepath's weights and thresholds were chosen on (0 to 4)."""


def timed(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def trained(folder: Path, recipe: str, data: str | None, epochs: int) -> Path:
    train(Request(recipe=recipe, data=data, num_workers=2, epochs=epochs, out=folder / "run"))
    return folder / "run"


def speed(folder: Path) -> dict[str, Any]:
    """From features to a keep-list on disk, against openTSNE on the same PCA and cores."""
    from openTSNE import TSNE

    run = trained(folder, "cifar10-small", str(DATA), 1)

    def pipeline(out: Path) -> None:
        curate(CurateRequest(recipe="cifar10-small", data=str(DATA), source=run, out=out))

    pipeline(folder / "warm")  # its features are what all rounds begin with
    (features,) = (folder / "warm" / "cache").glob("features-*")
    reduced = Embedding()._reduce(_features_of(folder / "warm"))
    cores = len(os.sched_getaffinity(0))
    whole, alone = [], []
    for number in range(ROUNDS):
        out = folder / f"round-{number}"
        (out / "cache").mkdir(parents=True)
        for file in (features, features.with_name("origin.json")):
            shutil.copy(file, out / "cache")
        order: list[Callable[[], None]] = [
            lambda out=out: whole.append(timed(lambda: pipeline(out))),  # type: ignore[misc]
            lambda: alone.append(timed(lambda: TSNE(n_jobs=cores, random_state=0).fit(reduced))),
        ]
        for step in order[:: -1 if number % 2 else 1]:
            step()
    ratios = [w / a for w, a in zip(whole, alone, strict=True)]
    return {"pipeline over openTSNE": spread(ratios), "pipeline": whole, "openTSNE": alone}


def _features_of(folder: Path) -> NDArray[np.float32]:
    from safetensors.numpy import load_file

    features: NDArray[np.float32] = load_file(folder / "features.safetensors")["features"]
    return features


def features(folder: Path) -> dict[str, Any]:
    """Features of a ResNet-18 of half the width, start of the workers included."""
    recipe = str(HERE / "half_cifar10.py")
    found = find_recipe(recipe, str(DATA))
    extractor = Extractor()
    model = extractor.model(found)
    plan = plan_extraction(found, model, extractor, name=recipe, data=str(DATA), num_classes=10)
    seconds: dict[int, float] = {}
    for workers in (1, 2):
        seconds[workers] = timed(
            lambda n=workers: extract(plan, model, folder / f"parts{n}", num_workers=n)  # type: ignore[misc]
        )
    return {"times faster": seconds[1] / seconds[2], "seconds": seconds}


def errors(folder: Path) -> dict[str, Any]:
    """Recall at cleanlab's precision, by its own choice of what is wrong and by ranking."""
    results: dict[str, Any] = {}
    for name, epochs in (("digits", 20), ("cifar10", 15)):
        for seed in SEEDS:
            os.environ["PLANTED_SEED"] = str(seed)
            recipe = str(HERE / f"planted_{name}.py")
            place = folder / f"{name}-{seed}"
            run = trained(place, recipe, None, epochs)
            results[f"{name} seed {seed}"] = judge(recipe, run, place)
    return results


def judge(recipe: str, run: Path, folder: Path) -> dict[str, Any]:
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    found = find_recipe(recipe)
    extractor = Extractor()
    model = extractor.model(found)
    load_from(run, found, model)
    plan = plan_extraction(found, model, extractor, name=recipe, num_classes=10)
    arrays = extract(plan, model, folder / "parts", num_workers=1)
    wrong = found.train_facts["planted"].astype(bool)
    labels = found.train[1].numpy()  # type: ignore[index]
    reduced = Embedding()._reduce(arrays["features"])
    ours = label_errors(reduced, labels, probabilities=arrays["probabilities"])
    flagged = ours.flagged | ours.outliers
    beliefs = {
        "the network's predictions": arrays["probabilities"].astype(np.float64),
        "held-out predictions": held_out_beliefs(reduced, labels, 10),
    }
    result: dict[str, Any] = {"planted": int(wrong.sum()), "samepath": rates(flagged, wrong)}
    for name, belief in beliefs.items():
        theirs = np.asarray(find_label_issues(labels, belief, n_jobs=1))
        chosen = rates(theirs, wrong)
        quality = get_label_quality_scores(labels, belief)
        result[f"cleanlab on {name}"] = {
            **chosen,
            "its ranking's recall at that precision": recall_at(
                -quality, wrong, chosen["precision"]
            ),
            "samepath's ranking's": recall_at(ours.suspicion, wrong, chosen["precision"]),
            "average precision": average_precision(-quality, wrong),
        }
    result["samepath"]["average precision"] = average_precision(ours.suspicion, wrong)
    return result


def rates(flagged: NDArray[np.bool_], wrong: NDArray[np.bool_]) -> dict[str, Any]:
    right = int((flagged & wrong).sum())
    return {
        "dropped": int(flagged.sum()),
        "precision": right / max(int(flagged.sum()), 1),
        "recall": right / int(wrong.sum()),
    }


def recall_at(score: NDArray[Any], wrong: NDArray[np.bool_], precision: float) -> float:
    """The most that is found by a threshold on the score, at this precision or better."""
    found = np.cumsum(wrong[np.argsort(-score, kind="stable")])
    good = np.flatnonzero(found / np.arange(1, len(wrong) + 1) >= precision)
    return float(found[good[-1]] / wrong.sum()) if len(good) else 0.0


def average_precision(score: NDArray[Any], wrong: NDArray[np.bool_]) -> float:
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(wrong, score))


def show(name: str, found: dict[str, Any]) -> None:
    if name == "speed":
        ratio = found["pipeline over openTSNE"]
        print(
            f"pipeline over openTSNE: {ratio['median']:.2f} "
            f"({ratio['low']:.2f} to {ratio['high']:.2f}, {ROUNDS} rounds)"
        )
    elif name == "features":
        print(f"features, 2 workers against 1: {found['times faster']:.2f} times faster")
    else:
        for case, results in found.items():
            print(f"{case}: {results['planted']} planted")
            for who, rate in results.items():
                if isinstance(rate, dict):
                    words = ", ".join(
                        f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
                        for key, value in rate.items()
                    )
                    print(f"  {who}: {words}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = {"speed": speed, "features": features, "errors": errors}
    parser.add_argument("part", choices=parts)
    default = HERE / "results" / "curation.json"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    if not DATA.exists():
        sys.exit(f"{DATA} is not there: this benchmark needs CIFAR-10's first two batches")
    with tempfile.TemporaryDirectory(prefix="samepath-benchmark-") as folder:
        found = parts[options.part](Path(folder))
    content = json.loads(options.out.read_text()) if options.out.exists() else {}
    options.out.write_text(json.dumps({**content, options.part: found}, indent=1) + "\n")
    show(options.part, found)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
