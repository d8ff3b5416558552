"""attention in Gluon, warp-specialised for Hopper: one warp copies, two or three warpgroups of 64 queries each multiply and exponentiate.

A program for each multiprocessor takes the tiles that `order` gives it: heads in groups whose keys and values fit in L2, longest rows
first. For each tile the producer asks TMA for the queries, then for blocks of 128 keys and values, last block first, `stages` ahead. A
consumer multiplies its queries with the next block of keys while the values of this one are multiplied by weights in registers, and with
`taking_turns` the consumers alternate: one's exponentials run beside the other's products. Only blocks that the diagonal or the last
key cuts are masked, and they come first. TMA gives zeros for what does not exist and drops rows that do not.

Every tile has a block at least, one without a key to see too: all sides count the same blocks, and what is masked away adds nothing. A
query that saw no key is 0, whatever the values are.

Barriers: a pair for each place of queries, and for each stage of keys and of values; block i uses stage i mod stages, counted over all
of a program's tiles by each side alike. A consumer waits for `mine`, which the other one
arrives at when it has issued its products.

Scores are scaled into powers of two; the largest score of a row is the largest product times the scale, whose sign, where it is negative,
the queries take, so the scale costs no instruction of its own. For sm_90 by Triton 3.6 a thread has 477 instructions for 128 keys that
all count, at head_dim 128 (66 exponentials, 68 maxima, 66 FFMA, 68 FADD, 66 FMUL, 32 conversions, 16 wgmma), and 615 where some are
masked; before weights were carried in pairs it was 542 and 873, and exponentials waited for the values' product.

4 b h q kv d flops, half when causal; bytes: q, out, and k and v once for each group of heads. Bound: the tensor cores, with exponentials
close behind at head_dim 64. H200 at its power cap, us, this and FlashAttention-4 in one run: 2x32x8 heads of 4096 causal 475 and 499,
2x32x32 493 and 495, not causal 901 and 869, 1x32x8 of 16384 3583 and 3526, head_dim 64 336 and 328, 4x32x8 of 1024 77.3 and 87.7, 8x32x8
of 256 20.1 and 27.2. `queries_held` gained 0.5 to 4.5% and three consumers at head_dim 64 as much as it; `taking_turns` 2% at 4096, -1 to
2% at 16384; groups of 8 or 32 MB of keys nothing; blocks of 64 keys lost 10%. Where there is room the next tile's queries are on their
way while this one's are in use.

Sources: Shah et al., "FlashAttention-3" (2024); Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

# A Gluon function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from kernelyard.plugins.gluon_ws.copies import async_load, async_store
from kernelyard.plugins.gluon_ws.kernels import query_places
from kernelyard.plugins.gluon_ws.order import planned
from kernelyard.plugins.gluon_ws.pairs import paired, unpaired
from kernelyard.plugins.triton_jit.launch import sm_count
from kernelyard.registry.backend import Descriptor, TritonLaunch
from kernelyard.registry.spec import Config, TensorSpec, Workload

ROWS = 64
"""Queries of a consumer: what one wgmma has."""
BN = 128
LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453
LEAST_SCALE = 1e-30
"""Stands for a scale of 0, by which masked scores could not be multiplied."""


@gluon.jit
def blocks_of(row, q_len, kv_len, BM: gl.constexpr, BN: gl.constexpr, CAUSAL: gl.constexpr):
    """Blocks of keys that a tile of queries from `row` on sees; 1 where there is none."""
    last = kv_len
    if CAUSAL:
        last = gl.minimum(row + BM + kv_len - q_len, kv_len)
    return gl.maximum(gl.cdiv(last, BN), 1)


@gluon.jit
def produce(
    q_desc, k_desc, v_desc, q_tiles, k_blocks, v_blocks, q_full, q_empty, k_full, k_empty, v_full, v_empty, order, starts,
    q_heads, q_len, kv_len,
    SHARING: gl.constexpr, DIM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr, CAUSAL: gl.constexpr,
    Q_PLACES: gl.constexpr,
):  # fmt: skip
    """One warp: queries of every tile, and its blocks of keys and values, each as soon as its place is free."""
    BM: gl.constexpr = CONSUMERS * 64
    tiles = gl.cdiv(q_len, BM)
    block = 0
    count = 0
    for place in range(gl.load(starts + gl.program_id(0)), gl.load(starts + gl.program_id(0) + 1)):
        tile = gl.load(order + place)
        row, batch, head = tile % tiles * BM, tile // tiles // q_heads, tile // tiles % q_heads
        which, turned = count % Q_PLACES, (count // Q_PLACES) & 1
        mbarrier.wait(q_empty.index(which), turned ^ 1)
        mbarrier.expect(q_full.index(which), BM * DIM * 2)
        for w in gl.static_range(CONSUMERS):
            async_load(q_desc, [batch, head, row + w * 64, 0], q_full.index(which), q_tiles.index(which * CONSUMERS + w))
        blocks = blocks_of(row, q_len, kv_len, BM, BN, CAUSAL)
        for i in range(blocks):
            stage = block % STAGES
            phase = ((block // STAGES) & 1) ^ 1
            at = (blocks - 1 - i) * BN
            mbarrier.wait(k_empty.index(stage), phase)
            mbarrier.expect(k_full.index(stage), BN * DIM * 2)
            async_load(k_desc, [batch, head // SHARING, at, 0], k_full.index(stage), k_blocks.index(stage))
            mbarrier.wait(v_empty.index(stage), phase)
            mbarrier.expect(v_full.index(stage), BN * DIM * 2)
            async_load(v_desc, [batch, head // SHARING, at, 0], v_full.index(stage), v_blocks.index(stage))
            block += 1
        count += 1  # noqa: SIM113  # Gluon has no enumerate


@gluon.jit
def last_seen(row, at, ahead, kv_len, CAUSAL: gl.constexpr, SCORES: gl.constexpr):
    """Of each query from `row` on the last key that it sees, counted from `at`."""
    last = gl.full((64,), 0, gl.int32, layout=gl.SliceLayout(1, SCORES)) + (kv_len - 1)
    if CAUSAL:
        query = row + gl.arange(0, 64, layout=gl.SliceLayout(1, SCORES))
        last = gl.minimum(last, query + ahead)
    return last - at


@gluon.jit
def masked(scores, last, BN: gl.constexpr, SCORES: gl.constexpr):
    """Scores of keys that do not exist, or that their query may not see, become -inf.

    `last` goes through the wait for the scores: what is compared before them has no registers to wait in, and is packed into bits.
    A lane of four holds every fourth pair of keys, so bits 1 and 2 of a key are the lane's: beside `last` they leave a constant to compare.
    """
    key = gl.arange(0, BN, layout=gl.SliceLayout(0, SCORES))
    return gl.where((key & -7)[None, :] <= last[:, None] - (key & 6)[None, :], scores, float("-inf"))


@gluon.jit
def negated(tile, OUT: gl.constexpr):
    """Where the scale is negative, queries change sign instead, once a tile: the largest score is then the largest product times it."""
    tile.store(-tile.load(OUT))
    fence_async_shared()


@gluon.jit
def step(
    q, k_blocks, v_blocks, k_full, k_empty, v_full, v_empty, mine, others, acc, words, largest, total, scale,
    block, turns, more, row, at, ahead, kv_len,
    MASKED: gl.constexpr, WHO: gl.constexpr, DIM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, TAKING_TURNS: gl.constexpr,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    """Scores of block number `block`, whose keys begin at `at`, beside the product of the weights and values of the one before.

    Its keys were waited for by the step before, and the next ones are here where there are `more`: that wait, a loop, keeps ptxas from
    moving the wait for the product of the values before the exponentials. Weights are rounded after it: they go where that product's lie,
    and ptxas lets no products overlap where such a register is written under way (its C7513).
    """
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=OUT, k_width=2)
    stage, after = block % STAGES, (block + 1) % STAGES
    before, phase_before = (block - 1) % STAGES, ((block - 1) // STAGES) & 1
    weights = unpaired(words, k_blocks.dtype, WEIGHTS)
    if TAKING_TURNS:
        mbarrier.wait(mine, (turns & 1) ^ (1 - WHO))
    keys = k_blocks.index(stage).reshape((BN, DIM)).permute((1, 0))
    zeros = gl.zeros((64, BN), gl.float32, layout=SCORES)
    products = warpgroup_mma(q, keys, zeros, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(before), phase_before)
    summed = warpgroup_mma(weights, v_blocks.index(before).reshape((BN, DIM)), acc, is_async=True)
    if TAKING_TURNS:
        mbarrier.arrive(others, count=1)
    if MASKED:
        scores, last = warpgroup_mma_wait(1, deps=(products, last_seen(row, at, ahead, kv_len, CAUSAL, SCORES)))
        scores = masked(scores, last, BN, SCORES)
    else:
        scores = warpgroup_mma_wait(1, deps=(products,))
    mbarrier.arrive(k_empty.index(stage), count=1)
    now = gl.maximum(largest, gl.max(scores, 1) * scale)
    base = now
    if MASKED:
        base = gl.where(now == float("-inf"), 0.0, now)  # a row that has seen no key yet
    shrunk = gl.exp2(largest - base)
    parts = gl.exp2(scores * scale - base[:, None])
    total = total * shrunk + gl.sum(parts, 1)
    mbarrier.wait(k_full.index(after), ((block + 1) // STAGES) & 1, pred=more)
    acc = warpgroup_mma_wait(0, deps=(summed, weights))[0]
    mbarrier.arrive(v_empty.index(before), count=1)
    acc = acc * gl.convert_layout(shrunk, gl.SliceLayout(1, OUT))[:, None]
    return acc, paired(parts, k_blocks.dtype), now, total


@gluon.jit
def consume(
    out_desc, lse_ptr, q_tiles, k_blocks, v_blocks, out_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty, mine, others,
    order, starts, scale, q_heads, q_len, kv_len,
    WHO: gl.constexpr, DIM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr, TAKING_TURNS: gl.constexpr,
    CAUSAL: gl.constexpr, LSE: gl.constexpr, LN_2: gl.constexpr, Q_PLACES: gl.constexpr,
    QUERIES_HELD: gl.constexpr,
):  # fmt: skip
    """One warpgroup: 64 queries of every tile."""
    BM: gl.constexpr = CONSUMERS * 64
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=OUT, k_width=2)
    tiles, ahead = gl.cdiv(q_len, BM), kv_len - q_len
    size = gl.maximum(scale, -scale)
    block = 0
    count = 0
    turns = 0
    for place in range(gl.load(starts + gl.program_id(0)), gl.load(starts + gl.program_id(0) + 1)):
        tile = gl.load(order + place)
        first, batch, head = tile % tiles * BM, tile // tiles // q_heads, tile // tiles % q_heads
        row = first + WHO * 64
        blocks = blocks_of(first, q_len, kv_len, BM, BN, CAUSAL)
        free = kv_len // BN
        if CAUSAL:
            free = gl.maximum(gl.minimum(row + 1 + ahead, kv_len), 0) // BN
        which = count % Q_PLACES
        q = q_tiles.index(which * CONSUMERS + WHO).reshape((64, DIM))
        mbarrier.wait(q_full.index(which), (count // Q_PLACES) & 1)
        if scale < 0.0:
            negated(q, OUT)
        if QUERIES_HELD:
            q = q.load(gl.DotOperandLayout(operand_index=0, parent=SCORES, k_width=2))
        stage = block % STAGES
        mbarrier.wait(k_full.index(stage), (block // STAGES) & 1)
        keys = k_blocks.index(stage).reshape((BN, DIM)).permute((1, 0))
        zeros = gl.zeros((64, BN), gl.float32, layout=SCORES)
        products = warpgroup_mma(q, keys, zeros, use_acc=False, is_async=True)
        scores, last = warpgroup_mma_wait(0, deps=(products, last_seen(row, (blocks - 1) * BN, ahead, kv_len, CAUSAL, SCORES)))
        mbarrier.arrive(k_empty.index(stage), count=1)
        scores = masked(scores, last, BN, SCORES)
        largest = gl.max(scores, 1) * size
        parts = gl.exp2(scores * size - gl.where(largest == float("-inf"), 0.0, largest)[:, None])
        total = gl.sum(parts, 1)
        words = paired(parts, k_blocks.dtype)
        mbarrier.wait(k_full.index((block + 1) % STAGES), ((block + 1) // STAGES) & 1, pred=blocks > 1)
        acc = gl.zeros((64, DIM), gl.float32, layout=OUT)
        cut = gl.minimum(gl.maximum(blocks - free, 1), blocks)  # the first of all, and those up to the last that is not whole
        for i in range(1, cut):
            acc, words, largest, total = step(
                q, k_blocks, v_blocks, k_full, k_empty, v_full, v_empty, mine, others, acc, words, largest, total, size,
                block + i, turns + i - 1, i + 1 < blocks, row, (blocks - 1 - i) * BN, ahead, kv_len,
                True, WHO, DIM, BN, STAGES, TAKING_TURNS, CAUSAL,
            )  # fmt: skip
        for i in range(cut, blocks):
            acc, words, largest, total = step(
                q, k_blocks, v_blocks, k_full, k_empty, v_full, v_empty, mine, others, acc, words, largest, total, size,
                block + i, turns + i - 1, i + 1 < blocks, row, (blocks - 1 - i) * BN, ahead, kv_len,
                False, WHO, DIM, BN, STAGES, TAKING_TURNS, CAUSAL,
            )  # fmt: skip
        mbarrier.arrive(q_empty.index(which), count=1)
        block += blocks
        turns += blocks - 1
        count += 1  # noqa: SIM113  # Gluon has no enumerate
        stage = (block - 1) % STAGES
        mbarrier.wait(v_full.index(stage), ((block - 1) // STAGES) & 1)
        weights = unpaired(words, k_blocks.dtype, WEIGHTS)
        summed = warpgroup_mma(weights, v_blocks.index(stage).reshape((BN, DIM)), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(summed, weights))[0]
        mbarrier.arrive(v_empty.index(stage), count=1)
        sums = gl.convert_layout(total, gl.SliceLayout(1, OUT))
        acc = gl.where((sums == 0.0)[:, None], 0.0, acc * (1.0 / sums)[:, None])
        tma.store_wait(0)
        out_tiles.index(WHO).reshape((64, DIM)).store(acc.to(k_blocks.dtype))
        fence_async_shared()
        async_store(out_desc, [batch, head, row, 0], out_tiles.index(WHO))
        if LSE:
            query = row + gl.arange(0, 64, layout=gl.SliceLayout(1, SCORES))
            lse = gl.where(total == 0.0, float("-inf"), (largest + gl.log2(total)) * LN_2)
            gl.store(lse_ptr + (batch * q_heads + head).to(gl.int64) * q_len + query, lse, mask=query < q_len)
    tma.store_wait(0)


@gluon.jit
def specialized_kernel(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, order, starts, scale, q_heads, q_len, kv_len,
    SHARING: gl.constexpr, DIM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr,
    TAKING_TURNS: gl.constexpr, CAUSAL: gl.constexpr, LSE: gl.constexpr, LN_2: gl.constexpr, Q_PLACES: gl.constexpr,
    QUERIES_HELD: gl.constexpr,
):  # fmt: skip
    """Shared memory, barriers, and three or four parts."""
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [Q_PLACES * CONSUMERS, 1, 1, 64, DIM], q_desc.layout)
    out_tiles = gl.allocate_shared_memory(q_desc.dtype, [CONSUMERS, 1, 1, 64, DIM], out_desc.layout)
    k_blocks = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, BN, DIM], k_desc.layout)
    v_blocks = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, BN, DIM], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [Q_PLACES, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [Q_PLACES, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    first_turn = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    second_turn = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(Q_PLACES):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=CONSUMERS)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=CONSUMERS)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=CONSUMERS)
    mbarrier.init(first_turn, count=1)
    mbarrier.init(second_turn, count=1)
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consume, (out_desc, lse_ptr, q_tiles, k_blocks, v_blocks, out_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                       first_turn, second_turn, order, starts, scale, q_heads, q_len, kv_len,
                       0, DIM, BN, STAGES, CONSUMERS, TAKING_TURNS, CAUSAL, LSE, LN_2, Q_PLACES, QUERIES_HELD)),
            (consume, (out_desc, lse_ptr, q_tiles, k_blocks, v_blocks, out_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                       second_turn, first_turn, order, starts, scale, q_heads, q_len, kv_len,
                       1, DIM, BN, STAGES, CONSUMERS, TAKING_TURNS, CAUSAL, LSE, LN_2, Q_PLACES, QUERIES_HELD)),
            (produce, (q_desc, k_desc, v_desc, q_tiles, k_blocks, v_blocks, q_full, q_empty, k_full, k_empty, v_full, v_empty, order,
                       starts, q_heads, q_len, kv_len, SHARING, DIM, BN, STAGES, CONSUMERS, CAUSAL, Q_PLACES)),
        ], [4, 1], [240, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (out_desc, lse_ptr, q_tiles, k_blocks, v_blocks, out_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                       first_turn, second_turn, order, starts, scale, q_heads, q_len, kv_len,
                       0, DIM, BN, STAGES, CONSUMERS, False, CAUSAL, LSE, LN_2, Q_PLACES, QUERIES_HELD)),
            (consume, (out_desc, lse_ptr, q_tiles, k_blocks, v_blocks, out_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                       second_turn, first_turn, order, starts, scale, q_heads, q_len, kv_len,
                       1, DIM, BN, STAGES, CONSUMERS, False, CAUSAL, LSE, LN_2, Q_PLACES, QUERIES_HELD)),
            (consume, (out_desc, lse_ptr, q_tiles, k_blocks, v_blocks, out_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                       first_turn, second_turn, order, starts, scale, q_heads, q_len, kv_len,
                       2, DIM, BN, STAGES, CONSUMERS, False, CAUSAL, LSE, LN_2, Q_PLACES, QUERIES_HELD)),
            (produce, (q_desc, k_desc, v_desc, q_tiles, k_blocks, v_blocks, q_full, q_empty, k_full, k_empty, v_full, v_empty, order,
                       starts, q_heads, q_len, kv_len, SHARING, DIM, BN, STAGES, CONSUMERS, CAUSAL, Q_PLACES)),
        ], [4, 4, 1], [160, 160, 32])  # fmt: skip


def specialized(workload: Workload, config: Config) -> TritonLaunch:
    """One launch; the tiles of each program are listed on the device, once for a workload and device."""
    batch, q_heads, kv_heads, q_len, kv_len, dim = (size for _, size in workload.dims)
    causal, consumers = bool(workload.static("causal")), int(config["consumers"])
    programs = min(sm_count(workload), batch * q_heads * -(-q_len // (consumers * ROWS)))
    order, starts = planned(workload, consumers * ROWS, BN, programs, int(config["group_mb"]) << 20)
    lists: dict[torch.device, tuple[Tensor, Tensor]] = {}
    specs = {name: workload[name if kv_len else "q"] for name in "qkv"}

    def on(device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in lists:
            lists[device] = tuple(torch.tensor(told, dtype=torch.int32, device=device) for told in (order, starts))  # type: ignore[assignment]
        return lists[device]

    if workload.device == "cuda" and torch.cuda.is_available():
        on(torch.device("cuda", torch.cuda.current_device()))

    def arguments(
        outputs: tuple[Tensor, ...], q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool
    ) -> tuple[Any, ...]:
        factor = (dim**-0.5 if scale is None else scale) * LOG2_E or LEAST_SCALE
        if not kv_len:
            k = v = q  # a descriptor needs an address, and what it reads is masked
        return (
            _described(q, specs["q"], ROWS), _described(k, specs["k"], BN), _described(v, specs["v"], BN),
            _described(outputs[0], TensorSpec(tuple(q.shape), workload.dtype), ROWS), outputs[1], *on(q.device),
            factor, q_heads, q_len, kv_len,
        )  # fmt: skip

    constants = {
        "SHARING": q_heads // max(kv_heads, 1), "DIM": dim, "BN": BN, "STAGES": int(config["stages"]), "CONSUMERS": consumers,
        "TAKING_TURNS": bool(config["taking_turns"]), "CAUSAL": causal, "LSE": bool(workload.static("return_lse")), "LN_2": LN_2,
        "Q_PLACES": query_places(config, workload), "QUERIES_HELD": bool(config["queries_held"]),
    }  # fmt: skip
    return TritonLaunch(specialized_kernel, (len(starts) - 1, 1, 1), arguments, constants, num_warps=4)


def _described(tensor: Tensor, spec: TensorSpec, rows: int) -> Descriptor:
    """Of a dimension of one, whose stride says nothing, a stride that a descriptor may have."""
    dim = spec.shape[-1]
    strides = tuple(stride if size > 1 else dim for size, stride in zip(spec.shape[:3], spec.strides[:3], strict=True))
    return Descriptor(tensor, spec.shape, (*strides, 1), (1, 1, rows, dim))
