"""The Triton kernels of attention and attention_decode as data: what each supports, what of it is tuned and why."""

from __future__ import annotations

from kernelyard.plugins.triton_jit.norms import OVERLAP
from kernelyard.plugins.triton_jit.rows import DTYPES
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import DTYPE_BYTES, YES, Answer, Config, Determinism, Workload, no

SHARED = 227 * 1024
MULTIPROCESSORS = 132
MOST_DIM = 256
"""A row of the result, in float32, stays in registers: 256 columns of 64 rows are 128 a thread of 4 warps."""
MOST_ROWS = 128
"""Query heads that share one of the cache, times new tokens."""

BLOCK_Q = Parameter("block_q", (16, 32, 64, 128), "queries a program: one warpgroup's product has 64")
BLOCK_KV = Parameter("block_kv", (16, 32, 64, 128), "keys at a time: more exponentials beside each product, more registers for scores")
WARPS = Parameter("num_warps", (2, 4, 8), "4 for 64 queries, 8 for 128: a warpgroup has 64 rows of a product")
STAGES = Parameter("num_stages", (1, 2, 3, 4), "blocks of keys and values on their way while one is used")
PARTS = Parameter("parts", (1, 2, 4, 8, 16, 32, 64), "of a sequence's tokens: work for every multiprocessor where sequences are few")


def _dim(workload: Workload) -> int:
    return max(1 << max(workload.dim("head_dim") - 1, 0).bit_length(), 16)


def _fits_shared(config: Config, workload: Workload) -> bool:
    queries = int(config.get("block_q", 16))
    tiles = queries + 2 * int(config["block_kv"]) * int(config["num_stages"])
    return tiles * _dim(workload) * DTYPE_BYTES[workload.dtype] <= SHARED


def _fits_registers(config: Config, workload: Workload) -> bool:
    queries = int(config.get("block_q", 0)) or max(1 << max(_rows(workload) - 1, 0).bit_length(), 16)
    return queries * (_dim(workload) + int(config["block_kv"])) <= 192 * 32 * int(config["num_warps"])


def _rows(workload: Workload) -> int:
    return workload.dim("q_heads") // max(workload.dim("kv_heads"), 1) * workload.dim("q_len")


def _not_taller(config: Config, workload: Workload) -> bool:
    return int(config["block_q"]) == 16 or int(config["block_q"]) < 2 * max(workload.dim("q_len"), 1)


def _parts_exist(config: Config, workload: Workload) -> bool:
    return config["parts"] == 1 or int(config["parts"]) * int(config["block_kv"]) <= workload.dim("capacity")


def _twoloop_default(workload: Workload) -> Config:
    """64 by 64 with 4 warps; twice that and 8 where keys are many; less for float32, whose products take no tensor cores."""
    half, queries = workload.dtype != "float32", workload.dim("q_len")
    block_q = next((n for n in (16, 32, 64) if queries <= n), 64)
    if half and queries >= 8192:
        return {"block_q": 128, "block_kv": 128, "num_warps": 8, "num_stages": 2 if _dim(workload) > 64 else 3, "overlap": False}
    block_kv = 64 if half and _dim(workload) <= 128 else 32
    return {"block_q": block_q if half else min(block_q, 32), "block_kv": block_kv, "num_warps": 4, "num_stages": 2, "overlap": False}


def _split_default(workload: Workload) -> Config:
    """As many parts as give every multiprocessor a program, of at least 128 tokens each."""
    programs, capacity = max(workload.dim("batch") * workload.dim("kv_heads"), 1), workload.dim("capacity")
    half = workload.dtype != "float32"
    block_kv = 64 if half and _dim(workload) <= 128 else 32
    wanted = [n for n in (1, 2, 4, 8, 16, 32, 64) if n == 1 or n * max(block_kv, 128) <= capacity]
    parts = next((n for n in wanted if n * programs >= MULTIPROCESSORS), wanted[-1])
    return {"block_kv": block_kv, "parts": parts, "num_warps": 4, "num_stages": 3 if half else 2, "overlap": True}


FITS = (
    Constraint(_fits_shared, "queries, keys and values on their way pass 227 KiB of shared memory"),
    Constraint(_fits_registers, "a thread would hold over 192 scores and results"),
)
TWOLOOP = ConfigSpace(
    (BLOCK_Q, BLOCK_KV, WARPS, STAGES, OVERLAP),
    (*FITS, Constraint(_not_taller, "over half of the queries would not exist")),
    _twoloop_default,
)
SPLIT = ConfigSpace(
    (BLOCK_KV, PARTS, WARPS, STAGES, OVERLAP), (*FITS, Constraint(_parts_exist, "parts of less than one block of keys")), _split_default
)


def few_rows(workload: Workload) -> Answer:
    """The rows that share a head of the cache stand in one program."""
    rows = _rows(workload)
    return YES if rows <= MOST_ROWS else no(f"{rows} query heads and new tokens share a head of the cache, the most is {MOST_ROWS}")


def contiguous_heads(workload: Workload) -> Answer:
    """Elements of a head lie one behind the other."""
    for name in "qkv":
        spec = workload[name]
        if spec.numel and spec.shape[-1] > 1 and spec.strides[-1] != 1:
            return no(f"the last dimension of {name} must be contiguous, its stride is {spec.strides[-1]}")
    return YES


def _kernel(op: str, name: str, summary: str, entry: str, **rest: object) -> Kernel:
    files = ("overlap.py", *rest.pop("files", ()))  # type: ignore[misc]
    entry = f"kernelyard.plugins.triton_jit.{entry}"
    return Kernel(f"triton.{name}", op, "triton", summary, entry, files=files, determinism=Determinism.RUN_TO_RUN, **rest)  # type: ignore[arg-type]


KERNELS = (
    _kernel(
        "attention", "twoloop", "a block of queries over the keys it sees, masked on the diagonal only", "attention:twoloop",
        support=Support(("cuda",), DTYPES, most={"head_dim": MOST_DIM, "q_len": 64 * 65535}, least={"head_dim": 1}),
        space=TWOLOOP, priority=-5,
    ),
    _kernel(
        "attention_decode", "split", "tokens in parts, once for all heads that share them, merged by a second launch",
        "attention_decode:split", files=("attention.py",),
        support=Support(
            ("cuda",), DTYPES, most={"head_dim": MOST_DIM, "batch": 65535, "kv_heads": 65535}, least={"head_dim": 1},
            unit_last_stride=False, predicates=(few_rows, contiguous_heads),
        ),
        space=SPLIT, priority=-5,
    ),
)  # fmt: skip
