"""The Triton kernels of matmul and linear_swiglu as data: what each supports, what of it is tuned and why."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.plugins.triton_jit.launch import starts_aligned
from kernelyard.plugins.triton_jit.norms import OVERLAP
from kernelyard.plugins.triton_jit.rows import DTYPES, two_dimensions
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import DTYPE_BYTES, YES, Answer, Config, Determinism, TensorSpec, Workload, no

SHARED = 227 * 1024
"""Bytes of shared memory that a program may have on Hopper."""
MULTIPROCESSORS = 132
MOST_SUMS = 128
"""Float32 sums that a thread keeps: more and they spill."""
MOST_ROWS_ALONE = 4
"""Rows that a kernel without tensor cores serves: from there on products cost more than the weight's bytes."""

BLOCK_M = Parameter("block_m", (16, 32, 64, 128, 256), "rows of the result a program: 64 are what one warpgroup's product has")
BLOCK_N = Parameter("block_n", (32, 64, 128, 256), "columns of the result a program: 256 by 128 rows read least for a product")
BLOCK_K = Parameter("block_k", (32, 64, 128), "terms at a time: 64 of two bytes fill a line of 128 bytes")
WARPS = Parameter("num_warps", (4, 8), "one warpgroup or two: two for 256 columns, whose sums one can't hold")
STAGES = Parameter("num_stages", (2, 3, 4, 5), "tiles on their way while one is multiplied, as many as shared memory holds")
LONG_ENOUGH = 32
"""Rows of the result from which on a copy of a factor pays: fewer products than that hide behind its bytes."""
PARTS = Parameter("parts", (2, 4, 8, 16), "of k: work for every multiprocessor where the result has few tiles")
ROWS_AT_ONCE = Parameter("weights", (1, 2, 4, 8), "rows of the weight a program: one load of the inputs serves them")
CHUNK = Parameter("chunk", (512, 1024, 2048, 4096, 8192, 16384), "terms in flight at once: all of k where it fits, without a loop")
GEMV_WARPS = Parameter("num_warps", (1, 2, 4, 8), "threads for the chunk: four to eight 16-byte loads of the weight a thread")
HINT = Parameter("hint", ("none", "load"), "whether the weight, which is read once, may push others out of L2")


def _size(workload: Workload) -> int:
    return DTYPE_BYTES[workload.dtype]


def _fits_shared(config: Config, workload: Workload) -> bool:
    tile = int(config["block_k"]) * (int(config["block_m"]) + int(config["block_n"]))
    return tile * int(config["num_stages"]) * _size(workload) <= SHARED


def _fits_registers(config: Config, workload: Workload) -> bool:
    return int(config["block_m"]) * int(config["block_n"]) <= MOST_SUMS * 32 * int(config["num_warps"])


def _fills(config: Config, workload: Workload) -> bool:
    return int(config["block_m"]) * int(config["block_n"]) >= 8 * 32 * int(config["num_warps"])


def _not_taller(config: Config, workload: Workload) -> bool:
    return int(config["block_m"]) == 16 or int(config["block_m"]) < 2 * max(workload.dim("m"), 1)


def _parts_exist(config: Config, workload: Workload) -> bool:
    return int(config["parts"]) * int(config["block_k"]) <= max(workload.dim("k"), int(config["block_k"]) * 2)


