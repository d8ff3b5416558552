"""Tables that need no measurement: tiles over multiprocessors, and what a dtype costs by the contract."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.hopper.rows import Benches, few_rows, frozen
from benchmarks.hopper.text import joined, table
from kernelyard.registry import registry
from kernelyard.registry.matrix import Point
from kernelyard.registry.spec import DTYPE_BYTES

SMS = 132
TILES = ((128, 256), (128, 128), (64, 64))
DEPTH = 64
"""Terms of a stage: 128 bytes of a row, what the widest swizzle covers."""
EVEN = 0.9


@dataclass(frozen=True)
class Cut:
    """A result of m by n in tiles of bm by bn, one at a time on each multiprocessor, all taking the same time."""

    m: int
    n: int
    bm: int
    bn: int

    @property
    def tiles(self) -> int:
        """How many there are, whole or not."""
        return -(-self.m // self.bm) * -(-self.n // self.bn)

    @property
    def waves(self) -> float:
        """Rounds of a tile a multiprocessor."""
        return self.tiles / SMS

    @property
    def useful(self) -> float:
        """Of the tiles' area, what lies in the result: tile quantisation."""
        return self.m * self.n / (self.tiles * self.bm * self.bn)

    @property
    def busy(self) -> float:
        """Of the rounds begun, what has a tile: the wave tail."""
        return self.waves / -(-self.tiles // SMS)

    @property
    def share(self) -> float:
        """Of the tensor cores' rate, the most that this cut leaves."""
        return self.useful * self.busy


def shapes() -> list[tuple[int, int]]:
    """The results of the frozen products that have more rows than decoding has, each once."""
    return list(dict.fromkeys((work.dim("m"), work.dim("n")) for work in frozen("matmul") if not few_rows(work)))


def tiles(found: Benches) -> str:
    """What each size of tile costs on chip."""
    size = DTYPE_BYTES["bfloat16"]
    rows = [
        [f"{m}x{n}", f"{m * n / (m + n) * 2 / size:.0f}", f"{(m + n) * DEPTH * size / 1024:.0f} KiB", f"{m * n // 256}"]
        for m, n in TILES
    ]
    return table(["tile", "flops a byte loaded", f"a stage of {DEPTH} terms", "float32 sums a thread, of 256 threads"], rows)


def waves(found: Benches) -> str:
    """Each frozen result in each size of tile."""
    head = ["result", *(title for m, n in TILES for title in (f"{m}x{n}: tiles", "waves", "useful x busy"))]
    return table(head, [[f"{m}x{n}", *(text for tile in TILES for text in _cut(Cut(m, n, *tile)))] for m, n in shapes()])


def _cut(cut: Cut) -> list[str]:
    return [str(cut.tiles), f"{cut.waves:.2f}", f"{cut.useful:.0%} x {cut.busy:.0%} = {cut.share:.0%}"]


def uneven(found: Benches) -> str:
    """Which results the widest tile suits, which it does not, and what a smaller one leaves there."""
    cuts = [Cut(m, n, *TILES[0]) for m, n in shapes()]
    good, bad = [cut for cut in cuts if cut.share >= EVEN], [cut for cut in cuts if cut.share < EVEN]
    bm, bn = TILES[0]
    words = []
    if good:
        least = min(cut.share for cut in good)
        words.append(f"Tiles of {bm} by {bn} leave {least:.0%} of the tensor cores or more on {len(good)} of {len(cuts)} results: "
                     "quantisation is not where their time goes.")  # fmt: skip
    for cut in bad:
        small = Cut(cut.m, cut.n, *TILES[-1])
        words.append(f"{cut.m} by {cut.n} is {cut.tiles} such tiles for {SMS} multiprocessors, {cut.share:.0%}; tiles of {small.bm} by "
                     f"{small.bn} leave {small.share:.0%} of a worse rate. There k has to be split.")  # fmt: skip
    for cut in (cut for cut in cuts if cut.m % bm == 1):
        words.append(f"One row beyond a multiple of {bm} ({cut.m}) costs a row of tiles, {1 / -(-cut.m // bm):.1%} of the work.")
    return "\n".join(words)


def precisions(found: Benches) -> str:
    """What each dtype of factors costs in bytes and may cost in error, by the contract of matmul at 4096 terms."""
    op, rows = registry.current().op("matmul"), []
    for name, dtype, statics in [*((dtype, dtype, ()) for dtype in op.dtypes), ("float32 as TF32", "float32", (("precision", "tf32"),))]:
        allowed = op.tolerance(op.workload(Point((1, 4096, 4096, 4096), dtype, statics=statics), "cuda"))
        rows.append([name, str(DTYPE_BYTES[dtype]), f"{allowed.relative:.2g}", f"{allowed.absolute:.2g}"])
    return table(["factors", "bytes", "relative tolerance", "absolute tolerance"], rows)


def precisions_timed(found: Benches) -> str:
    """Which dtypes of factors the stored products have."""
    named = sorted({row.work.dtype for row in found.get("matmul", []) if row.work})
    missing = [dtype for dtype in registry.current().op("matmul").dtypes if dtype not in named]
    timed = f"Stored products are of {joined(named)} factors." if named else "No product is stored."
    return f"{timed} The time of products of {joined(missing)}: not measured yet." if missing else timed
