"""The Triton kernel of rope_attention_decode as data: what it supports, what of it is tuned and why."""

from __future__ import annotations

from kernelyard.plugins.triton_jit.attention_decode_views import MANY_TASKS, MULTIPROCESSORS, SHARED
from kernelyard.plugins.triton_jit.norms import OVERLAP
from kernelyard.plugins.triton_jit.rows import DTYPES
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import DTYPE_BYTES, YES, Answer, Config, Determinism, Workload, no

MOST_GROUP = 64
"""Query heads that share one of k: rows of a program, whose values stay in registers."""
MERGED_A_THREAD = 32
"""Float32 values of parts that a thread holds at once in the merge: all of its loads are then on their way together."""


def group_of(workload: Workload) -> int:
    """Query heads that share one of k and v."""
    return workload.dim("q_heads") // max(workload.dim("kv_heads"), 1)


def rows_of(workload: Workload) -> int:
    """Rows of a program: a power of two, 16 at least."""
    return max(1 << max(group_of(workload) - 1, 0).bit_length(), 16)


def _head(workload: Workload) -> int:
    """Columns of a program."""
    return 2 * max(1 << max(workload.dim("head_dim") // 2 - 1, 0).bit_length(), 16)


def columns_at_once(config: Config, workload: Workload) -> int:
    """Columns of all parts of a group that the merging program holds."""
    group = 1 << max(group_of(workload) - 1, 0).bit_length()
    most = MERGED_A_THREAD * 32 * int(config["num_warps"]) // (group * int(config["parts"]))
    return max(min(1 << max(most, 1).bit_length() - 1, _head(workload)), 1)


def _fits_shared(config: Config, workload: Workload) -> bool:
    tokens = 2 * int(config["tokens"]) * int(config["num_stages"]) + rows_of(workload)
    return tokens * _head(workload) * DTYPE_BYTES[workload.dtype] <= SHARED


def _parts_exist(config: Config, workload: Workload) -> bool:
    return config["parts"] == 1 or int(config["parts"]) * int(config["tokens"]) < 2 * workload.dim("capacity")


def _merges_wide(config: Config, workload: Workload) -> bool:
    return config["parts"] == 1 or columns_at_once(config, workload) >= 16


def _values_held(config: Config, workload: Workload) -> bool:
    return rows_of(workload) * _head(workload) <= 128 * 32 * int(config["num_warps"])


def _default(workload: Workload) -> Config:
    """As many parts as make two programs a multiprocessor, at most 32: what a step of 1B liked best; 8 each where KV heads are many.

    Short caches in shorter tiles, as latency is all they cost.
    """
    bytes_a_token = _head(workload) * DTYPE_BYTES[workload.dtype]
    short = workload.dim("capacity") <= 512
    tokens = 64 if bytes_a_token <= 256 and not short else 32 if bytes_a_token <= 512 else 16
    tasks = max(workload.dim("batch") * workload.dim("kv_heads"), 1)
    most = max((4 if tasks >= MANY_TASKS else 1) * 2 * MULTIPROCESSORS // tasks, 1)
    config: Config = {"tokens": tokens, "parts": 1, "num_warps": 4, "num_stages": 3, "hint": "none", "overlap": True}
    choices: list[Config] = [{**config, "parts": parts} for parts in (32, 16, 8, 4, 2) if parts <= most]
    fits = (choice for choice in choices if _parts_exist(choice, workload) and _merges_wide(choice, workload))
    return next(fits, config)


def _hints(workload: Workload) -> tuple[Config, ...]:
    """Twice and half as many parts; shorter tiles, of which more parts have one."""
    default = SPACE.default_for(workload)
    parts, tokens = int(default["parts"]), int(default["tokens"])
    near = ({"parts": 2 * parts}, {"parts": max(parts // 2, 1)}, {"tokens": max(tokens // 2, 16), "parts": min(2 * parts, 64)})
    configs = [{**default, **change} for change in near]
    return tuple(config for config in configs if config != default and SPACE.allows(config, workload))


SPACE = ConfigSpace(
    (
        Parameter("tokens", (16, 32, 64, 128), "of a part at a time: with the stages, 20 KB and more in flight a multiprocessor"),
        Parameter("parts", (1, 2, 4, 8, 16, 32, 64), "of a sequence: 16 and more fill a GPU for 8 KV heads; each is a share of the merge"),
        Parameter("num_warps", (2, 4, 8), "16 query rows are one warp's product, so warps divide tokens, then columns; all merge"),
        Parameter("num_stages", (2, 3, 4, 5), "tiles on their way while one is used, as many as shared memory holds"),
        Parameter("hint", ("none", "load"), "whether keys and values, which are read once a step, may push others out of L2"),
        OVERLAP,
    ),
    (
        Constraint(_fits_shared, "the tiles on their way pass 227 KiB of shared memory"),
        Constraint(_parts_exist, "over half of the parts would have no token"),
        Constraint(_merges_wide, "fewer than 16 columns of all parts fit into the merging program's registers"),
        Constraint(_values_held, "a thread would hold over 128 values"),
    ),
    _default,
    _hints,
)


def contiguous_rows(workload: Workload) -> Answer:
    """Cosines and sines without gaps inside of a position; a group that registers hold."""
    for name in ("cos", "sin"):
        if workload[name].shape[1] > 1 and workload[name].strides[1] != 1:
            return no(f"rows of {name} must be contiguous, their stride is {workload[name].strides[1]}")
    group = group_of(workload)
    return YES if group <= MOST_GROUP else no(f"{group} query heads share one of k, the most is {MOST_GROUP}")


KERNELS = (
    Kernel(
        name="triton.split",
        op="rope_attention_decode",
        backend="triton",
        summary="split-KV with rope and the cache's new token, merged by the last part to finish",
        entry="kernelyard.plugins.triton_jit.rope_attention_decode:split",
        support=Support(("cuda",), DTYPES, most={"head_dim": 256}, least={"batch": 1, "capacity": 1}, predicates=(contiguous_rows,)),
        space=SPACE,
        files=("rope_attention_decode_space.py", "attention_decode.py", "attention_decode_views.py", "overlap.py", "counters.py"),
        fallbacks=("torch.composed",),
        priority=15,
        determinism=Determinism.RUN_TO_RUN,
    ),
)
