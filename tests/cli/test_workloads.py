"""What is typed for a shape: sizes, and behind a colon what is unusual."""

from __future__ import annotations

from typing import Any

import pytest

from kernelyard.cli.workloads import matrices
from kernelyard.errors import UsageError
from kernelyard.registry import registry
from kernelyard.registry.matrix import GIVEN, Point


def typed(op: str, *shapes: str) -> tuple[Point, ...]:
    (matrix,) = matrices(registry.current(), [op], device="cpu", matrix=None, shapes=shapes, dtype="bf16", default="performance")
    return matrix.points


@pytest.mark.parametrize(
    ("op", "text", "expected"),
    [
        ("matmul", "1x64x32", Point((1, 1, 64, 32), "bf16")),
        ("matmul", "1x64x32:linear", Point((1, 1, 64, 32), "bf16", "linear")),
        (
            "matmul",
            "2x3x4x5:linear, bias=given,activation=gelu",
            Point((2, 3, 4, 5), "bf16", "linear", (("bias", GIVEN), ("activation", "gelu"))),
        ),
        ("attention", "1x4x2x8x8x64:causal=true,bshd", Point((1, 4, 2, 8, 8, 64), "bf16", "bshd", (("causal", True),))),
        ("rmsnorm", "16x64:offset=1", Point((16, 64), "bf16", statics=(("offset", 1.0),))),
    ],
)
def test_a_shape_says_what_is_unusual_behind_a_colon(op: str, text: str, expected: Any) -> None:
    assert typed(op, text) == (expected,)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1x64x32:diagonal", "no layout 'diagonal'"),
        ("1x64x32:linear,gapped", "two layouts, linear and gapped"),
        ("1x64x32:transpose=yes", "no static transpose='yes'"),
        ("1x64x32:scale=2", "no static scale=2.0"),
        ("1x64x32:two words", "is no name"),
        ("64:linear", r"\[batch\]xmxnxk"),
    ],
)
def test_what_an_op_does_not_have_is_refused_with_what_it_has(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        typed("matmul", text)
