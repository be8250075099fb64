"""A language model of transformers, as its Trainer would be given it, and its recipe."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import samepath.huggingface
from samepath import Recipe

ARGUMENTS: dict[str, Any] = {
    "output_dir": "nowhere",
    "per_device_train_batch_size": 6,
    "gradient_accumulation_steps": 2,
    "learning_rate": 0.01,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.2,
    "weight_decay": 0.1,
    "num_train_epochs": 2,
    "max_grad_norm": 0.5,
    "seed": 7,
    "logging_steps": 1,
    "report_to": "none",
}


def sentences(number: int, seed: int) -> list[dict[str, Any]]:
    """Sentences of 3 to 7 words, padded; one column that no model takes."""
    made = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(number):
        length = int(torch.randint(3, 8, (), generator=made))
        first = int(torch.randint(1, 12, (), generator=made))
        words = [(first + place) % 11 + 1 for place in range(length)] + [0] * (7 - length)
        mask = [1] * length + [0] * (7 - length)
        labels = [w if m else -100 for w, m in zip(words, mask, strict=True)]
        found.append(
            {"input_ids": words, "attention_mask": mask, "labels": labels, "text": "a sentence"}
        )
    return found


def model(dropout: float = 0.0) -> GPT2LMHeadModel:
    """Two layers; the words' embedding is the output layer's weight, too."""
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    size = {"vocab_size": 16, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**size, **rates, bos_token_id=0, eos_token_id=0))


def recipe() -> Recipe:
    return samepath.huggingface.recipe(
        lambda: model(dropout=0.1),
        ARGUMENTS,
        train_dataset=sentences(40, seed=1),
        eval_dataset=sentences(10, seed=2),
        grain_size=4,
    )
