"""The card of an exported model: how it was trained, on what, how good it is, by which digest.

In: a run, which of its weights, the tensors. Out: facts for JSON, and the same as Markdown. Paths
are named by their last part: a card goes to other people.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from samepath.data import as_source
from samepath.engine.checks.fingerprints import versions
from samepath.engine.state.checkpoint import (
    Epoch,
    epochs_of,
    kept_weights,
    list_checkpoints,
    step_of,
)
from samepath.engine.state.reopen import ReopenedRun
from samepath.engine.state.state import State, digest
from samepath.recipe import parse_monitor
from samepath.version import __version__

_SETTINGS = (
    *("batch_size", "grain_size", "seed", "threads", "epochs", "learning_rate", "weight_decay"),
    *("clip_norm", "autocast", "strategy", "virtual_workers", "exact", "compile", "factors"),
)


def card_of(
    run: ReopenedRun,
    epoch: Epoch | None,
    source_digest: str,
    model: str,
    tensors: dict[str, Tensor],
) -> dict[str, Any]:
    """The facts of a card."""
    recipe, config, starts = run.recipe, run.config, run.record["starts"]
    sets = {"training": config["num_examples"]}
    if recipe.valid is not None:
        sets["validation"] = len(as_source(recipe.valid, seed=0, collate=recipe.collate))
    epochs = _epochs(run, epoch)
    return {
        "made_by": f"samepath {__version__}",
        "recipe": Path(config["recipe"]).name,
        "recipe_identity": config["identity"],
        "run": run.folder.path.resolve().name,
        "run_id": run.record.get("id"),
        "status": run.record["status"],
        "weights": "last" if epoch is None else epoch,
        "best_by": config.get("monitor", "loss"),
        "epochs": epochs,
        "steps": _steps(run, epoch, epochs),
        "metrics": _metrics(run, epochs),
        "data": {
            "name": None if config.get("data") is None else Path(config["data"]).name,
            "identity": config.get("data_identity"),
            "keep_list": None if config.get("keep") is None else Path(config["keep"]).name,
            "examples": sets,
            "classes": list(recipe.class_names),
        },
        "settings": {n: config[n] for n in _SETTINGS if config.get(n) is not None},
        "model": {
            "class": model,
            "tensors": len(tensors),
            "numbers": sum(tensor.numel() for tensor in tensors.values()),
        },
        "digest": source_digest,
        "weights_digest": digest(State(tensors, {})),
        "num_workers": [start["num_workers"] for start in starts],
        "trained_with": starts[-1]["versions"],
        "exported_with": versions(),
    }


def _epochs(run: ReopenedRun, epoch: Epoch | None) -> int | None:
    """Epochs that were trained before the weights were as they are."""
    if epoch is None:
        return max(run.losses_by_epoch(), default=None)
    return epoch if isinstance(epoch, int) else epochs_of(kept_weights(run.folder.weights)[epoch])


def _lines(run: ReopenedRun) -> list[dict[str, Any]]:
    return [line for line in run.folder.read_metrics() if "epoch_train_loss" in line]


def _steps(run: ReopenedRun, epoch: Epoch | None, epochs: int | None) -> int | None:
    if epoch is None:
        return step_of(list_checkpoints(run.folder.checkpoints)[-1])
    return next((line["step"] for line in _lines(run) if line["epoch"] + 1 == epochs), None)


def _metrics(run: ReopenedRun, epochs: int | None) -> dict[str, float]:
    """What was logged at the end of that epoch."""
    for line in _lines(run):
        if line["epoch"] + 1 == epochs:
            found = {name: line[name] for name in line if name.startswith("valid_")}
            return {"train_loss": line["epoch_train_loss"], **found}
    return {}


def as_markdown(card: dict[str, Any]) -> str:
    """The card as a page for people."""
    data, model = card["data"], card["model"]
    sets = ", ".join(f"{number:,} for {name}" for name, number in data["examples"].items())
    metric, highest = parse_monitor(card["best_by"])
    best = f"those with the {'highest' if highest else 'lowest'} validation {metric}"
    which = {"last": "the last", "best": best}
    chosen = card["weights"]
    of_epoch = (
        f"those after {chosen} epochs" if isinstance(chosen, int) else f"extra state {chosen}"
    )
    weights = which.get(chosen, of_epoch)
    facts = {
        "Recipe": f"`{card['recipe']}` (`{card['recipe_identity'][:16]}`)",
        "Run": f"`{card['run']}`, {card['status']}",
        "Weights": f"{weights}; {card['epochs']} epochs, {card['steps']} steps",
        "Data": f"{data['name'] or 'of the recipe'}; examples: {sets}",
        "Keep-list": data["keep_list"],
        "Classes": ", ".join(map(str, data["classes"])),
        "Model": f"{model['class']}, {model['numbers']:,} numbers in {model['tensors']} tensors",
        "Inputs": "; ".join(card.get("inputs", [])),
        "Outputs": "; ".join(card.get("outputs", [])),
        "Largest difference to the run's outputs": card.get("largest_difference"),
        "Workers": ", then ".join(map(str, card["num_workers"])),
        "Digest of the training": f"`{card['digest']}`",
        "Digest of the weights": f"`{card['weights_digest']}`",
        "SHA-256 of the file": f"`{card['file_sha256']}`",
        "Made by": card["made_by"],
    }
    sections = {
        "": facts,
        "Metrics": card["metrics"],
        "Settings": card["settings"],
        "Trained with": card["trained_with"],
    }
    lines = [f"# {card['file']}", ""]
    for title, rows in sections.items():
        if title:
            lines += ["", f"## {title}", ""]
        lines += ["| what | value |", "| --- | --- |"]
        lines += [f"| {n} | {_cell(v)} |" for n, v in rows.items() if v not in (None, "")]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
