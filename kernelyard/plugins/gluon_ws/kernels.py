"""The Gluon kernels as data: what each supports, what of it is tuned and why."""

from __future__ import annotations

from kernelyard.plugins.triton_jit.lines import lines
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import YES, Answer, Config, Determinism, Workload, no

HALVES = ("bfloat16", "float16")
SHARED = 227 * 1024
"""Bytes of shared memory that a program may have on Hopper."""
BARRIERS = 1024
"""Bytes that are left to barriers and to alignment."""
FOUR = 2**31 - 1
PART = 64
"""Columns of a result that are ended and written at once: 128 bytes, what the widest swizzle covers, and 32 registers a thread."""
MOST_TILES = 1 << 18
"""Tiles of attention whose order is planned ahead: half a second on the host, 1 MB on the device."""

BLOCK_N = Parameter(
    "block_n", (128, 256), "columns of a tile of 128 rows: 256 read least for a product; 128 are more tiles, for small results"
)
STAGES_MATMUL = Parameter("stages", (3, 4, 5, 6), "pieces on their way: 3 or 4 at 256 columns, with 4 half the room for results")
CONSUMERS = Parameter(
    "consumers", (2, 3), "warpgroups of 64 queries: three share a block of keys at head_dim 64, with 160 registers a thread"
)
STAGES_ATTENTION = Parameter("stages", (2, 3, 4, 5), "blocks of keys and values on their way: 2 are what fits at head_dim 128")
TURNS = Parameter(
    "taking_turns", (False, True), "one consumer's exponentials beside the other's products: 1 to 2% at 4096, nothing at 16384"
)
HELD = Parameter("queries_held", (False, True), "queries in registers, 32 a thread at head_dim 128: scores read a third less shared memory")
GROUP_MB = Parameter("group_mb", (8, 16, 32), "megabytes of keys and values that are worked on together, of the 50 in L2")


def slices_kept(config: Config) -> int:
    """Slices of the result that a warpgroup has in shared memory: all four of 256 columns leave no room for a fourth stage."""
    return 4 if config["block_n"] == 256 and int(config["stages"]) <= 3 else 2


def _matmul_shared(config: Config, workload: Workload) -> bool:
    columns = int(config["block_n"])
    result = 128 * PART * slices_kept(config) * 2 if workload.dim("n") % 8 == 0 else 0
    return int(config["stages"]) * (128 + columns) * 64 * 2 + result + BARRIERS <= SHARED


