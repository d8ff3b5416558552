"""matmul of matrices whose rows start at no multiple of 16 bytes, in Triton: copied first, to where they do.

padded    one launch for each factor that needs it writes its rows, zeros behind them, a multiple of 128 bytes apart into a workspace; the
          last one multiplies as `tile` does. Only the copies load element by element: with the zeros no limit cuts through 16 bytes, so the
          product's tiles come in whole and asynchronously.
repacked  the same copies, then as `persistent` does: by descriptor, which needs no zeros behind the rows.

Bytes: factors that are copied are read and written once more. (4097, 4095, 4096) copies b: 67 MB, about 19 us beside 211 us of products at
650 TFLOP/s. Without copies Triton loads two bytes a thread and keeps none of them in flight, and cuBLAS takes kernels of older GPUs.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.launch import starts_aligned
from kernelyard.plugins.triton_jit.lines import lines
from kernelyard.plugins.triton_jit.matmul import within
from kernelyard.plugins.triton_jit.matmul_persistent import persistent
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import DTYPE_BYTES, Config, TensorSpec, Workload

LINE = 128
BLOCK = 2048
"""Elements of a row that a program copies."""


@triton.jit
def copy_kernel(to_ptr, from_ptr, rows, inner, batch_stride, stride, pitch, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """A piece of a row; behind the row's end zeros."""
    begin(PDL)
    pieces = tl.cdiv(pitch, BLOCK)
    row, batch = (tl.program_id(0) // pieces).to(tl.int64), tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) % pieces * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(from_ptr + batch * batch_stride + row * stride + at, mask=at < inner, other=0.0)
    tl.store(to_ptr + (batch * rows + row) * pitch + at, x, mask=at < pitch)


@dataclass(frozen=True, slots=True)
class Moved:
    """A workload whose factors lie where they were copied to: `places` among the outputs, behind the result."""

    workload: Workload
    places: Mapping[str, int]
    workspace: tuple[TensorSpec, ...]
    copies: tuple[TritonLaunch, ...]

    def before(self, product: TritonLaunch) -> TritonLaunch:
        """The copies, then the product of what they left and what needed none."""
        inside, places = product.arguments, self.places

        def arguments(outputs: tuple[Tensor, ...], a: Tensor, b: Tensor, *rest: Any) -> tuple[Any, ...]:
            return inside(outputs, outputs[places["a"]] if "a" in places else a, outputs[places["b"]] if "b" in places else b, *rest)

        chain = replace(product, arguments=arguments)
        for copy in reversed(self.copies[1:]):
            chain = replace(copy, then=chain)
        return replace(self.copies[0], then=chain, workspace=self.workspace) if self.copies else chain


def padded(workload: Workload, config: Config) -> TritonLaunch:
    """Up to two copies, then `tile`."""
    moved = _moved(workload, config, tuple(name for name in "ab" if not starts_aligned(workload[name])))
    rounded = {name: moved.workspace[place - 1].shape[-1] for name, place in moved.places.items()}
    n, k = workload.dim("n"), workload.dim("k")
    a_turned, b_turned = (moved.workload[name].strides[-1] != 1 for name in "ab")
    product = within(
        moved.workload, config,
        b_n=n if b_turned else rounded.get("b", n),
        a_end=k if a_turned else rounded.get("a", k),
        b_end=rounded.get("b", k) if b_turned else k,
    )  # fmt: skip
    return moved.before(product)


def repacked(workload: Workload, config: Config) -> TritonLaunch:
    """Up to two copies, then `persistent`."""
    moved = _moved(workload, config, tuple(name for name in "ab" if lines(workload[name]) is None))
    return moved.before(persistent(moved.workload, config))


def _moved(workload: Workload, config: Config, names: tuple[str, ...]) -> Moved:
    specs: dict[str, TensorSpec | None] = dict(workload.tensors)
    workspace, copies = list[TensorSpec](), list[TritonLaunch]()
    for name in names:
        copy, flat, seen = _copied(workload[name], len(workspace) + 1, "ab".index(name), overlaps(config))
        workspace.append(flat)
        copies.append(copy)
        specs[name] = seen
    places = {name: place for place, name in enumerate(names, start=1)}
    return Moved(replace(workload, tensors=tuple(specs.items())), places, tuple(workspace), tuple(copies))


def _copied(spec: TensorSpec, place: int, argument: int, pdl: bool) -> tuple[TritonLaunch, TensorSpec, TensorSpec]:
    """The copy of an operand, the workspace that it goes to, and the operand as it lies there."""
    turned = spec.strides[-1] != 1 and spec.shape[-1] > 1
    (outer, inner), stride = (spec.shape[-2:][::-1], spec.strides[-1]) if turned else (spec.shape[-2:], spec.strides[-2])
    batch = spec.shape[0] if len(spec.shape) == 3 else 1
    line = LINE // DTYPE_BYTES[spec.dtype]
    pitch = -(-max(inner, 1) // line) * line
    fixed = (outer, inner, spec.strides[0] if len(spec.shape) == 3 else 0, stride, pitch)

    def arguments(outputs: tuple[Tensor, ...], *args: Any) -> tuple[Any, ...]:
        return outputs[place], args[argument], *fixed

    block = min(triton.next_power_of_2(pitch), BLOCK)
    launch = TritonLaunch(
        copy_kernel, (outer * triton.cdiv(pitch, block), batch, 1), arguments, {"BLOCK": block, "PDL": pdl}, num_warps=4, pdl=pdl
    )
    lead = (outer * pitch,) if len(spec.shape) == 3 else ()
    strides = (*lead, 1, pitch) if turned else (*lead, pitch, 1)
    return launch, TensorSpec((batch, outer, pitch), spec.dtype), TensorSpec(spec.shape, spec.dtype, strides)
