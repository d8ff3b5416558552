"""Whether kernels agree with their op's contract: a small comparison of its own, so that a plugin's tests need no other room.

As a script it runs in a process of its own, which Triton's interpreter needs:
`python agreement.py DEVICE MATRIX STRIDE [OP/KERNEL[:STRIDE] ...]` prints the faults as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from kernelyard.contracts import plugin as contracts
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Tolerance, Workload

OPS: Mapping[str, Op] = {op.name: op for op in contracts.ops}
PLUGINS = ("eager", "compiled", "triton_jit", "cuda")
NAN, INF = float("nan"), float("inf")
Case = tuple[str, Op, tuple[Any, ...]]


def outside_of_space(kernel: Kernel) -> list[tuple[str, str]]:
    """Points that the kernel serves on CUDA and whose author's config its space refuses, with the reason; it has to serve one."""
    op = OPS[kernel.op]
    works = [op.workload(point, "cuda") for name in ("correctness", "performance", "held_out") for point in op.matrix(name, "cuda").points]
    served = [work for work in works if kernel.support.fits(work)]
    assert served
    told = [(work.label(), kernel.space.allows(kernel.space.default_for(work), work)) for work in served]
    return [(label, answer.reason) for label, answer in told if not answer]


def plugin_of(name: str) -> Plugin:
    """The declarations of one plugin."""
    found = load(f"kernelyard.plugins.{name}.plugin:plugin")
    assert isinstance(found, Plugin)
    return found


def kernels() -> dict[str, Kernel]:
    """Every kernel under test by 'op/name'."""
    return {f"{k.op}/{k.name}": k for name in PLUGINS for k in plugin_of(name).kernels}


def builders() -> dict[str, str]:
    """Each backend's builder, by name."""
    return {b.name: b.entry for name in (*PLUGINS, "gluon_ws") for b in plugin_of(name).backends}


def matrix_cases(op: Op, matrix: str, device: str, stride: int = 1) -> Iterator[Case]:
    """Every stride-th point of a frozen matrix with the contract's own inputs."""
    for point in op.matrix(matrix, device).points[::stride]:
        workload = op.workload(point, device)
        yield f"{matrix} {point.layout} {workload.label()}", op, op.inputs(workload, torch.Generator(device).manual_seed(0))


def special_cases(op: Op, device: str) -> Iterator[Case]:
    """Values and arguments that no matrix holds: dead rows, NaN, weights of another kind, rows past a grid, rows past a block."""
    for name, args in SPECIAL.get(op.name, _none)():
        yield name, op, tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in args)


def _none() -> Iterator[tuple[str, tuple[Any, ...]]]:
    yield from ()


def _sums() -> Iterator[tuple[str, tuple[Any, ...]]]:
    yield "NaN and inf", (torch.tensor([NAN, INF, -INF, INF]), torch.tensor([1.0, 1.0, 1.0, -INF]))
    yield "three dimensions", (torch.randn(3, 5, 7), torch.randn(3, 5, 7))


def _softmaxes() -> Iterator[tuple[str, tuple[Any, ...]]]:
    rows = torch.tensor([[1.0, 2.0, 3.0], [-INF, -INF, -INF], [NAN, -INF, 0.0], [INF, 0.0, 1.0], [-INF, 0.0, -INF], [NAN, NAN, NAN]])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        yield f"dead, NaN and inf rows {dtype}", (rows.to(dtype),)
    late = torch.zeros(2, 102400)
    late[:, -1] = 50.0
    yield "the maximum in the last of 102400 columns", (late,)
    masked = torch.full((2, 40000), -INF)
    masked[0, 39999] = 0.0
    yield "first blocks all -inf", (masked,)
    yield "70000 equal half-precision columns", (torch.zeros(1, 70000, dtype=torch.float16),)
    yield "large", (torch.tensor([[3e38, -3e38, 3e38], [1e30, 1e30, 0.0]]),)
    yield "three dimensions", (torch.randn(2, 3, 33),)


def _norms() -> Iterator[tuple[str, tuple[Any, ...]]]:
    for casting in ("fp32", "llama"):
        for dtype, weight in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, None)):
            w = None if weight is None else (1 + 0.3 * torch.randn(130)).to(weight)
            yield f"{casting} x {dtype} w {weight}", (torch.randn(5, 130).to(dtype), w, 1e-6, 1.0, casting)
    yield "zeros", (torch.zeros(3, 64), torch.ones(64), 1e-6, 0.0, "fp32")
    hot = torch.full((2, 4096), 300.0, dtype=torch.float16)
    yield "squares past the largest float16", (hot, torch.ones(4096).half(), 1e-6, 0.0, "fp32")
    yield "NaN", (torch.tensor([[NAN, 1.0], [2.0, 1.0]]), torch.ones(2), 1e-6, 0.0, "fp32")
    for cols in (65537, 131072):
        yield f"{cols} columns", (torch.randn(2, cols).bfloat16(), torch.randn(cols).bfloat16(), 1e-6, 0.0, "fp32")
    yield "one dimension", (torch.randn(77), torch.randn(77), 1e-6, 0.0, "fp32")
    yield "an int for eps and offset", (torch.randn(3, 16), torch.randn(16), 1, 0, "fp32")


