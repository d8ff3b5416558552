"""The Triton kernels for products of 2 to 16 rows as data: what each supports, what of it is tuned and why."""

from __future__ import annotations

from kernelyard.plugins.triton_jit.launch import starts_aligned
from kernelyard.plugins.triton_jit.lines import Lines, lines
from kernelyard.plugins.triton_jit.norms import OVERLAP
from kernelyard.plugins.triton_jit.products import MULTIPROCESSORS, SHARED, linear_weight, two_or_three_dimensions
from kernelyard.plugins.triton_jit.products_described import BARRIERS, HALVES
from kernelyard.plugins.triton_jit.rows import two_dimensions
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import DTYPE_BYTES, Config, Determinism, TensorSpec, Workload

LEAST_ROWS, MOST_ROWS = 2, 16
"""One row is `gemv`'s; a product of tensor cores has 8 or 16 columns here, and of more rows `split` and `persistent` reuse the weight."""
ENOUGH = MULTIPROCESSORS * 9 // 10
"""Programs: all that are resident share the memory evenly, so a few idle multiprocessors cost nothing, and many cost bytes in flight."""

WEIGHTS = Parameter("weights", (16, 32, 64, 128), "rows of the weight a program: 64 are one wgmma; with 16 half of what arrives is x")
BLOCK_K = Parameter("block_k", (64, 128, 256, 512), "terms at a time: 64 of two bytes fill a line of 128 bytes; more wait less often")
WARPS = Parameter("num_warps", (4, 8), "one warpgroup or two: two issue the copies of 128 rows twice as fast")
STAGES = Parameter("num_stages", (2, 3, 4, 5, 6), "tiles on their way: 23 KB a multiprocessor hide the latency, 40 KB and more its spread")

COPY = Parameter(
    "copy", ("plain", "evict_first", "descriptor"),
    "the weight by each thread's 16 bytes; so, marked to leave L2 first, as nobody reads it again; or by the tensor memory accelerator, "
    "which takes one instruction for a tile",
)  # fmt: skip


def _weights(workload: Workload) -> int:
    """Rows of the weight in all."""
    return workload.dim("n") * (2 if workload.op == "linear_swiglu" else 1)


def _rows(workload: Workload) -> int:
    return workload.dim("rows" if workload.op == "linear_swiglu" else "m")


def _factors(workload: Workload) -> tuple[str, ...]:
    return ("x", "w") if workload.op == "linear_swiglu" else ("a", "b")


def stage_bytes(config: Config, workload: Workload) -> int:
    """Of a tile of the weight and one of x, which has columns for 8 rows or for 16."""
    columns = 8 if _rows(workload) <= 8 else 16
    return (int(config["weights"]) + columns) * int(config["block_k"]) * DTYPE_BYTES[workload.dtype]


def _fits_shared(config: Config, workload: Workload) -> bool:
    return stage_bytes(config, workload) * int(config["num_stages"]) <= SHARED - BARRIERS


def _no_longer(config: Config, workload: Workload) -> bool:
    return int(config["block_k"]) == 64 or int(config["block_k"]) < 2 * workload.dim("k")


def _shared_by_warps(config: Config, workload: Workload) -> bool:
    return int(config["num_warps"]) == 4 or int(config["weights"]) == 128


def _describable(config: Config, workload: Workload) -> bool:
    return config["copy"] != "descriptor" or weight_lines(workload) is not None


def weight_lines(workload: Workload) -> Lines | None:
    """The rows of the weight, seen as (n, k) in either op; None where a descriptor doesn't take them."""
    if workload.op == "linear_swiglu":
        found = lines(workload["w"])
    else:
        b = workload["b"]
        found = lines(TensorSpec((b.shape[1], b.shape[0]), b.dtype, (b.strides[1], b.strides[0]), b.aligned))
    return found if found is not None and not found.turned else None


def _each_half_its_own(config: Config, workload: Workload) -> bool:
    return workload.op != "linear_swiglu" or config["copy"] != "descriptor" or (config["num_warps"] == 4 and int(config["weights"]) >= 32)


