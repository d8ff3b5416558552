"""Edge values are what their names say, and keep the result of each op defined."""

from __future__ import annotations

import pytest
import torch

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.contracts.softmax import SOFTMAX
from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.verify import edges

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def filled(edge: str, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (8, 129)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn(shape, generator=generator).to(dtype)
    edges.fill(edge, tensor, generator)
    return tensor


@pytest.mark.parametrize("op", [RMSNORM, SOFTMAX, VECTOR_ADD], ids=lambda op: op.name)
def test_every_edge_that_an_op_names_exists(op) -> None:
    assert set(op.edges) <= set(edges.FILLS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_values_have_a_row_sum_of_squares_that_float32_holds(dtype: torch.dtype) -> None:
    x = filled("large", dtype, (2, 32768))
    assert bool(x.isfinite().all())
    assert bool(x.float().square().sum(-1).isfinite().all())
    assert float(x.abs().max()) > 1e4


def test_repeated_values_overflow_a_float16_sum_of_squares() -> None:
    x = filled("repeated", torch.float16)
    assert bool(x.square().isinf().all()) and bool(x.isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_denormal_values_are_denormal(dtype: torch.dtype) -> None:
    x = filled("denormal", dtype)
    assert 0 < float(x.abs().double().max()) < torch.finfo(dtype).smallest_normal


@pytest.mark.parametrize(("edge", "test"), [("nan", torch.isnan), ("inf", torch.isinf)])
def test_scattered_values_leave_every_other_row_clean(edge: str, test) -> None:
    rows = test(filled(edge)).sum(-1)
    assert rows.tolist() == [1, 0] * 4


def test_masked_rows_keep_a_finite_value() -> None:
    x = filled("masked", shape=(200, 3))
    assert bool(x.isinf().any()) and bool(x.isfinite().any(-1).all())


def test_all_masked_takes_every_other_row() -> None:
    assert (filled("all_masked") == -torch.inf).all(-1).tolist() == [True, False] * 4


@pytest.mark.parametrize("edge", edges.FILLS)
def test_shapes_without_elements_of_one_and_repeated_by_a_stride_of_zero_are_filled(edge: str) -> None:
    for shape in ((0, 5), (5, 0), (1, 1), (3,), (2, 3, 4)):
        filled(edge, shape=shape)
    repeated = torch.randn(1, 129).expand(7, 129)
    edges.fill(edge, repeated, torch.Generator().manual_seed(0))
    assert torch.equal(repeated[0].nan_to_num(), repeated[6].nan_to_num())
