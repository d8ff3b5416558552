"""Beside the frozen matrix: arguments of rope, swiglu and the gradients that no matrix holds, compared as agreement.py compares.

In a process of its own, for Triton's interpreter: `python pointwise_agreement.py [OP/KERNEL ...]` prints the faults as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))  # where this is loaded by its path and not run

import agreement

Arguments = Iterator[tuple[str, tuple[Any, ...]]]
NAN = float("nan")
WALK = "more steps than twice a grid"
"""Of one program for each of 132 multiprocessors: for the kernels with a fixed grid."""


def _gates() -> Arguments:
    apart = torch.randn(9, 3, 40)
    yield "rows apart, each tensor its own", (apart[:, 1], torch.randn(9, 2, 40)[:, 1])
    yield "packed, three dimensions", (torch.randn(2, 3, 66).bfloat16(), None)
    yield "packed, one row", (torch.randn(80), None)
    yield "packed, rows apart", (torch.randn(9, 2, 48)[:, 1], None)
    yield "far below and above what an exponential holds", (torch.tensor([[-200.0, 200.0, -87.0, 0.0, -3e38]]), torch.ones(1, 5))
    yield "NaN", (torch.tensor([[NAN, 1.0, 2.0]]), torch.tensor([[1.0, NAN, 2.0]]))
    yield "an odd width of many blocks", (torch.randn(7, 20001), torch.randn(7, 20001))


def _gate_gradients() -> Arguments:
    for name, (a, b) in _gates():
        if "exponential" not in name:
            yield name, (torch.randn(*a.shape[:-1], a.shape[-1] // (2 if b is None else 1)).to(a.dtype), a, b)


def _rotations() -> Arguments:
    tables = torch.randn(50, 2, 32)
    for style in ("half", "interleaved"):
        whole, positions = (tables[:, 0].contiguous(), tables[:, 1].contiguous()), torch.tensor([3, 3, 49, 0, 7])
        yield f"{style}: a position again, int32", (torch.randn(5, 2, 64), *whole, positions.int(), style, False)
        yield f"{style}: tables with gaps", (torch.randn(5, 3, 64).bfloat16(), tables[:, 0], tables[:, 1], positions, style, True)
        halves = tables[:, 0].bfloat16(), tables[:, 1].bfloat16()
        yield f"{style}: tables in x's dtype", (torch.randn(5, 3, 64).bfloat16(), *halves, positions, style, False)
        wide = torch.randn(5, 4, 3, 64)[:, 1]
        yield f"{style}: tokens apart", (wide, tables[:, 0], tables[:, 1], positions, style, False)
        yield f"{style}: heads apart", (torch.randn(5, 3, 2, 64)[:, :, 1], tables[:, 0], tables[:, 1], positions, style, False)
        yield f"{style}: two dimensions of tokens", (torch.randn(2, 5, 3, 64), *whole, positions.repeat(2, 1), style, False)


def _softmax_gradients() -> Arguments:
    yield "a dead row", (torch.randn(3, 129), torch.cat((torch.zeros(1, 129), torch.softmax(torch.randn(2, 129), -1))))
    yield "a NaN in one row", (torch.tensor([[NAN, 1.0], [2.0, 1.0]]), torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
    yield "40000 columns", (torch.randn(2, 40000).bfloat16(), torch.softmax(torch.randn(2, 40000), -1).bfloat16())
    yield "rows apart, each tensor its own", (torch.randn(9, 4, 40)[:, 1], torch.softmax(torch.randn(9, 2, 40), -1)[:, 1])
    yield WALK, (torch.randn(265, 24), torch.softmax(torch.randn(265, 24), -1))


def _softmaxes() -> Arguments:
    yield WALK, (torch.randn(265, 23).bfloat16(),)


def _sums() -> Arguments:
    yield WALK, (torch.randn(300 * 512 + 3), torch.randn(300 * 512 + 3))


CASES: dict[str, Callable[[], Arguments]] = {
    "swiglu": _gates, "swiglu_backward": _gate_gradients, "rope": _rotations, "softmax_backward": _softmax_gradients,
    "softmax": _softmaxes, "vector_add": _sums,
}  # fmt: skip
SMALL = {"rows_per_program": 1, "block": 512, "num_warps": 1, "programs_per_sm": 1}


def faults(name: str) -> dict[str, Any]:
    """Of one kernel: over the smoke matrix and the cases above, by its default and, where a grid walks, by the smallest of steps."""
    kernel = agreement.kernels()[name]
    found = agreement.faults(kernel, "smoke", "cpu")
    op = agreement.OPS[kernel.op]
    for words, args in CASES[kernel.op]():
        workload = op.workload_of(args)
        walks = words == WALK
        if not agreement.accepts(kernel, workload) or (walks and kernel.name != "triton.persistent"):
            continue
        default = dict(kernel.space.default_for(workload))
        small = default | {key: value for key, value in SMALL.items() if key in default and walks}
        found["cases"] += 1
        found["faults"] |= {words: text} if (text := agreement.fault(kernel, (words, op, args), small)) else {}
    return found  # type: ignore[no-any-return]


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps({name: faults(name) for name in sys.argv[1:]}))
