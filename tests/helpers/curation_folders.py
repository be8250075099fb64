"""Curation folders for tests: points in blobs, pictures of them, losses, a keep-list."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from samepath.data.formats.cifar10 import CLASS_NAMES
from samepath.data.keep_list import KeepList, write_keep_list

NAMES = list(CLASS_NAMES)
NOISE_SHARE = 0.06
LABEL_NOISE = {
    "judge": "cross-validated logistic regression on the features of a network that has seen the "
    "labels",
    "predictions": None,
    "rate": 0.043,
    "rate_low": 0.031,
    "rate_high": 0.0552,
    "num_taken": 21,
    "confusions": [
        {"right": "dog", "written": "cat", "number": 12.3, "low": 7.8, "high": 16.8},
        {"right": "ship", "written": "airplane", "number": 4.4, "low": 0.0, "high": 9.1},
    ],
}


def make_curation_folder(
    path: Path,
    num_examples: int = 500,
    *,
    num_classes: int = 10,
    pictures: str = "colour",
    labelled: bool = True,
    classifier: bool = True,
) -> Path:
    """A folder as `samepath curate` writes it. `pictures`: colour, grey, slices or none."""
    random = np.random.default_rng(0)
    labels = random.integers(0, num_classes, num_examples)
    angles = 2 * np.pi * np.arange(num_classes) / num_classes
    centres = np.stack([np.cos(angles), np.sin(angles)], 1) * 40
    spread = centres[labels] + random.normal(0, 5, (num_examples, 2))
    is_noise = random.random(num_examples) < NOISE_SHARE
    spread[is_noise] = random.uniform(-55, 55, (int(is_noise.sum()), 2))
    places: NDArray[np.float32] = spread.astype(np.float32)
    losses = random.gamma(1.0, 0.1, num_examples) + is_noise * random.gamma(3.0, 1.0, num_examples)
    reduced = np.concatenate(
        [places / 10, random.normal(0, 0.3, (num_examples, 6))], axis=1
    ).astype(np.float32)
    features = {"features": reduced, "losses": losses.astype(np.float32)}
    if labelled:
        features["labels"] = labels.astype(np.int64)
    if classifier:
        scores = random.gamma(1.0, 0.1, (num_examples, num_classes))
        scores[np.arange(num_examples), labels] += np.where(is_noise, 0.1, 3.0)
        features["probabilities"] = (scores / scores.sum(1, keepdims=True)).astype(np.float32)
    path.mkdir(parents=True)
    facts = {"patient": [f"p{row % 7}" for row in range(num_examples)]}
    (path / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    save_file(features, path / "features.safetensors")
    mapped = {"map": places, "reduced": reduced}
    if labelled:
        suspicion = 0.5 * is_noise + 0.5 * random.random(num_examples)
        mapped["suspicion"] = suspicion.astype(np.float32)
    save_file(mapped, path / "map.safetensors")
    if pictures != "none":
        shape = {"colour": (16, 16, 3), "grey": (16, 16), "slices": (16, 48)}[pictures]
        drawn = random.integers(0, 60, (num_examples, *shape), dtype=np.uint8)
        for row, label in enumerate(labels):
            drawn[row, 2 : 4 + label, 3:13] += np.uint8(120)
        save_file({"images": drawn}, path / "images.safetensors")
    names = [NAMES[k % 10] + ("" if k < 10 else f" {k}") for k in range(num_classes)]
    names = names if labelled else ["all"]
    reasons = np.where(is_noise, "noise", "").astype(object)
    duplicates = np.flatnonzero(~is_noise)[: num_examples // 100]
    reasons[duplicates] = "duplicate"
    reasons[np.flatnonzero(~is_noise)[num_examples // 100 : num_examples // 50]] = "label error"
    kept = reasons == ""
    keep_list = KeepList(
        labels=labels.astype(np.int64) if labelled else None,
        positions=places,
        clusters=np.where(is_noise, -1, 0).astype(np.int64),
        kept=kept.astype(np.bool_),
        reasons=reasons.tolist(),
    )
    write_keep_list(path / "keep.csv", keep_list)
    about = {
        "format": 1,
        "recipe": "digits",
        "data": None,
        "num_examples": num_examples,
        "class_names": names,
        "settings": {"seed": 0, "method": "dbscan"},
        "classes": [
            {"name": name, "label": k, "eps": 40 / num_examples**0.5 + 0.5, "min_samples": 5}
            for k, name in enumerate(names)
        ],
        "num_kept": int(kept.sum()),
        "label_noise": LABEL_NOISE if labelled else None,
    }
    (path / "curation.json").write_text(json.dumps(about))
    return path
