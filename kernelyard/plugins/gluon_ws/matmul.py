"""matmul in Gluon, warp-specialised for Hopper: one warp copies, two warpgroups multiply.

A program for each multiprocessor takes tiles of 128 rows in a static order: groups of 8 rows of tiles, so that those at work together share
tiles of b in L2. Its producer warp asks TMA for `stages` pieces of 64 terms ahead; each consumer warpgroup multiplies 64 of the rows
(wgmma, m64 n`block_n` k16, float32 sums in registers) and ends them there, 64 columns at a time: bias, activation, scale, residual, one
rounding, and a TMA store that runs beside what follows. All columns at once spill: gelu took 2.2 ms where silu took 1.3 (H200, 8192 by
14336 by 4096), in slices 2.09 by erf, the product alone 1.45: while both consumers end a tile nothing multiplies. TMA gives zeros beyond
a's and b's ends and drops what lies beyond the result's, so any m, n and k will do whose rows start at multiples of 16 bytes; a result
whose rows do not is stored by pointers.

Barriers: `full[s]` flips when the piece's bytes are there, `empty[s]` when both consumers have read it. Piece i uses stage i mod stages,
counted over all of a program's tiles by each side alike; k >= 1, so that each tile has a piece.

Bytes: each tile of a is read n / block_n times and b m / 128 times, from L2 mostly; 2 m n k flops. Bound: the tensor cores.
Source: Triton's Gluon tutorials on wgmma, persistence and warp specialisation; pranjalssh's fast.cu.
"""

# A Gluon function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from kernelyard.plugins.gluon_ws.copies import async_load, async_store
from kernelyard.plugins.gluon_ws.kernels import PART, slices_kept
from kernelyard.plugins.triton_jit.launch import sm_count
from kernelyard.plugins.triton_jit.lines import Lines, lines
from kernelyard.registry.backend import Descriptor, TritonLaunch
from kernelyard.registry.spec import Config, TensorSpec, Workload

BM = 128
"""Rows of a tile: 64 for each consumer, what one wgmma has."""
BK = 64
"""Terms of a piece: 128 bytes, what the widest swizzle covers."""
GROUP = 8
UNIT = 8
"""Elements in 16 bytes."""


