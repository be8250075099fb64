"""What goes between a parameter server and its workers arrives as it was."""

from __future__ import annotations

import math

import torch

from samepath.engine.server.message import pack, unpack_facts, unpack_tensors


def test_tensors_of_all_kinds_arrive_to_the_bit() -> None:
    tensors = [
        torch.randn(3, 5),
        torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        torch.tensor(7),
        torch.randn(3, dtype=torch.bfloat16),
        torch.empty(0, 4),
        torch.tensor([True, False, True]),
        torch.randn(2, dtype=torch.complex64),
        torch.tensor([math.nan, -0.0, math.inf], dtype=torch.float64),
        torch.randn(4, 6)[:, ::2],
    ]
    message = pack({"loss": 0.1, "step": 3}, tensors, tensors)
    assert message.dtype == torch.uint8
    found = unpack_tensors(message.clone(), tensors)
    for sent, got in zip(tensors, found, strict=True):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert (
            got.contiguous()
            .view(-1)
            .view(torch.uint8)
            .equal(sent.contiguous().view(-1).view(torch.uint8))
        )
        assert got.data_ptr() % 64 == 0 or not got.numel()
    assert found[1].stride() == tensors[1].stride(), "kernels choose by layout"
    assert unpack_facts(message) == {"loss": 0.1, "step": 3}


def test_a_tensor_that_is_not_there_keeps_its_place() -> None:
    like = [torch.zeros(3), torch.zeros(2, dtype=torch.int64)]
    message = pack({}, [None, torch.tensor([4, 5])], like)
    assert unpack_tensors(message, like)[1].tolist() == [4, 5]


def test_facts_alone() -> None:
    facts = unpack_facts(pack({"loss": math.nan, "losses": [1e-300, -math.inf]}))
    assert math.isnan(facts["loss"])
    assert facts["losses"] == [1e-300, -math.inf]
