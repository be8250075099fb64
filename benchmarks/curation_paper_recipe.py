"""Narrow residual networks for curation_paper.py: its runs' length, depth and last batch are in the
environment (CURATION_PAPER=DEPTH:EPOCHS:DROP_LAST)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from samepath import Recipe
from samepath.recipes.cifar10 import cifar10_small, network

WIDTH = 8
"""An eighth of the paper's."""


def recipe(data: Path | None = None) -> Recipe:
    depth, epochs, drop_last = map(int, os.environ.get("CURATION_PAPER", "18:30:0").split(":"))
    ends = [round(0.5 * epochs), round(0.8 * epochs)]
    return replace(
        cifar10_small(data),
        model=lambda: network(depth, width=WIDTH),
        # without momentum, with which the paper's weight decays would be ten times as strong
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.005),
        schedule=lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, ends, gamma=0.1),
        epochs=epochs,
        drop_last=bool(drop_last),
    )
