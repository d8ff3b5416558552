"""Whether a kernel agrees with its op's contract on a workload: a small comparison of its own, so that a plugin's tests need no other room.

As a script it does so in a process of its own: `python agreement.py PLUGIN OP KERNEL MATRIX DEVICE [STRIDE]` prints JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kernelyard.contracts import plugin as contracts
from kernelyard.registry.discovery import EntryPoint, Loaded, Plugin, load
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load as load_reference
from kernelyard.registry.op import Op
from kernelyard.registry.registry import Registry, assemble
from kernelyard.registry.spec import Config, Workload

PLUGINS = ("eager", "compiled", "triton_jit", "cuda")


def registry() -> Registry:
    """The built-in contracts and the plugins under test, without the installed entry points."""
    points = [EntryPoint(name, f"kernelyard.plugins.{name}:plugin", "kernelyard") for name in PLUGINS]
    loaded = [Loaded(contracts, EntryPoint("contracts", "", "kernelyard"), 0.0), *map(load, points)]
    assembled = assemble(loaded)
    assert not assembled.problems, assembled.problems
    return assembled


def plugin_of(name: str) -> Plugin:
    """The declarations of one plugin."""
    found = load_reference(f"kernelyard.plugins.{name}:plugin")
    assert isinstance(found, Plugin)
    return found


def workloads(op: Op, matrix: str, device: str, stride: int = 1) -> Iterator[Workload]:
    """Every stride-th workload of a matrix."""
    return (op.workload(point, device) for point in op.matrix(matrix, device).points[::stride])


def fault(op: Op, kernel: Kernel, workload: Workload, *, config: Config | None = None, args: tuple[Any, ...] | None = None) -> str:
    """Empty where the kernel keeps the contract on these arguments; else what is wrong. Outputs are poisoned with NaN beforehand."""
    config = kernel.space.default_for(workload) if config is None else config
    allowed = kernel.space.allows(config, workload)
    if not allowed:
        return f"config {dict(config)} is not allowed: {allowed.reason}"
    executable = load_reference(BUILDERS[kernel.backend]).build(op, kernel, workload, config)
    if args is None:
        args = op.inputs(workload, torch.Generator(workload.device).manual_seed(0))
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    if executable.into is None:
        out = executable.call(*args)
    else:
        outputs = op.empty(*args)
        for output in outputs:
            output.fill_(float("nan"))
        executable.into(outputs, *args)
        out = outputs[0]
    if any(isinstance(a, torch.Tensor) and not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(args, before, strict=True)):
        return "an input was changed"
    return _difference(out, _expected(op, args), op, workload)


BUILDERS: Mapping[str, str] = {
    backend.name: backend.entry for name in PLUGINS for backend in plugin_of(name).backends
}


def _expected(op: Op, args: tuple[Any, ...]) -> torch.Tensor:
    wide = [a.to(torch.float32) if isinstance(a, torch.Tensor) else a for a in args]
    return op.reference(*wide)  # type: ignore[no-any-return]


def _difference(out: torch.Tensor, expected: torch.Tensor, op: Op, workload: Workload) -> str:
    first = workload.dtype
    if out.shape != expected.shape or str(out.dtype) != f"torch.{first}" or not out.is_contiguous():
        return f"gave {tuple(out.shape)} {out.dtype} strides {out.stride()}"
    tolerance = op.tolerance(workload)
    expected, actual = expected.to(torch.float64), out.to(torch.float64)
    limit = tolerance.absolute + tolerance.relative * expected.abs()
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    wrong = ~(same | ((actual - expected).abs() <= limit))
    if not bool(wrong.any()):
        return ""
    where = tuple(int(i) for i in wrong.nonzero()[0])
    return f"{int(wrong.sum())} of {wrong.numel()} wrong; at {where} {actual[where].item()!r}, not {expected[where].item()!r}"


def main(plugin: str, op_name: str, kernel_name: str, matrix: str, device: str, stride: str = "1") -> None:
    """Faults by workload, as JSON."""
    op = {op.name: op for op in contracts.ops}[op_name]
    kernel = next(k for k in plugin_of(plugin).kernels if k.op == op_name and k.name == kernel_name)
    faults, cases = {}, 0
    support = kernel.support
    for workload in workloads(op, matrix, device, int(stride)):
        if device not in support.devices:
            support = type(support)((*support.devices, device), support.dtypes, support.most, support.least, support.unit_last_stride)
        if not support.fits(workload):
            continue
        cases += 1
        if found := fault(op, kernel, workload):
            faults[workload.key()] = found
    print(json.dumps({"cases": cases, "faults": faults}))


if __name__ == "__main__":
    main(*sys.argv[1:])
