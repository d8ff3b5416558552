"""What masks of transformers let queries see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernelyard.decoder.swap_masks import GROWS, Seen, seen
from kernelyard.decoder.swap_serving import OfLast


def causal(q_len: int, keys: int, kv_len: int, batch: int = 1) -> Tensor:
    """The last query sees `keys` of kv_len."""
    ends = torch.arange(keys - q_len + 1, keys + 1)[:, None]
    return (torch.arange(kv_len)[None] < ends).expand(batch, 1, q_len, kv_len)


def added(mask: Tensor, low: float = torch.finfo(torch.float32).min) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, low)


@pytest.mark.parametrize("form", [lambda mask: mask, added, lambda mask: added(mask, -torch.inf)], ids=["boolean", "lowest", "infinite"])
def test_a_prompt_in_a_longer_cache_is_causal_over_its_keys(form: Any):
    assert seen(form(causal(3, 5, 8, batch=2)), 2, 3, 8) == Seen(True, 5, None)


def test_a_mask_that_shuts_nothing_out_is_full():
    assert seen(torch.ones(1, 1, 3, 8, dtype=torch.bool), 2, 3, 8) == Seen(False, 8, None)


def test_one_query_tells_the_length_of_each_sequence():
    mask = torch.cat([causal(1, 3, 8), causal(1, 6, 8)])
    found = seen(mask, 2, 1, 8)
    assert isinstance(found, Seen)
    assert found.lengths is not None
    assert found.lengths.tolist() == [3, 6]
    assert found.lengths.dtype == torch.int32


def test_a_mask_for_all_sequences_gives_each_its_length():
    found = seen(causal(1, 3, 8), 4, 1, 8)
    assert isinstance(found, Seen)
    assert found.lengths is not None
    assert found.lengths.tolist() == [3, 3, 3, 3]


def test_a_cache_that_is_just_full_is_one_that_grows():
    assert seen(causal(1, 8, 8), 1, 1, 8) == GROWS


def padded() -> Tensor:
    mask = causal(3, 5, 5, batch=2).clone()
    mask[0, :, :, 0] = False
    return mask


def window() -> Tensor:
    mask = causal(3, 5, 5).clone()
    mask[..., 2, 0] = False
    return mask


@pytest.mark.parametrize("q", [3, 1])
@pytest.mark.parametrize("mask", [padded(), window(), added(padded())], ids=["padding", "window", "added padding"])
def test_a_query_that_skips_keys_is_no_op_s(mask: Tensor, q: int):
    assert seen(mask[:, :, 3 - q :], 2, q, 5) == "padding or a sliding window"


@pytest.mark.parametrize("bias", [-1.0, 0.5, -100.0])
def test_a_bias_on_scores_is_no_mask(bias: float):
    mask = added(causal(3, 5, 5))
    mask[..., 2, 1] = bias
    assert seen(mask, 1, 3, 5) == "a bias on scores"


@pytest.mark.parametrize(
    "mask",
    [torch.cat([causal(3, 5, 8), causal(3, 6, 8)]), torch.zeros(1, 1, 3, 8, dtype=torch.bool), causal(3, 2, 8)],
    ids=["lengths", "nothing", "a row of nothing"],
)
def test_sequences_that_differ_and_queries_that_see_nothing_are_no_op_s(mask: Tensor):
    assert seen(mask, 2, 3, 8) == "sequences of different lengths, or queries that see nothing"


@pytest.mark.parametrize("shape", [(2, 8), (2, 4, 3, 8), (3, 1, 3, 8), (2, 1, 3, 9)])
def test_a_mask_of_another_shape_is_no_op_s(shape: tuple[int, ...]):
    assert "a mask of shape" in str(seen(torch.ones(shape, dtype=torch.bool), 2, 3, 8))


def test_what_was_worked_out_of_a_tensor_is_kept_until_it_is_written():
    asked: list[float] = []

    def compute(x: Tensor, scale: float) -> float:
        asked.append(scale)
        return float(x.sum()) * scale

    of_last, x = OfLast(compute), torch.ones(3)
    assert (of_last((x,), 2.0), of_last((x,), 2.0), len(asked)) == (6.0, 6.0, 1)
    x[0] = 2
    assert (of_last((x,), 2.0), len(asked)) == (8.0, 2)
    assert (of_last((x,), 3.0), len(asked)) == (12.0, 3)
    assert (of_last((torch.ones(3),), 3.0), len(asked)) == (9.0, 4)


@torch.inference_mode()
def test_nothing_is_kept_of_an_inference_tensor_whose_writes_torch_does_not_count():
    of_last, x = OfLast(lambda x: float(x.sum())), torch.ones(3)
    assert of_last((x,)) == 3
    x[0] = 2
    assert of_last((x,)) == 4
