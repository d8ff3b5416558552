"""The tables and the picture of docs/hopper.md, from the newest stored bench of each op on a Hopper GPU.

    python benchmarks/hopper_page.py

Each part of the page between `<!-- made: NAME -->` and `<!-- end -->` is replaced by what this makes of experiments/; the words around
them are written by hand and name no figure. Rows of one table are of one experiment, so that what is compared ran side by side.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kernelyard.measure.roofline_plot import Roofs, Spot, svg
from kernelyard.registry import registry
from kernelyard.registry.matrix import Point
from kernelyard.registry.spec import DTYPE_BYTES, Cost, Workload

ROOT = Path(__file__).resolve().parents[1]
OURS = ("triton", "cuda", "gluon")
OPS = ("vector_add", "softmax", "rmsnorm", "attention_decode", "linear_swiglu", "matmul", "attention")
MARK = re.compile(r"<!-- made: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
SMS = 132
TILES = ((128, 256, 64), (128, 128, 64), (64, 64, 64))
SMALL_LOSS = 0.98
LARGE_BYTES, LARGE_FLOPS = 1 << 28, 10**12
"""Workloads that show a ceiling: 60 us of a copy, 1.3 ms of products."""
FUSED, ALONE = "1x8192x14336x4096 bf16 gelu, with bias", "1x8192x14336x4096 bf16"


@dataclass(frozen=True)
class Row:
    """One kernel on one workload of a stored bench."""

    workload: str
    kernel: str
    us: float
    percent: float | None
    cost: Cost | None

    @property
    def ours(self) -> bool:
        """Whether it is one of kernelyard's own kernels."""
        return self.kernel.split(".")[0] in OURS

    def rate(self) -> str:
        """In TFLOP/s where a byte meets more than a hundred operations, else in GB/s."""
        if self.cost is None:
            return "n/a"
        return f"{self.tflops():.0f} TFLOP/s" if self.cost.flops > 100 * self.cost.bytes else f"{self.gbps():.0f} GB/s"

    def tflops(self) -> float:
        """By the cost model of the op."""
        return self.cost.flops / self.us / 1e6 if self.cost else 0.0

    def gbps(self) -> float:
        """By the cost model of the op."""
        return self.cost.bytes / self.us / 1e3 if self.cost else 0.0


Benches = dict[str, list[Row]]


def main() -> int:
    """Make the page and its picture anew."""
    found = benches(ROOT / "experiments")
    page = ROOT / "docs/hopper.md"
    page.write_text(filled(page.read_text(), found))
    (ROOT / "docs/hopper.svg").write_text(picture(found))
    return 0


def benches(folder: Path) -> Benches:
    """The rows of each op's newest bench on a Hopper GPU; an op without one is left out."""
    return {op: rows for op in OPS if (rows := newest(folder, op))}


def newest(folder: Path, op: str) -> list[Row]:
    """By date, then by the number behind the name."""
    named = re.compile(rf"(\d{{4}}-\d\d-\d\d)-bench-{op}-gpu(?:-(\d+))?")
    stored = [(match[1], int(match[2] or 1), path) for path in folder.iterdir() if (match := named.fullmatch(path.name))]
    for *_, path in sorted(stored, reverse=True):
        content = json.loads((path / "results.json").read_text())
        if content["device"]["capability"] == "sm_90":
            return rows_of(op, content["rows"])
    return []


def rows_of(op: str, rows: Sequence[dict[str, Any]]) -> list[Row]:
    """Timed rows; operations and bytes of those that are points of the frozen matrices."""
    costs = {work.label(): registry.current().op(op).cost(work) for work in frozen(op)}
    timed = [row for row in rows if row["device_time_us"]]
    return [Row(r["workload"], r["kernel"], r["device_time_us"], r["percent_of_ceiling"], costs.get(r["workload"])) for r in timed]


def frozen(op: str) -> Iterator[Workload]:
    """The workloads of an op's performance matrix on a GPU."""
    contract = registry.current().op(op)
    return (contract.workload(point, "cuda") for point in contract.matrix("performance", "cuda").points)


