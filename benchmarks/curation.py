"""Curation: what it costs beside its t-SNE, how features scale, and what it finds.

    python benchmarks/curation.py speed     the pipeline after features, over openTSNE alone
    python benchmarks/curation.py features  two workers against one
    python benchmarks/curation.py errors    planted errors found, beside cleanlab
    python benchmarks/curation.py margins   the same, ranked by the margin of one training

The first two use CIFAR-10's first 20,000 training images; the last digits, and half of those (see
wrong_labels.py). Prints ratios, writes JSON. `errors` and `margins` need pip install
'samepath[benchmarks]', and keep predictions (--cache), so that they may be interrupted.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from samepath.curation.embed import Embedding
from samepath.curation.features import Extractor, extract, plan_extraction
from samepath.curation.label_noise import label_noise, sized
from samepath.curation.pipeline import curate
from samepath.curation.request import CurateRequest
from samepath.curation.training_margin import NoteMargins, training_margins
from samepath.engine.train import Request, train
from samepath.files import replaced
from samepath.recipe import Recipe, find_recipe

HERE = Path(__file__).resolve().parent
SHARED = next((p for p in HERE.parents if (p / "shared" / "data").is_dir()), HERE) / "shared"
DATA = SHARED / "data" / "cifar-10-batches-bin" / "data_batch_2.bin"
ROUNDS = 3
SEEDS = {"digits": (10, 11, 12), "cifar10": (10, 11)}
"""Not those on which the judge was made (0 to 2; for CIFAR-10 other images too)."""


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


WRONG_LABELS = str(HERE / "wrong_labels.py")
KINDS = {
    "uniform": ("0", "0.05", "0.1", "0.2", "0.4"),
    "classes": ("0.05", "0.1", "0.2", "0.4"),
    "one": ("0.1", "0.2", "0.4"),
    "few": ("0.1", "0.2", "0.4"),
}
"""Shares of wrong labels by kind (wrong_labels.py)."""
FILTERS = ("prune_by_noise_rate", "prune_by_class")
RANKINGS = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
Cell = dict[str, NDArray[Any]]


def errors(cache: Path) -> dict[str, Any]:
    """Every cell of wrong labels, judged by samepath and by cleanlab on the same out-of-fold
    predictions. Predictions are kept in `cache`: an interrupted sitting goes on."""
    results: dict[str, Any] = {}
    for name, cell in cells(cache):
        results[name] = judge(cell)
        print(name, json.dumps(results[name]), file=sys.stderr, flush=True)
    return results


def cells(cache: Path, most_seeds: int | None = None) -> Iterator[tuple[str, Cell]]:
    """Every cell by name, which WRONG_LABELS is set to meanwhile."""
    os.environ["WRONG_LABELS_CACHE"] = str(cache)
    names = [
        (f"{data}:{kind}:{share}:{seed}", seed)
        for data, seeds in SEEDS.items()
        for seed in seeds[:most_seeds]
        for kind, shares in KINDS.items()
        for share in shares
    ]
    for name, seed in names:
        file = cache / f"{name.replace(':', '-')}.npz"
        os.environ["WRONG_LABELS"] = name
        if not file.exists():
            cell = out_of_fold(find_recipe(WRONG_LABELS), seed)
            with replaced(file) as aside, aside.open("wb") as out:
                np.savez(out, **cell)  # type: ignore[arg-type]
        yield name, dict(np.load(file))


def margins(cache: Path) -> dict[str, Any]:
    """Average precision of rankings: by the judge, by the mean margin while one network learned all
    labels, and by the mean of the two ranks."""
    from scipy.stats import rankdata

    results: dict[str, Any] = {}
    for name, cell in cells(cache, most_seeds=1):
        labels = cell["labels"]
        wrong = labels != cell["right"]
        if not wrong.any():
            continue
        with tempfile.TemporaryDirectory(prefix="samepath-benchmark-") as folder:
            out, listen = Path(folder) / "run", NoteMargins(head="3")
            train(Request(recipe=WRONG_LABELS, num_workers=1, out=out, listen=listen))
            found = training_margins([(out, np.arange(len(labels)))], len(labels))
        assert found is not None
        judged = label_noise(cell["told"].astype(np.float64), labels).wrong
        both = rankdata(judged) + rankdata(-found)
        scores = {"judge": judged, "training margin": -found, "mean of ranks": both}
        results[name] = {who: average_precision(score, wrong) for who, score in scores.items()}
        print(name, json.dumps(results[name]), file=sys.stderr, flush=True)
    return results


def out_of_fold(recipe: Recipe, seed: int) -> Cell:
    """What each of five models says of the fifth it has not seen, by a plain loop in one process:
    a hundred trainings of seconds would else be mostly starts of workers."""
    inputs, labels = recipe.train  # type: ignore[misc]
    fold = np.random.default_rng([seed, 5]).permutation(len(labels)) % 5
    told = np.empty((len(labels), 10), np.float32)
    for number in range(5):
        torch.manual_seed(100 * seed + number)
        model = recipe.model()
        optimizer = recipe.optimizer(model.parameters())
        schedule = recipe.schedule(optimizer) if recipe.schedule is not None else None
        ours = torch.from_numpy(np.flatnonzero(fold != number))
        for _ in range(recipe.epochs):
            for rows in ours[torch.randperm(len(ours))].split(recipe.batch_size):
                optimizer.zero_grad()
                recipe.loss(model, (inputs[rows], labels[rows])).backward()
                optimizer.step()
            if schedule is not None:
                schedule.step()
        theirs = np.flatnonzero(fold == number)
        with torch.no_grad():
            told[theirs] = model.eval()(inputs[theirs]).softmax(1).numpy()
    return {"told": told, "labels": labels.numpy(), "right": recipe.train_facts["right"]}


def judge(cell: Cell) -> dict[str, Any]:
    """A row of the table."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    told, labels = cell["told"].astype(np.float64), cell["labels"]
    wrong = labels != cell["right"]
    ours = label_noise(told, labels)
    chosen = {"samepath": sized(ours.wrong)}
    scores = {"samepath": ours.wrong}
    for name in FILTERS:
        chosen[name] = np.asarray(find_label_issues(labels, told, filter_by=name, n_jobs=1))
    for name in RANKINGS:
        scores[name] = -get_label_quality_scores(labels, told, method=name)
    return {
        "accuracy": float((told.argmax(1) == cell["right"]).mean()),
        "wrong": float(wrong.mean()),
        "estimated": ours.rate,
        "reach": ours.reach,
        "average precision": {
            name: average_precision(score, wrong) if wrong.any() else None
            for name, score in scores.items()
        },
        "dropped": {name: int(each.sum()) for name, each in chosen.items()},
        "F1": {
            name: float(2 * (each & wrong).sum() / max(int(each.sum() + wrong.sum()), 1))
            for name, each in chosen.items()
        },
        "suggested is right": float((ours.belief.argmax(1) == cell["right"])[wrong].mean())
        if wrong.any()
        else None,
    }


