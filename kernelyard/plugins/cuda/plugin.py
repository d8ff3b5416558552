"""The declaration of this plugin: its kernels and its backend. A probe, which lies beside it, must not import it: listing asks probes."""

from __future__ import annotations

from kernelyard.plugins.cuda.caches import ATTENTION_DECODE
from kernelyard.plugins.cuda.kernels import KERNELS
from kernelyard.registry.backend import Backend
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import Config, Workload


def _not_too_much(config: Config, workload: Workload) -> bool:
    return int(config["threads"]) * int(config["unroll"]) <= 2048


def _default(workload: Workload) -> Config:
    """Four loads of each input in flight, 64 KiB a multiprocessor at full occupancy; one where the array does not fill the GPU."""
    large = workload["a"].nbytes >= 4 << 20
    return {"threads": 256, "unroll": 4 if large else 1, "streaming": large}


STREAM = ConfigSpace(
    parameters=(
        Parameter("threads", (128, 256, 512, 1024), "a block: a warp for each of a multiprocessor's 4 schedulers at least, 1024 at most"),
        Parameter("unroll", (1, 2, 4, 8), "16-byte loads of each input before the first use: a multiprocessor needs some 25 KB in flight"),
        Parameter("streaming", (False, True), "ld.cs and st.cs leave nothing in L2: right where arrays pass it (50 MB on Hopper)"),
    ),
    constraints=(Constraint(_not_too_much, "a block would take over 32 KB of each array, too coarse to share out"),),
    default=_default,
)

plugin = Plugin(
    name="cuda",
    kernels=(
        Kernel(
            name="cuda.stream",
            op="vector_add",
            backend="cuda",
            summary="16-byte accesses, several in flight a thread",
            entry="kernelyard.plugins.cuda.vector_add:stream",
            support=Support(("cuda",), ("float32", "bfloat16", "float16"), contiguous=True),
            space=STREAM,
            files=("vector_add.cu",),
            fallbacks=("triton.stream",),
            priority=10,
        ),
        *KERNELS,
        ATTENTION_DECODE,
    ),
    backends=(
        Backend(
            name="cuda",
            summary="CUDA C++, built by nvcc through tvm_ffi",
            devices=("cuda",),
            probe="kernelyard.plugins.cuda.probe:probe",
            entry="kernelyard.plugins.cuda.build:builder",
        ),
    ),
)