@gluon.jit
def place(tile, m, n, BM: gl.constexpr, BN: gl.constexpr, GROUP: gl.constexpr):
    """First row and column of a tile in grouped order."""
    rows, columns = gl.cdiv(m, BM), gl.cdiv(n, BN)
    group = tile // (GROUP * columns)
    height = gl.minimum(rows - group * GROUP, GROUP)
    within = tile % (GROUP * columns)
    return (group * GROUP + within % height) * BM, (within // height) * BN


@gluon.jit
def produce(
    a_desc, b_desc, a_pieces, b_pieces, full, empty, m, n, k,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr, TURNED: gl.constexpr,
):  # fmt: skip
    """One warp: every piece of every tile, as soon as its stage is free."""
    piece = 0
    for tile in range(gl.program_id(0), gl.cdiv(m, BM) * gl.cdiv(n, BN), gl.num_programs(0)):
        row, column = place(tile, m, n, BM, BN, GROUP)
        for at in range(0, k, BK):
            stage = piece % STAGES
            mbarrier.wait(empty.index(stage), ((piece // STAGES) & 1) ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, (BM + BN) * BK * 2)
            async_load(a_desc, [row, at], bar, a_pieces.index(stage))
            if TURNED:
                async_load(b_desc, [column, at], bar, b_pieces.index(stage))
            else:
                async_load(b_desc, [at, column], bar, b_pieces.index(stage))
            piece += 1


@gluon.jit
def gelu(x):
    """As in Triton's products: x times the normal distribution, by 7.1.26 of Abramowitz and Stegun (1964), without branches."""
    t = 1.0 / (1.0 + 0.23164188 * gl.where(x < 0.0, -x, x))
    terms = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    tail = terms * gl.exp(-0.5 * x * x)
    return x * gl.where(x < 0.0, tail, 1.0 - tail)


@gluon.jit
def activated(x, ACTIVATION: gl.constexpr):
    """The activation of that name; see the contract of matmul."""
    if ACTIVATION == "relu":
        x = gl.where(x < 0.0, 0.0, x)  # a NaN stays
    elif ACTIVATION == "gelu":
        x = gelu(x)
    elif ACTIVATION == "gelu_tanh":
        x = x / (1.0 + gl.exp(-1.5957691216057308 * x * (1.0 + 0.044715 * x * x)))
    elif ACTIVATION == "silu":
        x = x / (1.0 + gl.exp(-x))
    return x


@gluon.jit
def consume(
    out, bias_ptr, residual_ptr, scale, a_pieces, b_pieces, ended, full, empty, m, n, k, r_row, r_column,
    HALF: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
    TURNED: gl.constexpr, ACTIVATION: gl.constexpr, BY_TMA: gl.constexpr, KEPT: gl.constexpr,
):  # fmt: skip
    """One warpgroup: 64 rows of every tile."""
    ROWS: gl.constexpr = BM // 2
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    piece = 0
    for tile in range(gl.program_id(0), gl.cdiv(m, BM) * gl.cdiv(n, BN), gl.num_programs(0)):
        row, column = place(tile, m, n, BM, BN, GROUP)
        row += HALF * ROWS
        sums = gl.zeros((ROWS, BN), gl.float32, layout=SUMS)
        for at in range(0, k, BK):
            stage = piece % STAGES
            mbarrier.wait(full.index(stage), (piece // STAGES) & 1)
            a = a_pieces.index(stage).slice(HALF * ROWS, ROWS, 0)
            b = b_pieces.index(stage)
            if TURNED:
                b = b.permute((1, 0))
            sums = warpgroup_mma(a, b, sums, use_acc=at > 0, is_async=True)
            sums = warpgroup_mma_wait(1, deps=(sums,))
            if at > 0:
                mbarrier.arrive(empty.index((piece - 1) % STAGES), count=1)
            piece += 1
        sums = warpgroup_mma_wait(0, deps=(sums,))
        mbarrier.arrive(empty.index((piece - 1) % STAGES), count=1)
        if BN == 256:
            left, right = halves(sums, ROWS, 256)
            leave_two(
                left, out, bias_ptr, residual_ptr, scale, ended, row, column, m, n, r_row, r_column,
                HALF, 0, ROWS, KEPT, ACTIVATION, BY_TMA,
            )  # fmt: skip
            column += 128
            leave_two(
                right, out, bias_ptr, residual_ptr, scale, ended, row, column, m, n, r_row, r_column,
                HALF, 2, ROWS, KEPT, ACTIVATION, BY_TMA,
            )  # fmt: skip
        else:
            leave_two(
                sums, out, bias_ptr, residual_ptr, scale, ended, row, column, m, n, r_row, r_column,
                HALF, 0, ROWS, KEPT, ACTIVATION, BY_TMA,
            )  # fmt: skip
    if BY_TMA:
        tma.store_wait(0)


@gluon.jit
def halves(sums, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """The left half of the columns and the right one: of each thread's registers these and those."""
    return gl.split(sums.reshape((ROWS, 2, COLUMNS // 2)).permute((0, 2, 1)))


@gluon.jit
def leave_two(
    sums, out, bias_ptr, residual_ptr, scale, ended, row, column, m, n, r_row, r_column,
    HALF: gl.constexpr, SLICE: gl.constexpr, ROWS: gl.constexpr, KEPT: gl.constexpr, ACTIVATION: gl.constexpr, BY_TMA: gl.constexpr,
):  # fmt: skip
    """128 columns, one half after the other."""
    left, right = halves(sums, ROWS, 128)
    leave(
        left, out, bias_ptr, residual_ptr, scale, ended, row, column, m, n, r_row, r_column,
        HALF, SLICE, ROWS, KEPT, ACTIVATION, BY_TMA,
    )  # fmt: skip
    column += 64
    leave(
        right, out, bias_ptr, residual_ptr, scale, ended, row, column, m, n, r_row, r_column,
        HALF, SLICE + 1, ROWS, KEPT, ACTIVATION, BY_TMA,
    )  # fmt: skip


@gluon.jit
def leave(
    sums, out, bias_ptr, residual_ptr, scale, ended, row, column, m, n, r_row, r_column,
    HALF: gl.constexpr, SLICE: gl.constexpr, ROWS: gl.constexpr, KEPT: gl.constexpr, ACTIVATION: gl.constexpr, BY_TMA: gl.constexpr,
):  # fmt: skip
    """What follows the product of 64 columns, rounded and written from (row, column) on."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    sums = gl.convert_layout(sums, SUMS)  # the registers are where they were
    across = column + gl.arange(0, 64, layout=gl.SliceLayout(0, SUMS))
    down = row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SUMS))
    known = (down < m)[:, None] & (across < n)[None, :]
    if bias_ptr is not None:
        sums += gl.load(bias_ptr + across, mask=across < n, other=0.0).to(gl.float32)[None, :]
    sums = activated(sums, ACTIVATION) * scale
    if residual_ptr is not None:
        there = residual_ptr + (down.to(gl.int64) * r_row)[:, None] + (across.to(gl.int64) * r_column)[None, :]
        sums += gl.load(there, mask=known, other=0.0).to(gl.float32)
    if BY_TMA:
        place_of = ended.index(HALF * KEPT + SLICE % KEPT)
        tma.store_wait(KEPT - 1)  # what was there before has been read
        place_of.store(sums.to(ended.dtype))
        fence_async_shared()
        async_store(out, [row, column], place_of)
    else:
        gl.store(out + (down.to(gl.int64) * n)[:, None] + across[None, :], sums.to(ended.dtype), mask=known)


@gluon.jit
def specialized_kernel(
    a_desc, b_desc, out, bias_ptr, residual_ptr, scale, m, n, k, r_row, r_column,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
    TURNED: gl.constexpr, ACTIVATION: gl.constexpr, BY_TMA: gl.constexpr, KEPT: gl.constexpr,
):  # fmt: skip
    """Shared memory, barriers, and the three parts."""
    a_pieces = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BM, BK], a_desc.layout)
    if TURNED:
        b_pieces = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BN, BK], b_desc.layout)
    else:
        b_pieces = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BK, BN], b_desc.layout)
    if BY_TMA:  # noqa: SIM108  # a branch that is not compiled
        ended = gl.allocate_shared_memory(a_desc.dtype, [2 * KEPT, BM // 2, 64], out.layout)
    else:
        ended = a_pieces
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize([
        (consume, (out, bias_ptr, residual_ptr, scale, a_pieces, b_pieces, ended, full, empty, m, n, k, r_row, r_column,
                   0, BM, BN, BK, GROUP, STAGES, TURNED, ACTIVATION, BY_TMA, KEPT)),
        (consume, (out, bias_ptr, residual_ptr, scale, a_pieces, b_pieces, ended, full, empty, m, n, k, r_row, r_column,
                   1, BM, BN, BK, GROUP, STAGES, TURNED, ACTIVATION, BY_TMA, KEPT)),
        (produce, (a_desc, b_desc, a_pieces, b_pieces, full, empty, m, n, k, BM, BN, BK, GROUP, STAGES, TURNED)),
    ], [4, 1], [232, 24])  # fmt: skip


def specialized(workload: Workload, config: Config) -> TritonLaunch:
    """One launch of at most a program for each multiprocessor."""
    m, n, k = (workload.dim(name) for name in "mnk")
    a, b, block_n = _seen(workload["a"]), _seen(workload["b"]), int(config["block_n"])
    r_row, r_column = workload["residual"].strides if workload.has("residual") else (0, 0)
    by_tma = n % UNIT == 0
    constants = {
        "BM": BM, "BN": block_n, "BK": BK, "GROUP": GROUP, "STAGES": int(config["stages"]), "TURNED": b.turned,
        "ACTIVATION": workload.static("activation"), "BY_TMA": by_tma, "KEPT": slices_kept(config),
    }  # fmt: skip

    def arguments(
        outputs: tuple[Tensor, ...], x: Tensor, y: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, *names: str
    ) -> tuple[Any, ...]:
        left = Descriptor(x, (a.count, a.length), (a.pitch, 1), (BM, BK))
        right = Descriptor(y, (b.count, b.length), (b.pitch, 1), (block_n, BK) if b.turned else (BK, block_n))
        out = Descriptor(outputs[0], (m, n), (n, 1), (BM // 2, PART)) if by_tma else outputs[0]
        return left, right, out, bias, residual, scale, m, n, k, r_row, r_column

    tiles = -(-m // BM) * -(-n // block_n)
    return TritonLaunch(specialized_kernel, (min(tiles, sm_count(workload)), 1, 1), arguments, constants, num_warps=4)


def _seen(spec: TensorSpec) -> Lines:
    found = lines(spec)
    assert found is not None  # the kernel's support made sure
    return found
