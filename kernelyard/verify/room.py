"""Whether this machine has the memory for a case: told beforehand, with the figures, and not by an end for want of it."""

from __future__ import annotations

from typing import Any

import torch

from kernelyard.registry.op import Op
from kernelyard.registry.spec import DTYPE_BYTES, YES, Answer, TensorSpec, Workload, no
from kernelyard.verify import compare, guards, machine

ALWAYS_THERE = 64 << 20
"""Not worth asking for: less than importing torch takes."""
CHUNK_COPIES = 8
"""Copies of one chunk that a comparison holds at a time: wide values, error, tolerance, masks."""


def enough(op: Op, workload: Workload, device: torch.device) -> Answer:
    """Whether a case fits into what is free; else 'needs 52.1 GB, 12.3 GB are free'."""
    needed = needed_bytes(op, workload)
    if needed <= ALWAYS_THERE or (free := free_bytes(device)) is None or needed <= free:
        return YES
    return no(f"checking {workload.label()} needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free")


def needed_bytes(op: Op, workload: Workload) -> int:
    """The most that a case holds at a time, from shapes alone; no tensor is made.

    Making it: inputs drawn in float32 and cast; then the guarded copy of each, a copy of that to compare with
    afterwards, the inputs and the outputs in the reference's precision, and as much as two more of either as
    temporaries. Running it: guarded inputs and their copy, the wide result, of three runs (plain torch among them) the
    outputs and what they held, and poisoned memory for two; the mask of wrong elements, and chunks.
    """
    wide = 8 if workload.dtype in ("float32", "float64") else 4
    specs = [spec for _, spec in workload.tensors if spec is not None]
    outputs = (*output_specs(op, workload), *(workload[name] for name in op.mutated))
    kept = 2 * sum(guards.nbytes(_span(spec), _row(spec)) for spec in specs)
    want, out = sum(wide * spec.numel for spec in outputs), sum(spec.nbytes for spec in outputs)
    drawn = sum(_span(spec) for spec in specs)
    widened = sum(wide * spec.numel for spec in specs)
    making = drawn + max([4 * _span(spec) // DTYPE_BYTES[spec.dtype] for spec in specs], default=0)
    referring = drawn + kept + widened + want + 2 * max(want, widened)
    running = kept + want + 8 * out + sum(spec.numel for spec in outputs)
    chunk = compare.CPU_CHUNK if workload.device == "cpu" else min(compare.CUDA_CHUNK, max((s.numel for s in outputs), default=0))
    return max(making, referring, running + CHUNK_COPIES * wide * chunk)


def output_specs(op: Op, workload: Workload) -> tuple[TensorSpec, ...]:
    """The outputs of the contract, asked with tensors that have no memory."""
    statics: dict[str, Any] = dict(workload.statics)
    args = []
    for argument in op.arguments:
        spec = dict(workload.tensors).get(argument.name)
        if spec is not None:
            args.append(torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, spec.dtype), device="meta"))
        else:
            args.append(statics.get(argument.name, argument.default))
    return tuple(TensorSpec(tuple(empty.shape), str(empty.dtype), tuple(empty.stride())) for empty in op.empty(*args))


def free_bytes(device: torch.device) -> int | None:
    """What this process can still take: on CUDA the driver's figure and what torch keeps unused, else the machine's.

    None where nothing tells.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return machine.free_bytes()


def _span(spec: TensorSpec) -> int:
    """Bytes from the first element to the last in memory."""
    span = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.strides, strict=True)) if spec.numel else 0
    return span * DTYPE_BYTES[spec.dtype]


def _row(spec: TensorSpec) -> int:
    return (spec.shape[-1] if spec.shape else 1) * DTYPE_BYTES[spec.dtype]
