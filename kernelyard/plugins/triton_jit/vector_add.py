"""vector_add in Triton: out = a + b, one block a program.

Bytes: 3 n size; one add an element: bound by memory. A block is `block` elements, 16 bytes a thread and load; its programs are
independent, so the order in memory is the order of the grid. Full blocks carry no mask: with one, an odd n would turn every
load of the array into single elements (Triton vectorises a mask only as far as n is divisible).
Offsets are 64-bit where n passes 2^31.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.launch import policies
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit(do_not_specialize=["n"])
def stream_kernel(
    out_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr, WIDE: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr
):  # fmt: skip
    """One block; its mask only where the array ends inside it."""
    start = tl.program_id(0)
    if WIDE:
        start = start.to(tl.int64)
    start = start * BLOCK
    index = start + tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        a = tl.load(a_ptr + index, eviction_policy=LOAD).to(tl.float32)
        b = tl.load(b_ptr + index, eviction_policy=LOAD).to(tl.float32)
        tl.store(out_ptr + index, (a + b).to(out_ptr.dtype.element_ty), eviction_policy=STORE)
    else:
        inside = index < n
        a = tl.load(a_ptr + index, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + index, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + index, (a + b).to(out_ptr.dtype.element_ty), mask=inside)


def stream(workload: Workload, config: Config) -> TritonLaunch:
    """One program a block."""
    n, block = workload.dim("n"), int(config["block"])
    load, store, _ = policies(config)

    def arguments(outputs: tuple[Tensor, ...], a: Tensor, b: Tensor) -> tuple[Any, ...]:
        return outputs[0], a, b, n

    constants = {"BLOCK": block, "WIDE": n + block > 2**31 - 1, "LOAD": load, "STORE": store}
    return TritonLaunch(stream_kernel, (triton.cdiv(n, block), 1, 1), arguments, constants, num_warps=int(config["num_warps"]))
