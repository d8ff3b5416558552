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
MOST_WAVES = 2
"""Of parts: more only leave more to merge."""
MOST_CLUSTER = 16
MANY_TOKENS = 4096
"""From which on clusters of 16 lose more than a second launch takes: where a GPC has no 16 multiprocessors free, two share some and others
idle. 9.26 us by parts and 9.59 by clusters at 4096 tokens of 8 KV heads (H200), 35.7 and 50.7 at 32768, where the bytes take 32."""
MOST_EARLY = 4096
"""Tokens of a cache up to which the first tiles are asked for before the length is known: 5.25 and 5.64 us at 1024, 9.26 and 9.39 at 4096,
nothing at 32768. What is read past a short length is little where the cache is."""
PARTS = (1, 2, 4, 8, 16, 32, 33, 66)


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
    sharers = int(config["cluster"]) * int(config["parts"])
    return sharers == 1 or sharers * int(config["tokens"]) < 2 * workload.dim("capacity")


def _tasks(workload: Workload) -> int:
    return max(workload.dim("batch") * workload.dim("kv_heads"), 1)


def _few_waves(config: Config, workload: Workload) -> bool:
    together = int(config["parts"]) * int(config["cluster"]) * _tasks(workload)
    return config["parts"] == 1 or together <= MOST_WAVES * TOGETHER * H200_MULTIPROCESSORS


def _most_sharers(workload: Workload) -> int:
    """CTAs a KV head that make two a multiprocessor."""
    return max(TOGETHER * H200_MULTIPROCESSORS // _tasks(workload), 1)


def _default(workload: Workload) -> Config:
    """Two CTAs a multiprocessor, of 96 KiB of tiles each so that they fit: a cluster a KV head, or parts where tokens are many and a
    cluster of 16 would be too few."""
    most, capacity = _most_sharers(workload), workload.dim("capacity")
    early = most >= MOST_CLUSTER and capacity <= MOST_EARLY and not workload.has("block_table")
    rest: Config = {
        "warps": 4, "tokens": 16, "stages": 3 if workload.dim("head_dim") == 128 else 6, "overlap": True, "parts": 1, "early": early,
    }  # fmt: skip
    if most >= MOST_CLUSTER and capacity >= MANY_TOKENS:
        return {**rest, "cluster": 1, "parts": max(n for n in PARTS if n <= most)}
    fit = [n for n in (1, 2, 4, 8, MOST_CLUSTER) if n <= most and _tokens_exist({**rest, "cluster": n}, workload)]
    return {**rest, "cluster": max(fit, default=1)}


def _hints(workload: Workload) -> tuple[Config, ...]:
    """A cluster a KV head, and parts of one CTA or of clusters of 4; each with its first tiles after the length, and before."""
    default, most = _default(workload), _most_sharers(workload)
    shared = [{"cluster": c, "parts": max(n for n in PARTS if n * c <= most)} for c in (1, 4, MOST_CLUSTER) if c <= most]
    one = [{"cluster": MOST_CLUSTER, "parts": 1}] if most >= MOST_CLUSTER else []
    configs = [{**default, **each, "early": early} for each in ({}, *one, *shared) for early in (False, True)]
    return tuple(config for config in configs if SPACE.allows(config, workload))


SPACE = ConfigSpace(
    (
        Parameter("cluster", (1, 2, 4, 8, 12, 16), "CTAs that share a KV head: 16 for 8 heads of one sequence, 12 for narrow GPCs"),
        Parameter("warps", (2, 4, 8), "each with tokens of its own; some 200 registers a thread leave room for 8"),
        Parameter("tokens", (16, 32), "of a tile, a warp's step: 16 let two CTAs of three stages fit, 32 reduce a row half as often"),
        Parameter("stages", (2, 3, 4, 5, 6), "tiles on their way or in use: 25 KB and more in flight a multiprocessor"),
        OVERLAP,
        Parameter(
            "parts",
            PARTS,
            "clusters that share a KV head, merged by a second launch: 33 CTAs for each of 8 heads are two a multiprocessor",
        ),
        Parameter(
            "early",
            (False, True),
            "first tiles are asked for before the length is known: a latency less, more bytes where sequences are short",
        ),
    ),
    (
        Constraint(lambda c, w: _shared_bytes(c, w) <= MOST_SHARED_BYTES, "the tiles on their way pass 227 KiB of shared memory"),
        Constraint(_tokens_exist, "over half of the CTAs would have no token"),
        Constraint(_few_waves, "parts pass two waves of two CTAs a multiprocessor"),
        Constraint(lambda c, w: c["parts"] == 1 or bool(c["overlap"]), "a second launch that doesn't overlap the first costs microseconds"),
        Constraint(lambda c, w: not (c["early"] and w.has("block_table")), "which block a token is in comes with the length"),
    ),
    _default,
    _hints,
)

ATTENTION_DECODE = Kernel(
    name="cuda.cluster",
    op="attention_decode",
    backend="cuda",
    summary="a KV head's tokens to a cluster that merges through shared memory in the same launch, or to several and a second launch",
    entry="kernelyard.plugins.cuda.attention_decode:cluster",
    support=Support(("cuda",), ("bfloat16", "float16"), predicates=(fits_a_product,)),
    space=SPACE,
    files=("attention_decode.cu", "rows.cuh", "rows.py"),
    fallbacks=("triton.split",),
    priority=20,
    determinism=Determinism.RUN_TO_RUN,
)