def _norm_gradients() -> Iterator[tuple[str, tuple[Any, ...]]]:
    for dtype, weight in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, None)):
        w = None if weight is None else (1 + 0.3 * torch.randn(130)).to(weight)
        yield f"x {dtype} w {weight}", (torch.randn(9, 130).to(dtype), torch.randn(9, 130).to(dtype), w, 0.1, 1.0, "fp32")
    bad = torch.tensor([1.0, NAN, 2.0]).repeat_interleave(64).view(3, 64)
    yield "a row of NaN", (torch.ones(3, 64), bad, torch.ones(64), 0.1, 0.0, "fp32")
    wide = torch.randn(2, 65537).bfloat16()
    yield "65537 columns", (wide.flip(0), wide, torch.ones(65537).bfloat16(), 0.1, 0.0, "fp32")
    yield "one dimension", (torch.randn(77), torch.randn(77), torch.randn(77), 0.1, 0.0, "fp32")
    every_other = torch.randn(9, 4, 40)[:, 1]
    yield "rows apart, each tensor its own", (every_other, torch.randn(9, 40), torch.randn(40), 0.1, 0.0, "fp32")


def _added_gradients() -> Iterator[tuple[str, tuple[Any, ...]]]:
    for number, (name, (dy, x, *rest)) in enumerate(_norm_gradients()):
        dr = torch.randn(x.shape).to(x.dtype) if number % 2 else None
        yield f"{name} {'without' if dr is None else 'with'} dr", (dy, dr, x, *rest)


def _added_norms() -> Iterator[tuple[str, tuple[Any, ...]]]:
    for name, (x, *rest) in _norms():
        yield name, (x, torch.randn(x.shape).to(x.dtype), *rest)
    yield "rows apart, each tensor its own", (torch.randn(9, 4, 40)[:, 1], torch.randn(9, 2, 40)[:, 1], torch.randn(40), 0.1, 0.0, "fp32")


def _attention() -> Iterator[tuple[str, tuple[Any, ...]]]:
    apart, keys = 2**25 + 8, 70
    both = torch.empty((keys - 1) * apart + 128, dtype=torch.bfloat16)  # of its 4.6 GB only the pages with rows are ever there
    k, v = (both[at:].as_strided((1, 1, keys, 64), (1, 1, apart, 1)) for at in (0, 64))
    for rows in (k, v):
        rows.copy_(torch.randn(rows.shape))
    for causal in (False, True):
        yield f"keys 2**25 elements apart, causal {causal}", (torch.randn(1, 2, 9, 64).bfloat16(), k, v, None, causal, True)


def _few_rows() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Of a linear layer, as decoding has them. Weights are of size 1 / sqrt(k)."""
    w = (torch.randn(130, 200) * 200**-0.5).bfloat16()
    yield "two rows", (torch.randn(2, 200).bfloat16(), w.mT, None, None, 1.0, "none", "ieee")
    added = (torch.randn(130).bfloat16(), torch.randn(130, 16).bfloat16().mT)
    yield "16 rows and all that may follow", (torch.randn(16, 200).bfloat16(), w.mT, *added, 0.75, "gelu_tanh", "ieee")
    apart = (torch.randn(9, 264).half()[:, :72], w.half()[:, :72].mT)
    yield "rows of both factors apart", (*apart, None, None, 1.0, "silu", "ieee")


def _few_gates() -> Iterator[tuple[str, tuple[Any, ...]]]:
    w = (torch.randn(130, 200) * 200**-0.5).bfloat16()
    yield "two rows", (torch.randn(2, 200).bfloat16(), w)
    yield "16 rows", (torch.randn(16, 200).bfloat16(), w)
    yield "rows of both factors apart", (torch.randn(9, 264).half()[:, :72], w.half()[:, :72])
    yield "leading dimensions without one stride", (torch.randn(2, 5, 72).half()[:, :2], w.half()[:, :72])


SPECIAL = {
    "vector_add": _sums, "softmax": _softmaxes, "rmsnorm": _norms, "rmsnorm_backward": _norm_gradients,
    "attention": _attention, "add_rmsnorm": _added_norms, "add_rmsnorm_backward": _added_gradients,
    "matmul": _few_rows, "linear_swiglu": _few_gates,
}  # fmt: skip


def _rows(device: str) -> torch.Tensor:
    """Of an odd width, one row more than twice the multiprocessors of an H200."""
    return torch.randn(2 * 132 + 1, 41, device=device)


WALKING: Mapping[str, Callable[[str], tuple[Any, ...]]] = {
    "rmsnorm": lambda device: (_rows(device), _rows(device)[0], 1e-6, 0.0, "fp32"),
    "rmsnorm_backward": lambda device: (_rows(device), _rows(device), _rows(device)[0], 0.1, 0.0, "fp32"),
}


def accepts(kernel: Kernel, workload: Workload) -> bool:
    """Whether it is in the kernel's envelope, leaving aside that a check may be on a device it does not serve."""
    return bool(replace(kernel.support, devices=(*kernel.support.devices, workload.device)).fits(workload))


