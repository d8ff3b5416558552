"""Guarded memory keeps shape, strides and alignment, and shows every byte written outside."""

from __future__ import annotations

import pytest
import torch

from kernelyard.verify import guards

LAYOUTS = {
    "contiguous": torch.randn(7, 129),
    "strided": torch.randn(7, 200)[:, :129],
    "transposed": torch.randn(129, 7).t(),
    "broadcast": torch.randn(1, 129).expand(7, 129),
    "misaligned": torch.randn(904)[1:].view(7, 129),
    "empty": torch.randn(0, 129),
    "one element": torch.randn(1, 1),
    "scalar": torch.randn(()),
    "bfloat16": torch.randn(7, 129).bfloat16(),
    "int64": torch.arange(12).view(3, 4),
}


@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS)
def test_surrounded_input_is_the_same_tensor_elsewhere(tensor: torch.Tensor) -> None:
    copy = guards.surround(tensor).tensor
    assert (copy.shape, copy.stride(), copy.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert torch.equal(copy, tensor)
    assert tensor.numel() == 0 or copy.data_ptr() % 16 == tensor.data_ptr() % 16


@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS)
def test_untouched_output_has_no_store_astray_even_when_poisoned(tensor: torch.Tensor) -> None:
    region = guards.output(tensor)
    if 0 not in tensor.stride():
        guards.poison(region)
        assert bool(guards.unwritten(region.tensor).all())
    assert guards.astray(region) == "" or 0 in tensor.stride()


@pytest.mark.parametrize(("at", "words"), [(-1, "1 element before its start"), (903, "1 element past its end (the farthest is 1 past)")])
def test_one_element_beside_an_output_is_seen(at: int, words: str) -> None:
    region = guards.output(torch.empty(7, 129))
    region.tensor.as_strided((1,), (1,), region.tensor.storage_offset() + at).fill_(1.0)
    assert guards.astray(region) == words


def test_a_whole_row_too_many_fits_in_the_guard() -> None:
    region = guards.output(torch.empty(2, 32768))
    region.tensor.as_strided((32768,), (1,), region.tensor.storage_offset() + 65536).zero_()
    assert guards.astray(region).startswith("32768 elements past its end")


def test_store_between_the_rows_of_a_strided_output_is_seen() -> None:
    region = guards.output(LAYOUTS["strided"])
    region.tensor.as_strided((1,), (1,), region.tensor.storage_offset() + 129).fill_(1.0)
    assert guards.astray(region) == "1 element in the gaps between its rows"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_around_an_input_is_nan_that_is_not_the_poison(dtype: torch.dtype) -> None:
    region = guards.surround(torch.zeros(4, 5, dtype=dtype))
    around = region.buffer[region.end :].view(dtype)
    assert bool(around.isnan().all())
    assert not bool(guards.unwritten(around).any())


def test_gaps_between_the_rows_of_an_input_are_nan() -> None:
    region = guards.surround(LAYOUTS["strided"])
    assert int(region.span().isnan().sum()) == 6 * (200 - 129)


def test_other_values_arrive_at_the_same_addresses() -> None:
    region = guards.surround(LAYOUTS["strided"])
    address, other = region.tensor.data_ptr(), torch.randn(7, 200)[:, :129]
    guards.write(region, other)
    assert region.tensor.data_ptr() == address
    assert torch.equal(region.tensor, other)
    assert int(region.span().isnan().sum()) == 6 * (200 - 129)


@pytest.mark.gpu
def test_guards_work_on_a_gpu() -> None:
    region = guards.output(torch.empty(7, 129, device="cuda", dtype=torch.bfloat16))
    guards.poison(region)
    assert guards.astray(region) == "" and bool(guards.unwritten(region.tensor).all())
    region.tensor.as_strided((1,), (1,), region.tensor.storage_offset() + 903).fill_(1.0)
    assert guards.astray(region).startswith("1 element past its end")
