"""A small language model of transformers on any number of workers; `before/huggingface_model.py`
is a plain loop of it."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import samepath.huggingface


def sentences(number, seed):
    """Sentences of 4 to 12 words that follow one another, padded; padding is no label (-100)."""
    made, found = torch.Generator().manual_seed(seed), []
    for _ in range(number):
        length, first = torch.randint(4, 13, (2,), generator=made).tolist()
        words = [(first + place) % 13 + 1 for place in range(length)]
        rest = 12 - length
        found.append(
            {
                "input_ids": words + [0] * rest,
                "attention_mask": [1] * length + [0] * rest,
                "labels": words + [-100] * rest,
            }
        )
    return found


def make_model():
    size = {"vocab_size": 16, "n_positions": 12, "n_embd": 32, "n_layer": 2, "n_head": 2}
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**size, **rates, bos_token_id=0, eos_token_id=0))


def recipe():
    return samepath.huggingface.recipe(
        make_model,
        {
            "per_device_train_batch_size": 16,
            "gradient_accumulation_steps": 2,
            "num_train_epochs": 4,
            "learning_rate": 0.003,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 3,
            "seed": 0,
        },
        train_dataset=sentences(160, seed=1),
        eval_dataset=sentences(40, seed=2),
    )