def fault(kernel: Kernel, case: Case, config: Config | None = None, offset: int = 0) -> str:
    """Empty where the kernel keeps the contract; else what is wrong.

    Outputs are poisoned with NaN beforehand, and lie so many elements behind an aligned address, with as many behind them.
    """
    _, op, args = case
    workload = op.workload_of(args)
    config = kernel.space.default_for(workload) if config is None else config
    if not (allowed := kernel.space.allows(config, workload)):
        return f"config {dict(config)} is not allowed: {allowed.reason}"
    executable = load(builders()[kernel.backend]).build(op, kernel, workload, config)
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    if executable.into is None:
        out = executable.call(*args)
    else:
        around = [torch.full((output.numel() + 2 * offset,), NAN, dtype=output.dtype, device=output.device) for output in op.empty(*args)]
        inside = [one[offset : one.numel() - offset] for one in around]
        out = tuple(one.view(like.shape) for one, like in zip(inside, op.empty(*args), strict=True))
        executable.into(out, *args)
        if any(not one[:offset].isnan().all() or not one[one.numel() - offset :].isnan().all() for one in around):
            return "something beside an output was written"
    kept = [(a, b) for argument, a, b in zip(op.arguments, args, before, strict=True) if not argument.mutated]
    if any(isinstance(a, torch.Tensor) and not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in kept):
        return "an input was changed"
    return difference(out, op, workload, tuple(before), args)


def difference(out: Any, op: Op, workload: Workload, args: tuple[Any, ...], after: tuple[Any, ...] = ()) -> str:
    """Empty where each output, then each argument that is written into, is within the contract's tolerance of its reference.

    `args` are those of before the call, `after` of behind it, where the op writes into some.
    """
    wide = [a.to(torch.float64) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    outputs, likes = (*_tuple(out), *_written(op, after)), (*op.empty(*args), *_written(op, args))
    found = (
        _apart(output, want.to(torch.float64), like, op.tolerance(workload).of(number))
        for number, (output, want, like) in enumerate(zip(outputs, op.results(wide), likes, strict=True))
    )
    return "; ".join(f"output {number} {words}" for number, words in enumerate(found) if words)


def _written(op: Op, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(args[i] for i, argument in enumerate(op.arguments) if argument.mutated)


def _tuple(outputs: Any) -> tuple[torch.Tensor, ...]:
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def _apart(out: torch.Tensor, expected: torch.Tensor, like: torch.Tensor, tolerance: Tolerance) -> str:
    if out.shape != expected.shape or out.dtype != like.dtype or out.is_contiguous() != like.is_contiguous():
        return f"is {tuple(out.shape)} {out.dtype} strides {out.stride()}"
    actual = out.to(torch.float64)
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    wrong = ~(same | ((actual - expected).abs() <= tolerance.absolute + tolerance.relative * expected.abs()))
    if not bool(wrong.any()):
        return ""
    where = tuple(int(i) for i in wrong.nonzero()[0])
    return f"has {int(wrong.sum())} of {wrong.numel()} wrong; at {where} {actual[where].item()!r}, not {expected[where].item()!r}"


def faults(kernel: Kernel, matrix: str, device: str, stride: int = 1, special: bool = True) -> dict[str, Any]:
    """How many cases were in the kernel's envelope, and the faults among them by case."""
    op = OPS[kernel.op]
    cases = [case for case in matrix_cases(op, matrix, device, stride) if accepts(kernel, op.workload_of(case[2]))]
    if special:
        cases += [case for case in special_cases(op, device) if accepts(kernel, op.workload_of(case[2]))]
    found = {case[0]: text for case in cases if (text := fault(kernel, case))}
    if special and kernel.op == "matmul" and kernel.backend == "triton":
        found |= {"a result that starts anywhere": text} if (text := fault(kernel, cases[-1], offset=1)) else {}
    if special and kernel.op in WALKING and kernel.name in ("triton.persistent", "triton.shifted"):
        case = ("more rows than twice the grid", op, WALKING[kernel.op](device))
        one_by_one = dict(kernel.space.default_for(op.workload_of(case[2])))
        one_by_one |= {name: 1 for name in ("rows_per_program", "num_warps", "programs_per_sm") if name in one_by_one}
        found |= {case[0]: text} if (text := fault(kernel, case, one_by_one)) else {}
    return {"cases": len(cases), "faults": found}


def main(device: str, matrix: str, stride: str, *kernels_asked: str) -> None:
    """Faults by kernel, as JSON. Of the norms' gradients, which take the interpreter longest, every second or third point."""
    times = {"rmsnorm_backward": 2, "add_rmsnorm_backward": 3}
    asked = {name: int(own or stride) for name, _, own in (one.partition(":") for one in kernels_asked)}
    sparse = {name: every * times.get(name.partition("/")[0], 1) for name, every in asked.items()}
    print(json.dumps({name: faults(kernels()[name], matrix, device, sparse[name]) for name in asked}))


if __name__ == "__main__":
    main(*sys.argv[1:])
