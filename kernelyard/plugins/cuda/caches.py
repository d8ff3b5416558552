"""The declaration of the CUDA attention over a cache: what it takes, and what is tuned."""

from __future__ import annotations

from kernelyard.plugins.cuda.rows import H200_MULTIPROCESSORS
from kernelyard.plugins.cuda.spaces import MOST_SHARED_BYTES, OVERLAP
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import YES, Answer, Config, Determinism, Workload, no

ROWS = 16
"""Query rows of a tensor core's product: heads that share a KV head, times new tokens."""
PIECE = 8
TOGETHER = 2
"""CTAs a multiprocessor: so all clusters of 16 are placed at once, and one CTA loads while another merges."""


def fits_a_product(workload: Workload) -> Answer:
    """Few query rows, heads of 64 or 128, everything at multiples of 16 bytes."""
    rows = workload.dim("q_heads") // max(workload.dim("kv_heads"), 1) * workload.dim("q_len")
    if rows > ROWS:
        return no(f"{rows} query rows share a KV head, the most is {ROWS}")
    if workload.dim("head_dim") not in (64, 128):
        return no(f"head_dim is {workload.dim('head_dim')}, not 64 or 128")
    for name in "qkv":
        spec = workload[name]
        if not spec.aligned or any(stride % PIECE for size, stride in zip(spec.shape[:-1], spec.strides[:-1], strict=True) if size > 1):
            return no(f"rows of {name} must start at multiples of 16 bytes, its strides are {spec.strides}")
    return YES


def _shared_bytes(config: Config, workload: Workload) -> int:
    """Tiles, what a cluster's CTAs send, and 2 KiB of maxima, sums and alignment."""
    tiles = int(config["warps"]) * int(config["stages"]) * 4 * int(config["tokens"])
    return (tiles + (96 if config["cluster"] != 1 else 0)) * workload.dim("head_dim") + 2048


def _tokens_exist(config: Config, workload: Workload) -> bool:
    return config["cluster"] == 1 or int(config["cluster"]) * int(config["tokens"]) < 2 * workload.dim("capacity")


def _default(workload: Workload) -> Config:
    """As many CTAs a KV head as make two a multiprocessor, 16 at most; 96 KiB of tiles a CTA, so that two fit."""
    tasks = max(workload.dim("batch") * workload.dim("kv_heads"), 1)
    rest: Config = {"warps": 4, "tokens": 16, "stages": 3 if workload.dim("head_dim") == 128 else 6, "overlap": True}
    fit = [n for n in (1, 2, 4, 8, 16) if n * tasks <= TOGETHER * H200_MULTIPROCESSORS and _tokens_exist({**rest, "cluster": n}, workload)]
    return {"cluster": max(fit, default=1), **rest}


SPACE = ConfigSpace(
    (
        Parameter("cluster", (1, 2, 4, 8, 12, 16), "CTAs that share a KV head: 16 for 8 heads of one sequence, 12 for narrow GPCs"),
        Parameter("warps", (2, 4, 8), "each with tokens of its own; some 200 registers a thread leave room for 8"),
        Parameter("tokens", (16, 32), "of a tile, a warp's step: 16 let two CTAs of three stages fit, 32 reduce a row half as often"),
        Parameter("stages", (2, 3, 4, 5, 6), "tiles on their way or in use: 25 KB and more in flight a multiprocessor"),
        OVERLAP,
    ),
    (
        Constraint(lambda c, w: _shared_bytes(c, w) <= MOST_SHARED_BYTES, "the tiles on their way pass 227 KiB of shared memory"),
        Constraint(_tokens_exist, "over half of the CTAs would have no token"),
    ),
    _default,
)

ATTENTION_DECODE = Kernel(
    name="cuda.cluster",
    op="attention_decode",
    backend="cuda",
    summary="parts of a KV head's tokens are a cluster, merged through distributed shared memory in the same launch",
    entry="kernelyard.plugins.cuda.attention_decode:cluster",
    support=Support(("cuda",), ("bfloat16", "float16"), predicates=(fits_a_product,)),
    space=SPACE,
    files=("attention_decode.cu", "rows.cuh", "rows.py"),
    fallbacks=("triton.split",),
    priority=20,
    determinism=Determinism.RUN_TO_RUN,
)
