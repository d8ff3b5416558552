"""The declaration of this plugin: its kernels and its backend. A probe, which lies beside it, must not import it: listing asks probes."""

from dataclasses import replace

from kernelyard.plugins.cpp.caches import ATTENTION_DECODE
from kernelyard.plugins.cpp.linears import LINEAR, LINEAR_SWIGLU
from kernelyard.plugins.cpp.spaces import row_space, shared_space, stream_space
from kernelyard.registry.backend import Backend
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import Parameter

DTYPES = ("float32", "bfloat16", "float16")
ROWS = Support(("cpu",), DTYPES)
HEADERS = ("sweeps.h", "rows.h", "simd.h")
NORM_HEADERS = ("norm.h", *HEADERS)
SOFTMAX_HEADERS = ("softmax.h", "exponential.h", *HEADERS)
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
    files=("rmsnorm.cpp", *NORM_HEADERS),
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
    files=("softmax_onepass.cpp", *SOFTMAX_HEADERS),
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
    files=("softmax_online.cpp", *SOFTMAX_HEADERS),
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
    files=("vector_add.cpp", "pieces.h", *HEADERS),
    fallbacks=("torch.eager",),
    priority=-1,  # a call through dispatch costs 5 us, torch.add 1: only where it was tuned and won
)

RMSNORM_BACKWARD = Kernel(
    name="cpp.blocks",
    op="rmsnorm_backward",
    backend="cpp",
    summary="two sweeps over rows in cache, alone or four at a time; float32 sums for dw in each thread, added in order",
    entry="kernelyard.plugins.cpp.rmsnorm_backward:rmsnorm_backward",
    support=ROWS,
    space=shared_space(),
    files=("rmsnorm.py", "rmsnorm_backward.cpp", *NORM_HEADERS),
    fallbacks=("torch.eager",),
    priority=10,
)

ADD_RMSNORM = Kernel(
    name="cpp.onepass",
    op="add_rmsnorm",
    backend="cpp",
    summary="sum, squares and a kept copy in one sweep over a row, scaling in the second",
    entry="kernelyard.plugins.cpp.add_rmsnorm:onepass",
    support=ROWS,
    space=row_space(),
    files=("rmsnorm.py", "add_rmsnorm.cpp", *NORM_HEADERS),
    fallbacks=("torch.eager",),
    priority=10,
)

ADD_RMSNORM_BACKWARD = replace(
    RMSNORM_BACKWARD, op="add_rmsnorm_backward", entry="kernelyard.plugins.cpp.rmsnorm_backward:add_rmsnorm_backward"
)

SOFTMAX_BACKWARD = Kernel(
    name="cpp.onepass",
    op="softmax_backward",
    backend="cpp",
    summary="the row's sum of products, then its gradient from cache",
    entry="kernelyard.plugins.cpp.softmax:backward",
    support=ROWS,
    space=row_space(),
    files=("softmax_backward.cpp", *HEADERS),
    fallbacks=("torch.eager",),
    priority=10,
)

SWIGLU = Kernel(
    name="cpp.stream",
    op="swiglu",
    backend="cpp",
    summary="vectors over pieces of 1024 columns, halves of a packed row as two pointers",
    entry="kernelyard.plugins.cpp.swiglu:forward",
    support=ROWS,
    space=stream_space(),
    files=("vector_add.py", "swiglu.cpp", "pieces.h", "exponential.h", *HEADERS),
    fallbacks=("torch.eager",),
    priority=10,
)

SWIGLU_BACKWARD = replace(
    SWIGLU,
    op="swiglu_backward",
    summary="both gradients from one exponential, by pieces of 1024 columns",
    entry="kernelyard.plugins.cpp.swiglu:backward",
)

ROPE = Kernel(
    name="cpp.tokens",
    op="rope",
    backend="cpp",
    summary="a token's cosines and sines laid out once for all of its heads",
    entry="kernelyard.plugins.cpp.rope:tokens",
    support=ROWS,
    space=row_space(),
    files=("vector_add.py", "rope.cpp", *HEADERS),
    fallbacks=("torch.eager",),
    priority=10,
)

plugin = Plugin(
    name="cpp",
    kernels=(
        RMSNORM,
        RMSNORM_BACKWARD,
        ADD_RMSNORM,
        ADD_RMSNORM_BACKWARD,
        SOFTMAX_ONEPASS,
        SOFTMAX_ONLINE,
        SOFTMAX_BACKWARD,
        SWIGLU,
        SWIGLU_BACKWARD,
        ROPE,
        VECTOR_ADD,
        LINEAR,
        LINEAR_SWIGLU,
        ATTENTION_DECODE,
    ),
    backends=(CPP,),
)
