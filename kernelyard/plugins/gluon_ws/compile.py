"""A Gluon launch to machine code, for the current GPU or for a target that is not here: Triton's path with layouts in the descriptors."""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout, bfloat16, float16
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernelyard.errors import BuildFailed
from kernelyard.plugins.triton_jit.compile import TYPES, ast_source, by_name, options, stand_ins
from kernelyard.plugins.triton_jit.offline import resource_usage
from kernelyard.registry.backend import Descriptor, TritonLaunch
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Workload

ELEMENTS = {torch.bfloat16: bfloat16, torch.float16: float16}


def compiled(op: Op, launch: TritonLaunch, workload: Workload, target: Any = None) -> Any:
    """Triton's compiled kernel; raises BuildFailed with the compiler's words."""
    try:
        source = _source(launch, *stand_ins(op, launch, workload, launch.workspace))
        return triton.compile(source, target=target, options=dict(options(launch)))
    except Exception as error:  # Triton raises its own, MLIR's RuntimeError and ptxas's CalledProcessError
        raise BuildFailed(f"Gluon can't compile {launch.function.__name__}.", log=_told(error)) from error


def _told(error: BaseException) -> str:
    """Gluon wraps an error once for each function that it is inside of; the innermost says what is wrong."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def usage(op: Op, launch: TritonLaunch, workload: Workload, capability: int) -> dict[str, int]:
    """Registers a thread at launch, local bytes a thread (spills and stack) and shared bytes."""
    handle = compiled(op, launch, workload, GPUTarget("cuda", capability, 32))
    registers, local = resource_usage(bytes(handle.asm["cubin"]))
    return {"registers": registers, "local_bytes": local, "shared_bytes": int(handle.metadata.shared)}


def as_gluon(value: Any) -> Any:
    """Gluon's own descriptor for one of ours; anything else as it is."""
    if not isinstance(value, Descriptor):
        return value
    return TensorDescriptor(value.tensor, list(value.shape), list(value.strides), list(value.block), _layout(value))


def _source(launch: TritonLaunch, arguments: tuple[Any, ...], misaligned: list[torch.Tensor]) -> GluonASTSource:
    plain = ast_source(launch, arguments, misaligned)
    signature = dict(plain.signature)
    for name, value in by_name(launch, arguments).items():
        if isinstance(value, Descriptor):
            block = ",".join(map(str, value.block))
            signature[name] = f"tensordesc<{TYPES[value.tensor.dtype]}[{block}],{_layout(value)!r}>"
    return GluonASTSource(launch.function, signature, plain.constants, plain.attrs)


def _layout(value: Descriptor) -> Any:
    """Swizzled as wgmma reads it, over 128 bytes where the block's last size has them."""
    return NVMMASharedLayout.get_default_for(list(value.block), ELEMENTS[value.tensor.dtype])
