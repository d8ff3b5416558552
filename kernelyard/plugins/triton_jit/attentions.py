"""The Triton kernel of attention as data: what it supports, what of it is tuned and why."""

from __future__ import annotations

import math

from kernelyard.plugins.triton_jit.norms import OVERLAP
from kernelyard.plugins.triton_jit.rows import DTYPES
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import DTYPE_BYTES, YES, Answer, Config, Determinism, Workload, no

SHARED = 227 * 1024
MOST_DIM = 256
"""A row of the result, in float32, stays in registers: 256 columns of 64 rows are 128 a thread of 4 warps."""

LEAST_ROWS = 16
BLOCK_Q = Parameter("block_q", (LEAST_ROWS, 32, 64, 128), "queries a program: one warpgroup's product has 64")
BLOCK_KV = Parameter("block_kv", (16, 32, 64, 128), "keys at a time: more exponentials beside each product, more registers for scores")
WARPS = Parameter("num_warps", (2, 4, 8), "4 for 64 queries, 8 for 128: a warpgroup has 64 rows of a product")
STAGES = Parameter("num_stages", (1, 2, 3, 4), "blocks of keys and values on their way while one is used")
GROUP_MB = Parameter("group_mb", (8, 16, 32), "megabytes of keys and values that are worked on together, of the 50 in an H200's L2")
MOST_PROGRAMS = 2**31 - 1


def _dim(workload: Workload) -> int:
    return max(1 << max(workload.dim("head_dim") - 1, 0).bit_length(), 16)


def _fits_shared(config: Config, workload: Workload) -> bool:
    queries = int(config["block_q"])
    tiles = queries + 2 * int(config["block_kv"]) * int(config["num_stages"])
    return tiles * _dim(workload) * DTYPE_BYTES[workload.dtype] <= SHARED


def _fits_registers(config: Config, workload: Workload) -> bool:
    return int(config["block_q"]) * (_dim(workload) + int(config["block_kv"])) <= 192 * 32 * int(config["num_warps"])


def _not_taller(config: Config, workload: Workload) -> bool:
    return int(config["block_q"]) == 16 or int(config["block_q"]) < 2 * max(workload.dim("q_len"), 1)


def _more_than_one_group(config: Config, workload: Workload) -> bool:
    return int(config["group_mb"]) == GROUP_MB.values[0] or _shared_bytes(workload) > int(config["group_mb"]) << 19


def _shared_bytes(workload: Workload) -> int:
    sizes = [workload.dim(name) for name in ("batch", "kv_heads", "kv_len", "head_dim")]
    return 2 * math.prod(sizes) * DTYPE_BYTES[workload.dtype]


def _twoloop_default(workload: Workload) -> Config:
    """64 by 64 with 4 warps; twice that and 8 where keys are many; less for float32, whose products take no tensor cores."""
    half, queries = workload.dtype != "float32", workload.dim("q_len")
    rest = {"group_mb": 16 if _shared_bytes(workload) > 8 << 20 else 8, "overlap": False}
    block_q = next((n for n in (16, 32, 64) if queries <= n), 64)
    if half and queries >= 8192:
        return {"block_q": 128, "block_kv": 128, "num_warps": 8, "num_stages": 2 if _dim(workload) > 64 else 3, **rest}
    block_kv = 64 if half and _dim(workload) <= 128 else 32
    return {"block_q": block_q if half else min(block_q, 32), "block_kv": block_kv, "num_warps": 4, "num_stages": 2, **rest}


FITS = (
    Constraint(_fits_shared, "queries, keys and values on their way pass 227 KiB of shared memory"),
    Constraint(_fits_registers, "a thread would hold over 192 scores and results"),
)
TWOLOOP = ConfigSpace(
    (BLOCK_Q, BLOCK_KV, WARPS, STAGES, GROUP_MB, OVERLAP),
    (
        *FITS,
        Constraint(_not_taller, "over half of the queries would not exist"),
        Constraint(_more_than_one_group, "half as many megabytes hold the keys and values of all heads: the order is the same"),
    ),
    _twoloop_default,
)


def countable(workload: Workload) -> Answer:
    """Programs are counted in 32 bits."""
    programs = workload.dim("batch") * workload.dim("q_heads") * -(-workload.dim("q_len") // LEAST_ROWS)
    return YES if programs <= MOST_PROGRAMS else no(f"{programs} blocks of {LEAST_ROWS} queries, over the {MOST_PROGRAMS} that are counted")


def _kernel(op: str, name: str, summary: str, entry: str, **rest: object) -> Kernel:
    files = ("overlap.py", *rest.pop("files", ()))  # type: ignore[misc]
    entry = f"kernelyard.plugins.triton_jit.{entry}"
    return Kernel(f"triton.{name}", op, "triton", summary, entry, files=files, determinism=Determinism.RUN_TO_RUN, **rest)  # type: ignore[arg-type]


KERNELS = (
    _kernel(
        "attention", "twoloop", "a block of queries over the keys it sees, masked on the diagonal only", "attention:twoloop",
        support=Support(
            ("cuda",), DTYPES, most={"head_dim": MOST_DIM, "q_len": 2**30, "kv_len": 2**30}, least={"head_dim": 1}, predicates=(countable,)
        ),
        space=TWOLOOP, priority=10,
    ),
)  # fmt: skip