def _matmul_default(workload: Workload) -> Config:
    """256 columns where that leaves a tile for each multiprocessor of an H200."""
    wide = -(-workload.dim("m") // 128) * -(-workload.dim("n") // 256) >= 132
    return {"block_n": 256, "stages": 3} if wide else {"block_n": 128, "stages": 5}


def query_places(config: Config, workload: Workload) -> int:
    """Tiles of queries in shared memory: 2, so that the next one's are there, where there is room."""
    return 2 if _attention_bytes(config, workload, 2) <= SHARED else 1


def _attention_bytes(config: Config, workload: Workload, query_places: int) -> int:
    rows = (query_places + 1) * 64 * int(config["consumers"]) + 2 * 128 * int(config["stages"])
    return rows * workload.dim("head_dim") * 2 + BARRIERS


def _attention_shared(config: Config, workload: Workload) -> bool:
    return _attention_bytes(config, workload, 1) <= SHARED


def _narrow_for_three(config: Config, workload: Workload) -> bool:
    return int(config["consumers"]) == 2 or workload.dim("head_dim") == 64


def _two_in_turn(config: Config, workload: Workload) -> bool:
    return int(config["consumers"]) == 2 or not config["taking_turns"]


def _held_by_two(config: Config, workload: Workload) -> bool:
    return int(config["consumers"]) == 2 or not config["queries_held"]


def _attention_default(workload: Workload) -> Config:
    """What ran fastest on an H200; turns where rows are not so long that they fall into step by themselves."""
    stages = 2 if workload.dim("head_dim") == 128 else 4
    return {"consumers": 2, "stages": stages, "taking_turns": workload.dim("kv_len") <= 8192, "queries_held": True, "group_mb": 16}


def rows_for_descriptors(workload: Workload) -> Answer:
    """Matrices of two dimensions: a with contiguous rows, b with contiguous rows or columns, 16 bytes from each other."""
    for name in "ab":
        spec = workload[name]
        if len(spec.shape) != 2:
            return no(f"{name} has leading dimensions that can't be seen as rows")
        found = lines(spec)
        if found is None or (name == "a" and found.turned):
            return no(f"no descriptor takes {name} with strides {spec.strides}: rows must be contiguous and start at multiples of 16 bytes")
    residual = workload["residual"] if workload.has("residual") else None
    return YES if residual is None or len(residual.shape) == 2 else no("residual has leading dimensions that can't be seen as rows")


def heads_for_descriptors(workload: Workload) -> Answer:
    """Sequences, heads and tokens at multiples of 16 bytes, and no broadcast ones."""
    if workload.dim("head_dim") not in (64, 128):
        return no(f"head_dim is {workload.dim('head_dim')}, it has code for 64 and 128")
    for name in "qkv":
        spec = workload[name]
        if not spec.aligned or any(not _usable(size, stride) for size, stride in zip(spec.shape[:3], spec.strides[:3], strict=True)):
            return no(f"no descriptor takes {name} with strides {spec.strides}: they and the address must be multiples of 16 bytes above 0")
    tiles = workload.dim("batch") * workload.dim("q_heads") * -(-workload.dim("q_len") // 128)
    return YES if tiles <= MOST_TILES else no(f"{tiles} tiles of 128 queries, the most planned ahead are {MOST_TILES}")


def _usable(size: int, stride: int) -> bool:
    return size <= 1 or (stride > 0 and stride % 8 == 0)


KERNELS = (
    Kernel(
        "gluon.specialized", "matmul", "gluon", "a warp that copies by TMA, two warpgroups that multiply, persistent",
        "kernelyard.plugins.gluon_ws.matmul:specialized",
        Support(
            ("cuda",), HALVES, most={"batch": 1, "m": FOUR, "n": FOUR, "k": FOUR}, least={"batch": 1, "m": 1, "n": 1, "k": 1},
            unit_last_stride=False, predicates=(rows_for_descriptors,),
        ),
        ConfigSpace(
            (BLOCK_N, STAGES_MATMUL),
            (Constraint(_matmul_shared, "the pieces on their way and the result pass 227 KiB of shared memory"),),
            _matmul_default,
        ),
        files=("copies.py",), fallbacks=("triton.persistent", "triton.tile"), priority=-7, determinism=Determinism.RUN_TO_RUN,
    ),
    Kernel(
        "gluon.specialized", "attention", "gluon", "a warp that copies by TMA, two or three warpgroups of 64 queries, planned order",
        "kernelyard.plugins.gluon_ws.attention:specialized",
        Support(
            ("cuda",), HALVES, most={"q_len": 1 << 30, "kv_len": 1 << 30}, least={"batch": 1, "q_heads": 1, "kv_heads": 1, "q_len": 1},
            predicates=(heads_for_descriptors,),
        ),
        ConfigSpace(
            (CONSUMERS, STAGES_ATTENTION, TURNS, HELD, GROUP_MB),
            (
                Constraint(_attention_shared, "queries, results, keys and values on their way pass 227 KiB of shared memory"),
                Constraint(_narrow_for_three, "three warpgroups have no registers for results of 128 columns"),
                Constraint(_two_in_turn, "turns are taken by two"),
                Constraint(_held_by_two, "three warpgroups have no registers for queries"),
            ),
            _attention_default,
        ),
        files=("copies.py", "order.py", "pairs.py"), fallbacks=("triton.twoloop",), priority=9, determinism=Determinism.RUN_TO_RUN,
        # us of it and of triton.twoloop: 477 and 742 at 4096 causal, 84 and 110 at 1024, 26.4 and 28.2 at 256, 6.8 and 4.8 at 65 (H200).
        priority_where=((Support(("cuda",), HALVES, least={"q_len": 192}), 20),),
    ),
)  # fmt: skip
