"""A small language model of transformers, trained by a loop."""

import torch
from torch.utils.data import DataLoader
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    default_data_collator,
    get_cosine_schedule_with_warmup,
)


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


torch.manual_seed(0)
model = make_model()
data = sentences(160, seed=1)
loader = DataLoader(data, batch_size=32, shuffle=True, collate_fn=default_data_collator)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.0, fused=True)
schedule = get_cosine_schedule_with_warmup(optimizer, 3, 4 * len(loader))
for _ in range(4):
    for batch in loader:
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
