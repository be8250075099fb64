"""Bring the tables of docs/nodules.md up to date with what benchmarks found.

    python scripts/write_nodules_docs.py

In: benchmarks/results/nodules_worth.json, nodules_paper_loss.json and nodules_ct.json. Out: the
parts between the page's markers, and docs/images/nodules_worth.png. The words around them are
written by hand and must be read again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from samepath.recipes.nodules.worth.compare import verdict
from samepath.recipes.nodules.worth.page import arms_table, draw_worth, pairs_table
from samepath.recipes.nodules.worth.runs import Worth, from_json
from samepath.report.page import markdown

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FULL = {"folds": 5, "seeds": 5, "generator_epochs": 150, "epochs": 20}
"""Less is too little to answer the question."""


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


# ---- what new nodules are worth


def found_worth(content: dict[str, Any]) -> Worth:
    return from_json(content | {"runs": []})


def worth() -> str:
    """How it was done, the tables, the verdict, the figure, and what was tried."""
    content = read("nodules_worth")
    found = found_worth(content)
    percents = sorted({each.percent for each in found.arms})
    shares = " and ".join(filter(None, [", ".join(map(str, percents[:-1])), f"{percents[-1]}%"]))
    parts = [
        f"`benchmarks/nodules_worth.py`: generator `{found.generator}` ({found.generator_epochs} "
        f"epochs), `{found.recipe}` ({found.epochs} epochs), {found.num_examples} nodules at "
        f"{content['side']}³ voxels, {found.folds} folds, {found.seeds} seeds, {shares} of the "
        f"data, {found.times:g} generated for each real one; commit {content['commit']}."
    ]
    if content.get("note"):
        parts.append(content["note"])
    if any(getattr(found, name) < least for name, least in FULL.items()):
        parts.append("**This budget is too small to answer the question.**")
    parts[0] = " ".join(parts)
    said = verdict(found.pairs, found.seeds)
    return "\n\n".join(
        [
            parts[0],
            markdown(arms_table(found)).strip(),
            markdown(pairs_table(found)).strip(),
            f"Verdict, as `samepath worth` says it: *{said}*",
            "![AUC of the classifiers, and what generated nodules add](images/nodules_worth.png)",
            tried(content),
        ]
    )


def tried(content: dict[str, Any]) -> str:
    """Every table that was made, this one last, in a line each."""
    ours = content | {
        "percents": sorted({each["percent"] for each in content["arms"]}),
        "pairs": [pair for pair in content["pairs"] if pair["p_corrected"] is not None],
    }
    rows = [
        [
            *("generator", "its epochs", "classifier's epochs", "voxels", "folds x seeds"),
            *("generated per real one", "share", "AUC gained beside real", "beside augmented"),
        ]
    ]
    for each in [*content.get("tried", []), ours]:
        last = each["percents"][-1]
        gained = {pair["against"]: pair for pair in each["pairs"] if pair["percent"] == last}
        rows.append(
            [
                *(str(each[name]) for name in ("generator", "generator_epochs", "epochs")),
                f"{each['side']}³",
                f"{each['folds']} x {each['seeds']}",
                f"{each['times']:g}",
                f"{last}%",
                *(_gain(gained.get(against)) for against in ("real", "augmented")),
            ]
        )
    return f"What was tried, all of it, the table above last:\n\n{markdown(rows).strip()}"


def _gain(pair: dict[str, Any] | None) -> str:
    if pair is None:
        return "not asked"
    auc = pair["auc"]
    return (
        f"{auc['mean']:+.3f} ({auc['low']:+.3f} to {auc['high']:+.3f}), "
        f"p {pair['p_corrected']:.2g}, over folds {pair['p_folds']:.2g}"
    )


# ---- the paper's loss


def paper_loss() -> str:
    """A line per way, and what of the difference is data."""
    found = read("nodules_paper_loss")
    rows = [
        [
            *("way", "training cubes", "lowest validation loss", "at epoch"),
            *("test loss, those weights", "training loss at the end"),
        ]
    ]
    for name, way in found["ways"].items():
        rows.append(
            [
                name,
                str(way["training cubes"]),
                f"{way['lowest validation loss']:.4f}",
                f"{way['at epoch']} of {way['epochs']}",
                f"{way['test loss']:.4f}",
                f"{way['last'][1]:.4f}",
            ]
        )
    best = min(found["ways"].values(), key=lambda way: float(way["lowest validation loss"]))
    text = (
        f"{found['target']} is not reached; the way with the lowest validation loss has "
        f"{best['test loss']:.4f} on the test part, {best['test loss'] / found['target']:.1f} "
        f"times that. Each way had {found['seconds']:.0f} s of one core's time."
    )
    if best["test loss"] <= found["target"]:
        text = f"{found['target']} is reached: {best['test loss']:.5f} on the test part."
    return "\n\n".join([markdown(rows).strip(), " ".join([text, *of_data(found["ways"])])])


def of_data(ways: dict[str, Any]) -> list[str]:
    """What half of the cubes costs, where that was run."""
    whole, half = (
        ways.get(name) for name in ("mirrored and turned", "mirrored and turned, half of the cubes")
    )
    if whole is None or half is None:
        return [
            "What of it is data is not known: training on mirrored and turned cubes, and on half "
            "of them, is in the script and has not been run to its end."
        ]
    first, second = whole["test loss"], half["test loss"]
    return [
        f"What of it is data: mirrored and turned, {half['training cubes']} cubes come to a test "
        f"loss of {second:.4f} and {whole['training cubes']} to {first:.4f}, "
        f"{first / second - 1:+.0%}; the paper trained on about 1850."
    ]


PARTS: dict[str, Callable[[], str]] = {"worth": worth, "paper-loss": paper_loss}


def render(text: str) -> str:
    """The page with its parts filled in."""
    for name, part in PARTS.items():
        before, begin, rest = text.partition(f"<!-- {name} -->")
        _, end, after = rest.partition("<!-- end -->")
        assert end, f"docs/nodules.md has no place for {name}"
        text = f"{before}{begin}\n{part().strip()}\n{end}{after}"
    return text


if __name__ == "__main__":
    draw_worth(found_worth(read("nodules_worth")), ROOT / "docs" / "images" / "nodules_worth.png")
    page = ROOT / "docs" / "nodules.md"
    page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")