def average_precision(score: NDArray[Any], wrong: NDArray[np.bool_]) -> float:
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(wrong, score))


def table(results: dict[str, Any]) -> str:
    """All cells, as docs/curation.md shows them, each the mean of its seeds; where the mean is
    lost, it is in italics."""
    lines = [
        "| data, errors, wrong | seeds | judge right | all wrong | estimated | average precision "
        "| best of cleanlab | F1 of what is dropped | cleanlab by rate / by class | dropped |",
        "| --- " * 10 + "|",
    ]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for name, row in results.items():
        groups.setdefault(tuple(name.split(":")[:3]), []).append(row)
    precisions, ratios, off = [], [], []
    for (data, kind, share), rows in groups.items():
        many = [row["dropped"] for row in rows]
        wrong, estimated = _mean(rows, "wrong"), _mean(rows, "estimated")
        errors = [abs(row["estimated"] - row["wrong"]) for row in rows]
        if wrong <= 0.21:
            off += errors
        told = f"{100 * estimated:.1f} ± {100 * _mean(rows, 'reach'):.1f}"
        told = f"*{told}*" if max(errors) > 0.02 else told
        if share == "0":
            theirs = " / ".join(f"{_mean(many, each):.0f}" for each in FILTERS)
            cells = ["", "", "", "", f"{_mean(many, 'samepath'):.0f} right ones; cleanlab {theirs}"]
        else:
            found = [row["average precision"] for row in rows]
            ours = _mean(found, "samepath")
            best = statistics.mean(max(each[name] for name in RANKINGS) for each in found)
            precisions.append((ours, best))
            scores = [row["F1"] for row in rows]
            mine, theirs_f1 = _mean(scores, "samepath"), [_mean(scores, each) for each in FILTERS]
            ratios.append(mine / max(theirs_f1))
            cells = [
                _lost(f"{ours:.3f}", ours < best),
                f"{best:.3f}",
                _lost(f"{mine:.3f}", mine < max(theirs_f1)),
                " / ".join(f"{each:.3f}" for each in theirs_f1),
                f"{_mean(many, 'samepath'):,.0f}",
            ]
        words = f"{data}, {kind}, {100 * float(share):.0f}% | {len(rows)}"
        accuracy = f"{_mean(rows, 'accuracy'):.2f} | {100 * wrong:.1f}%"
        lines.append(f"| {words} | {accuracy} | {told} | {' | '.join(cells)} |")
    lost = sum(ours < best for ours, best in precisions)
    lines += [
        "",
        f"Average precision below cleanlab's best in {lost} of {len(precisions)} rows. F1 over the "
        f"better filter's: {statistics.mean(ratios):.2f} in the mean ({min(ratios):.2f} to "
        f"{max(ratios):.2f}). Estimated share, where up to 20% are wrong: off by "
        f"{100 * statistics.mean(off):.1f} points in the mean, {100 * max(off):.1f} at most.",
    ]
    return "\n".join(lines)


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return float(statistics.mean(row[name] for row in rows))


