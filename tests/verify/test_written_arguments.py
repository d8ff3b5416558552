"""Ops that write into their arguments: what is compared, put back between runs, and refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.op import Gradient, Op, Point
from kernelyard.registry.spec import Cost, DeclarationError, Status, TensorSpec, Tolerance
from kernelyard.verify.oracle import check_workload

Write = Callable[[Tensor, Tensor, Tensor], Tensor]


def reference(x: Tensor, cache: Tensor, at: Tensor) -> Tensor:
    cache[at.long()] = 2 * x
    return cache.nansum(0)


def inputs(workload: Any, generator: torch.Generator) -> tuple[Any, ...]:
    """The cache has a gap behind each row, and a row of NaN that nobody writes."""
    rows, cols = (workload.dim(name) for name in ("rows", "cols"))
    cache = torch.randn(rows, cols + 3, generator=generator)[:, :cols]
    cache[-1] = torch.nan
    return torch.randn(cols, generator=generator), cache, torch.tensor(rows // 2)


APPEND = Op(
    name="append",
    summary="writes a row and adds them",
    schema="(Tensor x, Tensor(a!) cache, Tensor at) -> Tensor",
    dims=("rows", "cols"),
    dtypes=("float32",),
    tensors=lambda sizes, dtype, statics: {
        "x": TensorSpec((sizes["cols"],), dtype),
        "cache": TensorSpec((sizes["rows"], sizes["cols"]), dtype, (sizes["cols"] + 3, 1)), "at": TensorSpec((), "int64"),
    },
    sizes=lambda specs: {"rows": specs["cache"].shape[0], "cols": specs["x"].shape[0]},  # type: ignore[union-attr]
    validate=lambda *args: None,
    empty=lambda x, cache, at: (torch.empty_like(x),),
    reference=reference,
    inputs=inputs,
    tolerance=lambda workload: Tolerance(1e-5, 1e-5, "a sum of few", others=(Tolerance(1e-6, 0.0, "a product"),)),
    cost=lambda workload: Cost(1, 1),
    matrices={"correctness": (Point((6, 5), "float32"),)},
)  # fmt: skip


def verdict(write: Write) -> tuple[Status, str]:
    """What the oracle says of a kernel that writes and sums as given."""
    kernel = Kernel("torch.test", "append", "torch", "for a test", "none:none", Support(("cpu",), ("float32",)))
    found = check_workload(APPEND, kernel, Executable(write), APPEND.workload(Point((6, 5), "float32")), device=torch.device("cpu"))
    return found.status, found.reason


def test_a_schema_tells_what_is_written_into() -> None:
    assert APPEND.mutated == ("cache",)


def test_results_are_the_outputs_and_what_is_written_and_the_arguments_stay() -> None:
    args = inputs(APPEND.workload(Point((6, 5), "float32")), torch.Generator().manual_seed(0))
    before = args[1].clone()
    out, cache = APPEND.results(args)
    assert torch.equal(cache[3], 2 * args[0]) and torch.equal(out, cache.nansum(0))
    torch.testing.assert_close(args[1], before, rtol=0, atol=0, equal_nan=True)


def test_a_right_kernel_is_ok_however_often_it_runs() -> None:
    assert verdict(reference) == (Status.OK, "")


def never(x: Tensor, cache: Tensor, at: Tensor) -> Tensor:
    own = cache.clone()
    return reference(x, own, at)


def elsewhere(x: Tensor, cache: Tensor, at: Tensor) -> Tensor:
    out = reference(x, cache, at)
    cache[0, 0] = cache[0, 0] * (1 + 1e-7)
    return out


def beside(x: Tensor, cache: Tensor, at: Tensor) -> Tensor:
    out = reference(x, cache, at)
    cache.as_strided((1,), (1,), cache.storage_offset() + cache.shape[1])[0] = 1.0
    return out


def twice_as_much(x: Tensor, cache: Tensor, at: Tensor) -> Tensor:
    out = reference(x, cache, at)
    cache[at] *= 2
    return out


def over_nan(x: Tensor, cache: Tensor, at: Tensor) -> Tensor:
    out = reference(x, cache, at)
    cache[-1] = 0.0
    return out


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (never, "cache afterwards: 5 of 30 elements differ"),
        (twice_as_much, "cache afterwards: 5 of 30 elements differ"),
        (elsewhere, "input cache was changed"),
        (beside, "input cache was changed"),
        (over_nan, "cache afterwards: 5 of 30 elements differ"),
    ],
)
def test_what_is_written_wrongly_or_elsewhere_is_found(write: Write, told: str) -> None:
    status, reason = verdict(write)
    assert status is Status.WRONG and told in reason


def test_other_inputs_must_stay() -> None:
    def doubled(x: Tensor, cache: Tensor, at: Tensor) -> Tensor:
        out = reference(x, cache, at)
        x *= 2
        return out

    assert verdict(doubled) == (Status.WRONG, "input x was changed, first at its element 0")


@pytest.mark.parametrize("schema", ["(Tensor x, Tensor?(a!) cache) -> Tensor", "(Tensor x, float(a!) cache) -> Tensor"])
def test_only_a_tensor_that_is_given_can_be_written_into(schema: str) -> None:
    with pytest.raises(DeclarationError, match="writes into a tensor that is given"):
        replace(APPEND, schema=schema)


def test_what_writes_into_its_arguments_can_not_have_a_gradient() -> None:
    with pytest.raises(DeclarationError, match="can't have a gradient"):
        replace(APPEND, gradient=Gradient(lambda args, outputs: (), lambda saved, grads: ()))