def filled(page: str, found: Benches) -> str:
    """The page with every made part as it is made now."""
    return MARK.sub(lambda match: f"<!-- made: {match[1]} -->\n{PARTS[match[1]](found)}\n<!-- end -->", page)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def by_workload(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """In the order of the bench, the fastest first."""
    some: dict[str, list[Row]] = {}
    for row in rows:
        some.setdefault(row.workload, []).append(row)
    return {workload: sorted(each, key=lambda row: row.us) for workload, each in some.items()}


def tiles(found: Benches) -> str:
    """What each size of tile costs and how evenly it divides; arithmetic alone."""
    size, shapes = DTYPE_BYTES["bfloat16"], [dict(work.dims) for work in frozen("matmul") if work.dim("m") >= 1024][:5]
    named = [f"{s['m']}x{s['n']}" for s in shapes]
    rows = []
    for m, n, k in TILES:
        waves = [-(-s["m"] // m) * -(-s["n"] // n) / SMS for s in shapes]
        rows.append([f"{m}x{n}x{k}", f"{m * n / (m + n) * 2 / size:.0f}", f"{(m + n) * k * size / 1024:.0f} KiB", f"{m * n // 256}"]
                    + [f"{one / -(-one // 1):.0%}" for one in waves])  # fmt: skip
    return table(["tile", "flops a byte loaded", "a stage", "float32 sums a thread, of 256", *(f"busy at {name}" for name in named)], rows)


def precisions(found: Benches) -> str:
    """What each dtype costs in bytes and may cost in error, by the contract of matmul at 4096 terms."""
    op, rows = registry.current().op("matmul"), []
    for dtype in op.dtypes:
        allowed = op.tolerance(op.workload(Point((1, 4096, 4096, 4096), dtype), "cuda"))
        rows.append([dtype, str(DTYPE_BYTES[dtype]), f"{allowed.relative:.2g}", f"{allowed.absolute:.2g}"])
    return table(["dtype", "bytes", "relative tolerance", "absolute tolerance"], rows)


def endings(found: Benches) -> str:
    """Each product with and without bias and gelu, beside a pass of its own over the result at the rate of the largest vector_add."""
    some, adds = by_workload(found.get("matmul", [])), [row for row in found.get("vector_add", []) if row.cost]
    if FUSED not in some or ALONE not in some or not adds:
        return missing("matmul")
    rate = max(max(adds, key=lambda row: row.cost.bytes if row.cost else 0).gbps(), 1.0)
    work = next(work for work in frozen("matmul") if work.label() == ALONE)
    apart = 2 * work.dim("m") * work.dim("n") * DTYPE_BYTES["bfloat16"] / rate / 1e3
    alone = {row.kernel: row for row in some[ALONE]}
    rows = [[row.kernel, us(alone[row.kernel].us), us(row.us), f"{row.us - alone[row.kernel].us:+.0f} us", us(apart)]
            for row in some[FUSED] if row.kernel in alone]  # fmt: skip
    return table(["kernel", "product", "with bias and gelu", "added", "a pass of its own"], rows)


def compared(op: str) -> Callable[[Benches], str]:
    """A maker of the table of one op: our best kernel beside the best of the others, by workload."""

    def made(found: Benches) -> str:
        if op not in found:
            return missing(op)
        head = ["workload", "ours", "time", "rate", "of ceiling", "best other", "time", "theirs / ours"]
        return table(head, [_against(each) for each in by_workload(found[op]).values()])

    return made


def _against(each: Sequence[Row]) -> list[str]:
    ours, other = best(each)
    share = "n/a" if ours is None or ours.percent is None else f"{ours.percent:.0f}%"
    mine = ["not run", "", "", ""] if ours is None else [ours.kernel, us(ours.us), ours.rate(), share]
    theirs = ["not run", ""] if other is None else [other.kernel, us(other.us)]
    return [each[0].workload, *mine, *theirs, f"{other.us / ours.us:.2f}x" if ours and other else ""]


def best(each: Sequence[Row]) -> tuple[Row | None, Row | None]:
    """The fastest of ours and of the others, of rows in order of time."""
    return next((row for row in each if row.ours), None), next((row for row in each if not row.ours), None)


def pipelines(found: Benches) -> str:
    """TFLOP/s of every attention kernel, a column a kernel."""
    rows = found.get("attention", [])
    if not rows:
        return missing("attention")
    kernels = sorted({row.kernel for row in rows})
    lines = []
    for workload, each in by_workload(rows).items():
        rates = {row.kernel: f"{row.tflops():.0f}" if row.cost else "n/a" for row in each}
        lines.append([workload, *(rates.get(kernel, "") for kernel in kernels)])
    return table(["TFLOP/s", *kernels], lines)


def losses(found: Benches) -> str:
    """Every workload where another's kernel is more than 2% faster than our best, or alone."""
    lines = []
    for op, rows in found.items():
        for each in by_workload(rows).values():
            ours, other = best(each)
            if other and (ours is None or other.us < ours.us * SMALL_LOSS):
                ratio = f"{other.us / ours.us:.2f}x" if ours else ""
                lines.append([op, other.workload, ours.kernel if ours else "not run", other.kernel, ratio])
    return table(["op", "workload", "our best", "faster", "theirs / ours"], lines)


def missing(op: str) -> str:
    """In place of a table whose experiment is not stored."""
    return f"Not stored: `kernelyard bench {op} --save bench-{op}-gpu` on a Hopper GPU, then `python benchmarks/hopper_page.py`."


def us(value: float) -> str:
    """Microseconds, or milliseconds from 1000 on."""
    return f"{value:.3g} us" if value < 999.5 else f"{value / 1e3:.3g} ms"


def picture(found: Benches) -> str:
    """Our best kernel on the workload of most operations of each op, under the ceilings that the benches' own percentages were taken of."""
    spots = [spot for op, rows in found.items() if (spot := _spot(op, rows))]
    adds, products = (found.get(op, []) for op in ("vector_add", "matmul"))
    copies = [row.gbps() / row.percent * 100 for row in adds if row.percent and row.cost and row.cost.bytes > LARGE_BYTES]
    rates = [row.tflops() / row.percent * 100 for row in products if row.percent and row.cost and row.cost.flops > LARGE_FLOPS]
    roofs = Roofs(median(copies), {"bfloat16": median(rates)} if rates else {})
    return svg("Our best kernel on each op's largest workload, one H200", roofs, spots)


def _spot(op: str, rows: Sequence[Row]) -> Spot | None:
    costs = {row.workload: row.cost for row in rows if row.ours and row.cost}
    if not costs:
        return None
    workload = max(costs, key=lambda name: costs[name].flops)
    best = min((row for row in rows if row.ours and row.workload == workload), key=lambda row: row.us)
    return Spot(f"{op} {workload}, {best.kernel}", costs[workload].flops / costs[workload].bytes, best.tflops())


PARTS: dict[str, Callable[[Benches], str]] = {
    "tiles": tiles, "precisions": precisions, "endings": endings, "pipelines": pipelines, "losses": losses,
    **{f"bench_{op}": compared(op) for op in OPS},
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
