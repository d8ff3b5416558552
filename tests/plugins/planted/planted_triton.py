"""Kernels of vector_add in Triton whose memory accesses are known, most of them wrong in one way that a trace has to name."""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload

BLOCK = 256


@triton.jit
def shifted_kernel(out_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + index + 3, mask=index < n)
    b = tl.load(b_ptr + index, mask=index < n)
    tl.store(out_ptr + index, a + b, mask=index < n)


@triton.jit
def far_kernel(out_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr - index.to(tl.int64) * 1_000_000_000)
    tl.store(b_ptr + index.to(tl.int64) * 1_000_000_000, a)
    tl.atomic_add(out_ptr + n + index.to(tl.int64) * 1_000_000_000, a)
    zeros = tl.zeros((BLOCK,), tl.int32)
    tl.atomic_cas(out_ptr.to(tl.pointer_type(tl.int32)) - 1_000_000_000 + index, zeros, zeros)


@triton.jit
def differing_kernel(out_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    tl.store(out_ptr, tl.program_id(0).to(tl.float32))


@triton.jit
def agreeing_kernel(out_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    tl.store(out_ptr + 5, 7.0)


@triton.jit
def early_kernel(out_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.load(out_ptr + index, mask=index < n)
    tl.store(out_ptr + index, old + tl.load(a_ptr + index, mask=index < n), mask=index < n)


@triton.jit
def neighbour_kernel(out_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + index, tl.load(a_ptr + index, mask=index < n), mask=index < n)
    before = tl.load(out_ptr + index - BLOCK, mask=index >= BLOCK)
    tl.store(out_ptr + index, before, mask=(index >= BLOCK) & (index < n))


@triton.jit
def adding_kernel(out_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    tl.atomic_add(out_ptr + tl.arange(0, BLOCK), 1.0)


@triton.jit
def every_other_kernel(out_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + index * 2, mask=index * 2 < n, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(a))


@triton.jit
def described_kernel(out_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    a = tl.make_tensor_descriptor(a_ptr, shape=[n], strides=[1], block_shape=[BLOCK]).load([start])
    b = tl.make_tensor_descriptor(b_ptr, shape=[n], strides=[1], block_shape=[BLOCK]).load([start])
    tl.make_tensor_descriptor(out_ptr, shape=[n], strides=[1], block_shape=[BLOCK]).store([start], a + b)


@triton.jit
def pointed_kernel(out_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    a = tl.load(tl.make_block_ptr(a_ptr, (n,), (1,), (start,), (BLOCK,), (0,)), boundary_check=(0,))
    b = tl.load(tl.make_block_ptr(b_ptr, (n,), (1,), (start,), (BLOCK,), (0,)), boundary_check=(0,))
    tl.store(tl.make_block_ptr(out_ptr, (n,), (1,), (start,), (BLOCK,), (0,)), a + b, boundary_check=(0,))


@triton.jit
def borrowing_kernel(out_ptr, a_ptr, b_ptr, scratch_ptr, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(scratch_ptr + index, tl.load(a_ptr + index, mask=index < n), mask=index < n)
    tl.store(out_ptr + index, tl.load(scratch_ptr + index, mask=index < n), mask=index < n)


@triton.jit
def failing_kernel(out_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    assert tl.program_id(0) < 1, "only one program, please"


def _entry(function: Any) -> Callable[[Workload, Config], TritonLaunch]:
    def launch(workload: Workload, config: Config) -> TritonLaunch:
        n = workload.dim("n")

        def arguments(outputs: tuple[Tensor, ...], a: Tensor, b: Tensor) -> tuple[Any, ...]:
            scratch = (a.new_zeros(n),) if function is borrowing_kernel else ()
            return outputs[0], a, b, *scratch, n

        return TritonLaunch(function, (triton.cdiv(n, BLOCK), 1, 1), arguments, {"BLOCK": BLOCK})

    return launch


shifted, far = _entry(shifted_kernel), _entry(far_kernel)
differing, agreeing, early, neighbour = map(_entry, (differing_kernel, agreeing_kernel, early_kernel, neighbour_kernel))
adding, every_other, described, pointed = map(_entry, (adding_kernel, every_other_kernel, described_kernel, pointed_kernel))
borrowing, failing = _entry(borrowing_kernel), _entry(failing_kernel)