def _lost(words: str, lost: bool) -> str:
    return f"*{words}*" if lost else words


def margins_table(results: dict[str, Any]) -> str:
    """All cells with errors, as docs/curation.md shows them; the best ranking is in bold."""
    names = ("judge", "training margin", "mean of ranks")
    lines = [f"| data, errors, wrong, seed | {' | '.join(names)} |", "| --- | --- | --- | --- |"]
    for name, row in results.items():
        data, kind, share, seed = name.split(":")
        best = max(row.values())
        shown = [f"**{row[n]:.3f}**" if row[n] == best else f"{row[n]:.3f}" for n in names]
        lines.append(f"| {data}, {kind}, {100 * float(share):.0f}%, {seed} | {' | '.join(shown)} |")
    return "\n".join(lines)


def show(name: str, found: dict[str, Any]) -> None:
    if name == "speed":
        ratio = found["pipeline over openTSNE"]
        print(
            f"pipeline over openTSNE: {ratio['median']:.2f} "
            f"({ratio['low']:.2f} to {ratio['high']:.2f}, {ROUNDS} rounds)"
        )
    elif name == "features":
        print(f"features, 2 workers against 1: {found['times faster']:.2f} times faster")
    elif name == "errors":
        print(table(found))
    else:
        print(margins_table(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = {"speed": speed, "features": features, "errors": errors, "margins": margins}
    parser.add_argument("part", choices=parts)
    default = HERE / "results" / "curation.json"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "samepath-wrong-labels"
    )
    options = parser.parse_args()
    if not DATA.exists():
        sys.exit(f"{DATA} is not there: this benchmark needs CIFAR-10's first two batches")
    if options.part in ("errors", "margins"):
        torch.set_num_threads(1)
        options.cache.mkdir(parents=True, exist_ok=True)
        found = parts[options.part](options.cache)
    else:
        with tempfile.TemporaryDirectory(prefix="samepath-benchmark-") as folder:
            found = parts[options.part](Path(folder))
    content = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    text = json.dumps({**content, options.part: found}, indent=1) + "\n"
    options.out.write_text(text, encoding="utf-8")
    show(options.part, found)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
