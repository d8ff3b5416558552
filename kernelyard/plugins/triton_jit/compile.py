"""A TritonLaunch to machine code: the signature and what it may assume, from the workload alone.

The same path serves a GPU and, with a target named, a machine without one. What Triton's own launcher reads off every call's arguments
(types, 16-byte alignment, integers that are 1 or multiples of 16) is here read once off the workload, which fixes them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
from triton.compiler import ASTSource, CompiledKernel

from kernelyard.errors import BuildFailed
from kernelyard.registry.backend import Descriptor, TritonLaunch
from kernelyard.registry.op import Op
from kernelyard.registry.spec import TensorSpec, Workload

TYPES: Mapping[torch.dtype, str] = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64",
    torch.int8: "i8", torch.int32: "i32", torch.int64: "i64", torch.bool: "i1",
}  # fmt: skip
DEFAULTS: Mapping[str, Any] = {"float": 0.0, "int": 0, "bool": False, "str": ""}


def compiled(
    op: Op, launch: TritonLaunch, workload: Workload, target: Any = None, workspace: tuple[TensorSpec, ...] = ()
) -> CompiledKernel:
    """Machine code of one launch for the target, or for the current GPU; raises BuildFailed with the compiler's words.

    `workspace` is the scratch of the first launch of its kernel.
    """
    try:
        source = ast_source(launch, *stand_ins(op, launch, workload, workspace or launch.scratch))
        return triton.compile(source, target=target, options=dict(options(launch)))
    except Exception as error:  # Triton raises its own, MLIR's RuntimeError and ptxas's CalledProcessError
        raise BuildFailed(f"Triton can't compile {launch.function.__name__}.", log=f"{type(error).__name__}: {error}") from error


def options(launch: TritonLaunch) -> Mapping[str, Any]:
    """Compiler options. Fused multiply-add is asked for: Triton 3.9 warns that its default will change."""
    chosen = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": True}
    return {**chosen, "launch_pdl": True} if launch.pdl else chosen


def stand_ins(
    op: Op, launch: TritonLaunch, workload: Workload, workspace: tuple[TensorSpec, ...]
) -> tuple[tuple[Any, ...], list[torch.Tensor]]:
    """The run-time arguments with tensors that have no memory, and those of the tensors that may start anywhere.

    Outputs and workspaces are fresh allocations and so aligned.
    """
    specs, statics = dict(workload.tensors), dict(workload.statics)
    values: dict[str, Any] = {}
    for argument in op.arguments:
        default = DEFAULTS.get(argument.type) if argument.default is None else argument.default
        values[argument.name] = _meta(specs[argument.name]) if argument.tensor else statics.get(argument.name, default)
    misaligned = [values[name] for name, spec in specs.items() if spec is not None and not spec.aligned]
    args = tuple(values.values())
    own = tuple(torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta") for spec in workspace)
    return launch.arguments((*op.empty(*args), *own), *args), misaligned


def _meta(spec: TensorSpec | None) -> torch.Tensor | None:
    if spec is None:
        return None
    return torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, spec.dtype), device="meta")


def ast_source(launch: TritonLaunch, arguments: tuple[Any, ...], misaligned: list[torch.Tensor]) -> ASTSource:
    """Triton's own record of what to compile: a type for each parameter, constants, and divisibility by 16."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    values = by_name(launch, arguments)
    for parameter in launch.function.params:
        name, place, value = parameter.name, (parameter.num,), values[parameter.name]
        specialised = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (specialised and type(value) is int and value == 1):
            signature[name], constants[place] = "constexpr", value
            continue
        signature[name] = _type(value)
        if specialised and _divisible(value, misaligned):
            attributes[place] = [["tt.divisibility", 16]]
    return ASTSource(launch.function, signature, constants, attributes)


def by_name(launch: TritonLaunch, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Every parameter's value, in the order of the function's signature."""
    free = iter(arguments)
    return {name: launch.constants[name] if name in launch.constants else next(free) for name in launch.function.arg_names}


def _type(value: Any) -> str:
    if isinstance(value, Descriptor):
        return f"tensordesc<{TYPES[value.tensor.dtype]}[{', '.join(map(str, value.block))}]>"
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"a Triton argument is a tensor, a descriptor of one, a number or None, not {value!r}")


def _divisible(value: Any, misaligned: list[torch.Tensor]) -> bool:
    if isinstance(value, torch.Tensor):
        return not any(value is tensor for tensor in misaligned)
    return type(value) is int and value % 16 == 0
