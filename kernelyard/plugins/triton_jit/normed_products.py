"""The Triton kernels of rmsnorm_linear and rmsnorm_linear_swiglu as data: what each supports, what of it is tuned and why."""

from __future__ import annotations

from kernelyard.plugins.triton_jit.launch import starts_aligned
from kernelyard.plugins.triton_jit.norms import OVERLAP
from kernelyard.plugins.triton_jit.products import CHUNK, GEMV_WARPS, HINT, MOST_ROWS_ALONE, MULTIPROCESSORS, ROWS_AT_ONCE
from kernelyard.plugins.triton_jit.products_described import BARRIERS, HALVES
from kernelyard.plugins.triton_jit.products_skinny import BLOCK_K, ENOUGH, LEAST_ROWS, MOST_ROWS, STAGES, WEIGHTS
from kernelyard.plugins.triton_jit.products_skinny import WARPS as SKINNY_WARPS
from kernelyard.plugins.triton_jit.rows import DTYPES, two_dimensions
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import DTYPE_BYTES, YES, Answer, Config, Determinism, Workload, no

SHARED = 227 * 1024
"""Bytes of shared memory that a program may have on Hopper."""
MOST_BYTES_A_THREAD = 256
"""Of the weight, in registers while x is on its way: 64 of them, beside as many for x and norm."""
GATED = "rmsnorm_linear_swiglu"
NORM = Parameter("norm", ("first", "after"), "a sweep over x for its mean squares ahead of the product, or 1 / rms applied to the sums")


def _size(workload: Workload) -> int:
    return DTYPE_BYTES[workload.dtype]


def _layers(workload: Workload) -> int:
    return 2 if workload.op == GATED else 1


def _bytes_a_thread(config: Config, workload: Workload) -> int:
    """Of the weight; in chunks the next one is there beside the one at hand."""
    rows = int(config["weights"]) * _layers(workload) * (1 if int(config["chunk"]) >= workload.dim("k") else 2)
    return rows * int(config["chunk"]) * _size(workload) // (32 * int(config["num_warps"]))


def _held(config: Config, workload: Workload) -> bool:
    return 16 <= _bytes_a_thread(config, workload) <= MOST_BYTES_A_THREAD


def _x_held(config: Config, workload: Workload) -> bool:
    return int(config["chunk"]) // (32 * int(config["num_warps"])) <= 64


def _chunk_no_longer(config: Config, workload: Workload) -> bool:
    return int(config["chunk"]) == CHUNK.values[0] or int(config["chunk"]) < 2 * workload.dim("k")


