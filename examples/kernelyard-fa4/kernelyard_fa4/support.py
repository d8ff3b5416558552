"""What FA4 4.0.0b36 computes on Hopper within kernelyard's contracts, and why not the rest: read off its sources and its own refusals.

Imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelyard.registry.kernel import Support
from kernelyard.registry.spec import YES, Answer, Workload, no, timed_only

DTYPES = ("bfloat16", "float16")
VECTOR = 8
"""Elements of 16 bits that its copies move at once: 16 bytes."""
MOST_HEAD_DIM = 256
"""Its own bound on Hopper; the least is one vector."""
MOST_TOKENS = 2**20
"""A round bound on lengths, far beyond what is timed."""
MOST_PROGRAMS = 65535
"""Of a grid's second and third dimension, in which heads and sequences are counted."""


def whole_vectors(workload: Workload) -> Answer:
    """Its own check."""
    head_dim = workload.dim("head_dim")
    return YES if head_dim % VECTOR == 0 else no(f"head_dim is {head_dim}, FA4 needs a multiple of {VECTOR}")


def vectors_in_place(workload: Workload) -> Answer:
    """FA4 copies a tensor whose address or strides are no multiples of 16 bytes: what was timed would be the copy too.

    Strides of 0 were not tried.
    """
    for name in "qkv":
        spec = workload[name]
        if not spec.aligned:
            return no(f"{name} must start at a multiple of 16 bytes: FA4 copies it otherwise")
        for size, stride in zip(spec.shape[:-1], spec.strides[:-1], strict=True):
            if size > 1 and (stride == 0 or stride % VECTOR):
                return no(f"the strides of {name} are {spec.strides}, needed are multiples of {VECTOR} above 0: FA4 copies others")
    return YES


def a_key_for_every_query(workload: Workload) -> Answer:
    """FA4 has a path for queries that see no key."""
    q_len, kv_len = workload.dim("q_len"), workload.dim("kv_len")
    if workload.static("causal") and q_len > kv_len:
        return no(f"causal with {q_len} queries and {kv_len} keys: some see none, which was not tried")
    return YES


def contiguous_cache(workload: Workload) -> Answer:
    """It reads the block that a table names, whatever its number, where the contract leaves out those that are none of the cache's."""
    if workload.has("block_table"):
        return no("a paged cache: FA4 reads a block outside of the cache too, where the contract leaves it out")
    return YES


def clean_past_the_length(workload: Workload) -> Answer:
    """It multiplies the values of a whole tile of keys by weights that are 0 past the length, and no workload shows what lies there."""
    return timed_only("a NaN past a length, in its last tile, reaches the result, and a length above the capacity is taken as it is")


def _support(lengths: tuple[str, ...], *predicates: Callable[[Workload], Answer]) -> Support:
    """A call without any work is refused."""
    heads = {"batch": MOST_PROGRAMS, "q_heads": MOST_PROGRAMS, "head_dim": MOST_HEAD_DIM}
    return Support(
        ("cuda",),
        DTYPES,
        most={**heads, **dict.fromkeys(lengths, MOST_TOKENS)},
        least={"batch": 1, "q_heads": 1, "head_dim": VECTOR, **dict.fromkeys(lengths, 1)},
        predicates=(whole_vectors, vectors_in_place, *predicates),
    )


ATTENTION = _support(("q_len", "kv_len"), a_key_for_every_query)
DECODE = _support(("q_len", "capacity"), contiguous_cache, clean_past_the_length)