def _tile_default(workload: Workload) -> Config:
    """Tall and wide tiles where there are enough of them for every multiprocessor; smaller ones for float32, which takes twice the room.

    Where rows start anywhere a thread has an address for each element that it loads: half as many terms at once, or they spill.
    """
    m, half = workload.dim("m"), _size(workload) == 2
    aligned = all(starts_aligned(workload[name]) for name in "ab")
    many = workload.dim("batch") * -(-m // 128) * -(-workload.dim("n") // 256) >= MULTIPROCESSORS
    if m <= 64:
        block_m, block_n, block_k, warps = 16 if m <= 16 else 32 if m <= 32 else 64, 64, 64, 4
    elif many and half and aligned:
        block_m, block_n, block_k, warps = 128, 256, 64, 8
    else:
        block_m, block_n, block_k, warps = 64, 128 if half else 64, 64 if half else 32, 4
    if not aligned:
        block_k, warps = 32, 8 if block_m == 64 and (block_n == 128 or not half) else 4
    return {"block_m": block_m, "block_n": block_n, "block_k": block_k, "num_warps": warps, "num_stages": 3, "overlap": False}


def _padded_default(workload: Workload) -> Config:
    """As if every row started where it will."""
    specs = tuple((name, TensorSpec(spec.shape, spec.dtype) if spec else None) for name, spec in workload.tensors)
    flat = replace(workload, tensors=tuple((name, _rounded(spec) if spec and name in "ab" else spec) for name, spec in specs))
    return {**_tile_default(flat), "overlap": True}


def _rounded(spec: TensorSpec) -> TensorSpec:
    *lead, rows, cols = spec.shape
    pitch = -(-max(cols, 1) // 64) * 64
    return TensorSpec(spec.shape, spec.dtype, (*((rows * pitch,) if lead else ()), pitch, 1))


def _split_default(workload: Workload) -> Config:
    tile = {**_tile_default(workload), "overlap": True}
    tiles = workload.dim("batch") * -(-workload.dim("m") // int(tile["block_m"])) * -(-workload.dim("n") // int(tile["block_n"]))
    wanted = [p for p in (2, 4, 8, 16) if p * int(tile["block_k"]) <= max(workload.dim("k"), 2 * int(tile["block_k"]))]
    return {**tile, "parts": next((p for p in wanted if p * tiles >= MULTIPROCESSORS), wanted[-1])}


RULES = (
    Constraint(_fits_shared, "the tiles on their way pass 227 KiB of shared memory"),
    Constraint(_fits_registers, f"a thread would hold over {MOST_SUMS} sums"),
    Constraint(_fills, "a thread would hold under 8 sums"),
    Constraint(_not_taller, "over half of the tile's rows would not exist"),
)
TILE = ConfigSpace((BLOCK_M, BLOCK_N, BLOCK_K, WARPS, STAGES, OVERLAP), RULES, _tile_default)
SPLIT = ConfigSpace(
    (BLOCK_M, BLOCK_N, BLOCK_K, WARPS, STAGES, PARTS, OVERLAP),
    (*RULES, Constraint(_parts_exist, "parts of less than one step of k")),
    _split_default,
)


def _chunk_default(workload: Workload) -> Config:
    """All of k at once up to 16384, by two rows of the weight up to 4096 of a wide one: 2 to 8 loads of 16 bytes a thread."""
    k, size = max(workload.dim("k"), 1), _size(workload)
    chunk = min(max(1 << (k - 1).bit_length(), 512), 32768 // size)
    narrow = workload.dim("n") < 8192 or chunk > 4096
    warps = 8 if chunk > 2048 else 4 if chunk > 512 else 2
    return {"weights": 1 if narrow else 2, "chunk": chunk, "num_warps": warps, "hint": "none", "overlap": True}


def _chunk_no_longer(config: Config, workload: Workload) -> bool:
    return int(config["chunk"]) == 512 or int(config["chunk"]) < 2 * max(workload.dim("k"), 1)


def _loads_a_thread(config: Config, workload: Workload) -> bool:
    rows = int(config["weights"]) * (2 if workload.op == "linear_swiglu" else 1)
    return 8 <= rows * int(config["chunk"]) // (32 * int(config["num_warps"])) <= 256


GEMV = ConfigSpace(
    (ROWS_AT_ONCE, CHUNK, GEMV_WARPS, HINT, OVERLAP),
    (
        Constraint(_chunk_no_longer, "over half of the chunk would not exist"),
        Constraint(_loads_a_thread, "a thread would hold under 8 or over 256 elements of the weight"),
    ),
    _chunk_default,
)


def two_or_three_dimensions(workload: Workload) -> Answer:
    """Leading dimensions that can't be merged have no single stride."""
    for name in ("a", "b", "residual"):
        if workload.has(name) and len(workload[name].shape) != len(workload["b"].shape):
            return no(f"the leading dimensions of {name} can't be seen as one, its strides are {workload[name].strides}")
    return YES


def linear_weight(workload: Workload) -> Answer:
    """b the transpose of a weight with contiguous rows, a with contiguous rows, no batch."""
    a, b = workload["a"], workload["b"]
    if len(b.shape) != 2:
        return no("b has leading dimensions")
    if workload.dim("k") > 1 and (b.strides[0] != 1 or a.strides[-1] != 1):
        return no(f"a and the transpose of b must have contiguous rows, their strides are {a.strides} and {b.strides}")
    return YES


def plain_products(workload: Workload) -> Answer:
    """Without tensor cores nothing is rounded to TF32; where that is asked for, they are what is meant."""
    return YES if workload.op != "matmul" or workload.static("precision") == "ieee" else no("it has no TF32")


def starts_unaligned(workload: Workload) -> Answer:
    """A factor to copy, of which one dimension has no gaps."""
    for name in "ab":
        spec = workload[name]
        if 1 not in spec.shape[-2:] and 1 not in spec.strides[-2:]:
            return no(f"neither rows nor columns of {name} are contiguous, its strides are {spec.strides}")
    unaligned = any(not starts_aligned(workload[name]) for name in "ab")
    return YES if unaligned else no("rows of a and b start at multiples of 16 bytes: there is nothing to copy")


ANY = Support(("cuda",), DTYPES, unit_last_stride=False, predicates=(two_or_three_dimensions,))
FEW = Support(
    ("cuda",), DTYPES, most={"m": MOST_ROWS_ALONE}, unit_last_stride=False,
    predicates=(two_or_three_dimensions, linear_weight, plain_products),
)  # fmt: skip
ROWS = Support(("cuda",), DTYPES, most={"rows": MOST_ROWS_ALONE}, predicates=(two_dimensions,))


def _kernel(op: str, name: str, summary: str, entry: str, **rest: object) -> Kernel:
    files = ("ending.py", "overlap.py", *rest.pop("files", ()))  # type: ignore[misc]
    entry = f"kernelyard.plugins.triton_jit.{entry}"
    return Kernel(f"triton.{name}", op, "triton", summary, entry, files=files, determinism=Determinism.RUN_TO_RUN, **rest)  # type: ignore[arg-type]


KERNELS = (
    _kernel("matmul", "tile", "a tile a program, tensor cores, any strides", "matmul:tile", support=ANY, space=TILE, priority=-5),
    _kernel(
        "matmul", "split", "k in parts, added in order by a second launch", "matmul:split",
        support=ANY, space=SPLIT, priority=-6, fallbacks=("triton.tile",),
    ),
    _kernel(
        "matmul", "padded", "factors copied to where their rows start at 16 bytes, then tiles", "matmul_padded:padded",
        support=Support(
            ("cuda",), DTYPES, unit_last_stride=False, least={"m": LONG_ENOUGH}, predicates=(two_or_three_dimensions, starts_unaligned)
        ),
        space=ConfigSpace((BLOCK_M, BLOCK_N, BLOCK_K, WARPS, STAGES, OVERLAP), RULES, _padded_default),
        priority=-4, fallbacks=("triton.tile",), files=("matmul.py", "matmul_persistent.py", "lines.py", "launch.py"),
    ),
    _kernel(
        "matmul", "gemv", "few rows against a linear layer's weight, read once, without tensor cores", "gemv:gemv",
        support=FEW, space=GEMV, priority=-4, fallbacks=("triton.split",), files=("matmul.py",),
    ),
    _kernel(
        "linear_swiglu", "gemv", "few rows against both layers' weights, read once, without tensor cores", "gemv:gated",
        support=ROWS, space=GEMV, priority=-4, files=("matmul.py",),
        # us of it and of plain torch: 53.5 and 63.0 at 1x14336x4096, 16.7 and 21.1 at 1x8192x2048 (H200).
        priority_where=((Support(("cuda",), ("bfloat16", "float16"), most={"rows": 1}), 15),),
    ),
)  # fmt: skip
