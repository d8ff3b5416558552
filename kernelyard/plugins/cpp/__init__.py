"""The `cpp` backend and its kernels: C++17 with vectors and OpenMP, built on first use.

It knows how C++ kernels are declared, compiled and called. It does not know how they are checked, timed or chosen.
To see it work: `kernelyard check rmsnorm --kernel cpp.onepass --device cpu`. Read `rmsnorm.cpp` first, then `simd.h` and `rows.h`.
Importing this imports neither torch nor a compiler.
"""

from kernelyard.plugins.cpp.spaces import row_space, stream_space
from kernelyard.registry.backend import Backend
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import Parameter

DTYPES = ("float32", "bfloat16", "float16")
ROWS = Support(("cpu",), DTYPES)
ACCUMULATORS = "an FMA takes 4 cycles and two start in each, so 8 hide it; rows of 16 KiB and more are bound by loads with 4 already"

CPP = Backend(
    name="cpp",
    summary="C++17 with OpenMP, built through tvm_ffi and ninja",
    devices=("cpu",),
    probe="kernelyard.plugins.cpp.probe:available",
    entry="kernelyard.plugins.cpp.backend:builder",
)

RMSNORM = Kernel(
    name="cpp.onepass",
    op="rmsnorm",
    backend="cpp",
    summary="two sweeps over a row in cache, the next row prefetched",
    entry="kernelyard.plugins.cpp.rmsnorm:onepass",
    support=ROWS,
    space=row_space(Parameter("accumulators", (2, 4, 8), ACCUMULATORS), 4),
    files=("rmsnorm.cpp", "rows.h", "simd.h"),
    fallbacks=("torch.eager",),
    priority=10,
)

SOFTMAX_ONEPASS = Kernel(
    name="cpp.onepass",
    op="softmax",
    backend="cpp",
    summary="maximum, exponentials once, scaling; a row stays in cache",
    entry="kernelyard.plugins.cpp.softmax:onepass",
    support=ROWS,
    space=row_space(Parameter("accumulators", (1, 2, 4), "the exponential's own chain fills the pipes: more than 4 spill registers"), 2),
    files=("softmax_onepass.cpp", "softmax.h", "rows.h", "simd.h"),
    fallbacks=("torch.eager",),
    priority=10,
)

SOFTMAX_ONLINE = Kernel(
    name="cpp.online",
    op="softmax",
    backend="cpp",
    summary="maximum and sum in one sweep by blocks, exponentials again in the second; no buffer",
    entry="kernelyard.plugins.cpp.softmax:online",
    support=ROWS,
    space=row_space(Parameter("block", (512, 1024, 4096), "a block is read twice, so it must stay in L1 (32 KiB: 8192 floats)"), 1024),
    files=("softmax_online.cpp", "softmax.h", "rows.h", "simd.h"),
    fallbacks=("cpp.onepass", "torch.eager"),
    priority=5,
)

VECTOR_ADD = Kernel(
    name="cpp.stream",
    op="vector_add",
    backend="cpp",
    summary="vectors over pieces of 1024 elements, stores past the caches for large arrays",
    entry="kernelyard.plugins.cpp.vector_add:stream",
    support=Support(("cpu",), DTYPES, contiguous=True),
    space=stream_space(),
    files=("vector_add.cpp", "rows.h", "simd.h"),
    fallbacks=("torch.eager",),
    priority=-1,  # a call through dispatch costs 5 us, torch.add 1: only where it was tuned and won
)

plugin = Plugin(name="cpp", kernels=(RMSNORM, SOFTMAX_ONEPASS, SOFTMAX_ONLINE, VECTOR_ADD), backends=(CPP,))