def _gemv_default(workload: Workload) -> Config:
    """All of k at once up to 8192; 64 elements of the weight a thread, half of them where rows of the result are few.

    So many rows of the weight a program that x and norm, which each program reads, are the lesser part of its bytes.
    """
    size, layers = _size(workload), _layers(workload)
    chunk = min(max(1 << (workload.dim("k") - 1).bit_length(), 512), 16384 // size)
    whole = chunk >= workload.dim("k")
    warps = 8 if chunk >= 4096 else 4 if chunk > 512 else 2
    held = 128 * 32 * warps // size // (1 if whole else 2)
    weights = max(min(held // (chunk * layers), 8), 1)
    while weights > 1 and -(-workload.dim("n") // weights) < 2 * MULTIPROCESSORS:
        weights //= 2
    return {"weights": weights, "chunk": chunk, "num_warps": warps, "hint": "load", "overlap": True}


def _gemv_hints(workload: Workload) -> tuple[Config, ...]:
    """Half and twice as many rows of the weight, half as many warps, no hint: what the bytes in flight depend on."""
    default = GEMV.default_for(workload)
    weights, warps = int(default["weights"]), int(default["num_warps"])
    near = ({"weights": weights // 2}, {"weights": 2 * weights}, {"num_warps": warps // 2}, {"hint": "none"})
    return _allowed(GEMV, default, near, workload)


def _allowed(space: ConfigSpace, default: Config, near: tuple[Config, ...], workload: Workload) -> tuple[Config, ...]:
    values = {parameter.name: parameter.values for parameter in space.parameters}
    known = [change for change in near if all(value in values[name] for name, value in change.items())]
    configs = [{**default, **change} for change in known]
    return tuple(config for config in configs if config != default and space.allows(config, workload))


GEMV = ConfigSpace(
    (ROWS_AT_ONCE, CHUNK, GEMV_WARPS, HINT, OVERLAP),
    (
        Constraint(_chunk_no_longer, "over half of the chunk would not exist"),
        Constraint(_held, f"a thread would hold under 16 or over {MOST_BYTES_A_THREAD} bytes of the weight"),
        Constraint(_x_held, "a thread would hold over 64 elements of x and of norm"),
    ),
    _gemv_default,
    _gemv_hints,
)


def stage_bytes(config: Config, workload: Workload) -> int:
    """Of a tile of the weight, one of x, which has columns for 8 rows or for 16, and one of norm for each."""
    columns = 8 if workload.dim("rows") <= 8 else 16
    return (int(config["weights"]) + 2 * columns) * int(config["block_k"]) * _size(workload)


def _fits_shared(config: Config, workload: Workload) -> bool:
    """With one more tile of x beside those on their way: the normalised one."""
    factor = 16 * int(config["block_k"]) * _size(workload)
    return stage_bytes(config, workload) * int(config["num_stages"]) + factor <= SHARED - BARRIERS


def _no_longer(config: Config, workload: Workload) -> bool:
    return int(config["block_k"]) == BLOCK_K.values[0] or int(config["block_k"]) < 2 * workload.dim("k")


def _shared_by_warps(config: Config, workload: Workload) -> bool:
    return int(config["num_warps"]) == 4 or int(config["weights"]) == 128


def _exist(config: Config, workload: Workload) -> bool:
    return int(config["weights"]) == 16 or int(config["weights"]) < 2 * max(workload.dim("n") * _layers(workload), 1)


def _in_range(config: Config, workload: Workload) -> bool:
    return config["norm"] == "first" or workload.dtype == "bfloat16"


def _squares_held(config: Config, workload: Workload) -> bool:
    """Float32 squares of a tile of x, beside x itself and its factors."""
    columns = 8 if workload.dim("rows") <= 8 else 16
    return int(config["block_k"]) * columns // (32 * int(config["num_warps"])) <= 32


def _skinny_default(workload: Workload) -> Config:
    """As `triton.skinny` has them: the tallest tile of which nine tenths of the multiprocessors have one, stages for two programs each.

    Rows that start anywhere go through registers an element at a time: short tiles.
    """
    total = workload.dim("n") * _layers(workload)
    weights = next((weights for weights in (64, 32, 16) if -(-total // weights) >= ENOUGH), 16)
    block = 128 if weights > 16 or workload.dim("rows") <= 8 else 64  # 128 keep 8 bytes of such a thread in local memory
    while block > 64 and block >= 2 * workload.dim("k"):
        block //= 2
    norm = "after" if workload.dtype == "bfloat16" else "first"
    config: Config = {"weights": weights, "block_k": block, "num_warps": 4, "hint": "load", "norm": norm, "overlap": True}
    if not all(starts_aligned(workload[name]) for name in ("x", "norm", "w")):
        return {**config, "block_k": 64, "num_stages": 2}
    resident = 1 if -(-total // weights) <= MULTIPROCESSORS else 2
    factor = 16 * block * _size(workload)
    return {**config, "num_stages": max(min((SHARED // resident - BARRIERS - factor) // stage_bytes(config, workload), 6), 2)}


def _skinny_hints(workload: Workload) -> tuple[Config, ...]:
    """The other way to norm; half as many rows of the weight; half as many terms."""
    default = SKINNY.default_for(workload)
    other = "first" if default["norm"] == "after" else "after"
    near = ({"norm": other}, {"weights": int(default["weights"]) // 2}, {"block_k": int(default["block_k"]) // 2})
    return _allowed(SKINNY, default, near, workload)


SKINNY = ConfigSpace(
    (WEIGHTS, BLOCK_K, SKINNY_WARPS, STAGES, HINT, NORM, OVERLAP),
    (
        Constraint(_fits_shared, "the tiles on their way pass 226 KiB of shared memory"),
        Constraint(_no_longer, "over half of the block of k would not exist"),
        Constraint(_shared_by_warps, "two warpgroups would share 64 rows of the weight, and read them both"),
        Constraint(_exist, "over half of the tile's rows would not exist"),
        Constraint(_in_range, "x * norm may pass the largest number of the dtype before 1 / rms makes it small"),
        Constraint(_squares_held, "a thread would hold over 32 squares of x"),
    ),
    _skinny_default,
    _skinny_hints,
)


def rows_of_w(workload: Workload) -> Answer:
    """norm and bias without gaps, rows of w one after the other in memory's order."""
    for name in ("norm", "bias"):
        if workload.has(name) and workload[name].numel > 1 and workload[name].strides != (1,):
            return no(f"{name} must be contiguous, its stride is {workload[name].strides[0]}")
    return YES


def _kernel(op: str, name: str, summary: str, entry: str, support: Support, space: ConfigSpace, priority: int) -> Kernel:
    return Kernel(
        f"triton.{name}", op, "triton", summary, f"kernelyard.plugins.triton_jit.normed_{entry}", support=support, space=space,
        priority=priority, files=("ending.py", "overlap.py"), determinism=Determinism.RUN_TO_RUN, fallbacks=("torch.composed",),
    )  # fmt: skip


ALONE = Support(
    ("cuda",), DTYPES, least={"k": 1}, most={"rows": MOST_ROWS_ALONE, "k": 2**30}, predicates=(two_dimensions, rows_of_w)
)
FEW = Support(
    ("cuda",), HALVES, least={"rows": LEAST_ROWS, "k": 1, "n": 1}, most={"rows": MOST_ROWS, "k": 2**30},
    predicates=(two_dimensions, rows_of_w),
)
KERNELS = (
    _kernel("rmsnorm_linear", "gemv", "few rows normalised by every program, the weight read once", "gemv:gemv", ALONE, GEMV, 15),
    _kernel(GATED, "gemv", "few rows normalised by every program, both layers' weights read once", "gemv:gated", ALONE, GEMV, 15),
    _kernel("rmsnorm_linear", "skinny", "2 to 16 rows normalised on their way to tensor cores", "skinny:skinny", FEW, SKINNY, 10),
    _kernel(GATED, "skinny", "2 to 16 rows normalised on their way to tensor cores, both layers", "skinny:gated", FEW, SKINNY, 10),
)
"""Where both serve, gemv: its weights may be on their way before the kernel ahead has ended. Their order is not measured."""
