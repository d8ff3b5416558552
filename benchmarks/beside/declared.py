"""The three kernels as kernelyard declares them, and their spaces, which the other tuners are given too."""

from __future__ import annotations

from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import YES, Answer, Config, Determinism, Workload, no

MOST_ELEMENTS = 128
"""Of a row in a Triton thread: 64 registers of pairs."""


def plain(workload: Workload) -> Answer:
    """A weight, torch's casting, and rows as they follow each other: the one point that is compared has nothing else."""
    x = workload["x"]
    if not workload.has("w") or workload.static("casting") != "fp32" or x is None or not x.contiguous or workload["w"].dtype != x.dtype:
        return no("it takes contiguous rows, a weight of their dtype, and casting 'fp32'")
    if workload.dim("cols") % 4096 and workload.device == "cuda":
        return no("rows are whole loads of the widest block: multiples of 4096 columns")
    return no("rows are multiples of 32 columns") if workload.dim("cols") % 32 else YES


def _thread(config: Config, workload: Workload) -> bool:
    return 4 <= int(config["rows"]) * workload.dim("cols") / (32 * int(config["num_warps"])) <= MOST_ELEMENTS


CUDA = ConfigSpace(
    (
        Parameter("threads", (32, 64, 128, 256, 512), "a row's: 1 to 32 loads in flight a thread"),
        Parameter("vector", (4, 8), "elements a load: 8 or 16 bytes"),
        Parameter("rows", (1, 2), "groups of threads side by side in a block, of 1024 threads at most"),
        Parameter("stream", (0, 1), "1 marks x and y as used once"),
    ),
    (),
    lambda workload: {"threads": 128, "vector": 8, "rows": 1, "stream": 0},
)
TRITON = ConfigSpace(
    (
        Parameter("rows", (1, 2, 4), "a program's"),
        Parameter("num_warps", (1, 2, 4, 8, 16), "4 to 128 elements a thread"),
        Parameter("hint", ("", "evict_first"), "the eviction policy of x and y"),
        Parameter("early", (False, True), "the weight is loaded beside x, or after the sum"),
    ),
    (Constraint(_thread, f"a thread would hold fewer than 4 elements or more than {MOST_ELEMENTS}"),),
    lambda workload: {"rows": 1, "num_warps": 4, "hint": "", "early": False},
)
CPP = ConfigSpace(
    (
        Parameter("sums", (1, 2, 4, 8, 16, 32), "independent sums: 8 lanes, and the latency of an addition"),
        Parameter("ahead", (0, 1), "the next row is prefetched"),
    ),
    (),
    lambda workload: {"sums": 16, "ahead": 0},
)

plugin = Plugin(
    "beside",
    kernels=(
        Kernel(
            "cuda.beside", "rmsnorm", "cuda", "rows in registers, for the comparison of tuners", "beside.entries:cuda",
            Support(("cuda",), ("bfloat16",), aligned=True, predicates=(plain,)), CUDA, files=("rmsnorm.cu", "normalise.cuh"), priority=-1,
        ),
        Kernel(
            "triton.beside", "rmsnorm", "triton", "rows in registers, for the comparison of tuners", "beside.entries:triton",
            Support(("cuda",), ("bfloat16",), aligned=True, predicates=(plain,)), TRITON, files=("triton_rmsnorm.py",), priority=-1,
            determinism=Determinism.RUN_TO_RUN,
        ),
        Kernel(
            "cpp.beside", "rmsnorm", "cpp", "two sweeps on one thread, for the comparison of tuners", "beside.entries:cpp",
            Support(("cpu",), ("float32",), aligned=True, predicates=(plain,)), CPP, files=("rmsnorm.cpp", "normalise.h"), priority=-1,
        ),
    ),
)  # fmt: skip
"""Behind every other kernel in priority: nothing but the comparison asks for them."""

KERNELS = {"cuda": "cuda.beside", "triton": "triton.beside", "cpp": "cpp.beside"}
"""By language."""