def _exist(config: Config, workload: Workload) -> bool:
    return int(config["weights"]) == 16 or int(config["weights"]) < 2 * max(_weights(workload), 1)


def _default(workload: Workload) -> Config:
    """The tallest tile of which nine tenths of the multiprocessors have one, and stages until all programs, or two of them, are full.

    Terms 256 at a time, as few large copies beat many small ones: see the kernel's figures.
    Where rows start anywhere nothing is asynchronous: short tiles, whose loads a thread holds in registers.
    """
    programs = {weights: -(-_weights(workload) // weights) for weights in (128, 64, 32, 16)}
    weights = next((weights for weights, count in programs.items() if count >= ENOUGH), 16)
    if not all(starts_aligned(workload[name]) for name in _factors(workload)):
        weights = min(weights, 64)
        return {"weights": weights, "block_k": 64, "num_warps": 4, "num_stages": 2, "copy": "plain", "overlap": True}
    block = 128 if weights == 128 else 256
    while block > 64 and block >= 2 * workload.dim("k"):
        block //= 2
    config: Config = {"weights": weights, "block_k": block, "num_warps": 8 if weights == 128 else 4}
    resident = 1 if programs[weights] <= MULTIPROCESSORS else 2
    stages = min((SHARED // resident - BARRIERS) // stage_bytes(config, workload), 6)
    return {**config, "num_stages": stages, "copy": "evict_first", "overlap": True}


def _hints(workload: Workload) -> tuple[Config, ...]:
    """By descriptor; half as many rows of the weight; half as many terms with as many bytes on their way."""
    default = SPACE.default_for(workload)
    described = {**default, "num_warps": 4, "copy": "descriptor"}
    fewer = {**default, "weights": max(int(default["weights"]) // 2, 16), "num_warps": 4}
    shorter = {**default, "block_k": max(int(default["block_k"]) // 2, 64), "num_stages": 6}
    return tuple(config for config in (described, fewer, shorter) if config != default and SPACE.allows(config, workload))


SPACE = ConfigSpace(
    (WEIGHTS, BLOCK_K, WARPS, STAGES, COPY, OVERLAP),
    (
        Constraint(_fits_shared, "the tiles on their way pass 226 KiB of shared memory"),
        Constraint(_no_longer, "over half of the block of k would not exist"),
        Constraint(_shared_by_warps, "two warpgroups would share 64 rows of the weight, and read them both"),
        Constraint(_describable, "a descriptor takes rows that start at multiples of 16 bytes and don't overlap"),
        Constraint(_each_half_its_own, "a descriptor copies the gate's rows and up's apart: 16 to 64 of each, for one warpgroup"),
        Constraint(_exist, "over half of the tile's rows would not exist"),
    ),
    _default,
    _hints,
)


def _kernel(op: str, summary: str, entry: str, support: Support, fallbacks: tuple[str, ...] = ()) -> Kernel:
    """Behind torch's own: timed beside cuBLAS it was level, not ahead."""
    return Kernel(
        "triton.skinny", op, "triton", summary, f"kernelyard.plugins.triton_jit.skinny:{entry}", support=support, space=SPACE, priority=-7,
        files=("matmul.py", "ending.py", "overlap.py", "lines.py", "launch.py"), determinism=Determinism.RUN_TO_RUN, fallbacks=fallbacks,
    )  # fmt: skip


KERNELS = (
    _kernel(
        "matmul", "2 to 16 rows against a linear layer's weight, read once, tensor cores", "skinny",
        Support(
            ("cuda",), HALVES, unit_last_stride=False, least={"m": LEAST_ROWS}, most={"m": MOST_ROWS},
            predicates=(two_or_three_dimensions, linear_weight),
        ),
        fallbacks=("triton.split",),
    ),
    _kernel(
        "linear_swiglu", "2 to 16 rows against both layers' weights, read once, tensor cores", "gated",
        Support(("cuda",), HALVES, least={"rows": LEAST_ROWS}, most={"rows": MOST_ROWS}, predicates=(two_dimensions,)),
    ),
)  # fmt: skip
