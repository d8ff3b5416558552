"""A kernelyard plugin: an rmsnorm kernel in C++ and an op of its own, squared_relu, with two kernels.

What stands here is data: `kernelyard list` imports this module and nothing that it names. It knows only
`kernelyard.registry`; whether its kernels are right and fast is for `kernelyard check` and `kernelyard tune` to say.
"""

from __future__ import annotations

from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import YES, Answer, Config, Workload, no
from kernelyard_example.squared_relu import SQUARED_RELU

THREADS = Parameter("threads", (1, 2, 4, 8, 16), "one thread saves the fork of small inputs; past the cores it only costs")


def _weight_is_float32(workload: Workload) -> Answer:
    if not workload.has("w") or workload["w"].dtype == "float32":
        return YES
    return no(f"the weight must be float32, it is {workload['w'].dtype}")


def _a_row_each(config: Config, workload: Workload) -> bool:
    return int(config["threads"]) <= max(workload.dim("rows"), 1)


RMSNORM_LANES = Kernel(
    name="cpp.example_lanes",
    op="rmsnorm",
    backend="cpp",
    summary="two sweeps a row, LANES partial sums that the compiler can keep in vector registers",
    entry="kernelyard_example.kernels:rmsnorm_lanes",
    files=("rmsnorm_lanes.cpp",),
    # contiguous keeps the example short: any number of leading dimensions is then one run of rows
    support=Support(devices=("cpu",), dtypes=("float32",), contiguous=True, predicates=(_weight_is_float32,)),
    space=ConfigSpace(
        parameters=(
            THREADS,
            Parameter(
                "lanes",
                (4, 8, 16, 32),
                "a vector of SSE or NEON, of AVX2, of AVX-512, and two of those: more sums hide the latency of adds",
            ),
        ),
        constraints=(Constraint(_a_row_each, "more threads than rows: a row is not split"),),
        default=lambda workload: {"threads": 2 if workload.dim("rows") > 1 else 1, "lanes": 16},
    ),
    # negative: it serves only where tuning chose it, or a caller pins it
    priority=-1,
)

SQUARED_RELU_EAGER = Kernel(
    name="torch.eager",
    op="squared_relu",
    backend="torch",
    summary="relu, then square, as PyTorch runs them: two passes",
    entry="kernelyard_example.kernels:squared_relu_eager",
    support=Support(devices=("cpu", "cuda"), dtypes=SQUARED_RELU.dtypes, unit_last_stride=False),
)

SQUARED_RELU_CPP = Kernel(
    name="cpp.onepass",
    op="squared_relu",
    backend="cpp",
    summary="one pass over contiguous float32",
    entry="kernelyard_example.kernels:squared_relu_cpp",
    files=("squared_relu.cpp",),
    support=Support(devices=("cpu",), dtypes=("float32",), contiguous=True),
    space=ConfigSpace(parameters=(THREADS,), default=lambda workload: {"threads": 1 if workload.dim("n") < 65536 else 2}),
    fallbacks=("torch.eager",),
    priority=10,
)

plugin = Plugin(name="example", ops=(SQUARED_RELU,), kernels=(RMSNORM_LANES, SQUARED_RELU_EAGER, SQUARED_RELU_CPP))
