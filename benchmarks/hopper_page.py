"""The tables, figures and picture of docs/hopper.md, from the newest stored bench of each op on a Hopper GPU.

    python -m benchmarks.hopper_page

Each part of the page between `<!-- made: NAME -->` and `<!-- end -->` is replaced by what this makes of experiments/ and of shapes; the
words around them are written by hand and hold no measured figure. Rows of one table are of one experiment: they ran side by side.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.hopper import arithmetic, tables, words
from benchmarks.hopper.rows import Benches, Row, benches, few_rows, large, ragged
from kernelyard.measure.roofline_plot import Roofs, Spot, svg

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"<!-- made: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
LARGE_BYTES, LARGE_FLOPS = 1 << 28, 10**12
"""Workloads that show a ceiling: 60 us of a copy, 1.3 ms of products."""


def main() -> int:
    """Make the page and its picture anew."""
    found = benches(ROOT / "experiments")
    page = ROOT / "docs/hopper.md"
    page.write_text(filled(page.read_text(), found))
    (ROOT / "docs/hopper.svg").write_text(picture(found))
    return 0


def filled(page: str, found: Benches) -> str:
    """The page with every made part as it is made now."""
    return MARK.sub(lambda match: f"<!-- made: {match[1]} -->\n{PARTS[match[1]](found)}\n<!-- end -->", page)


def picture(found: Benches) -> str:
    """Our best kernel on the workload of most operations of each op, under the ceilings that the benches' own percentages were taken of."""
    spots = [spot for op, rows in found.items() if (spot := _spot(op, rows))]
    adds, products = (found.get(op, []) for op in ("vector_add", "matmul"))
    copies = [row.gbps() / row.percent * 100 for row in adds if row.percent and row.cost and row.cost.bytes > LARGE_BYTES]
    rates = [row.tflops() / row.percent * 100 for row in products if row.percent and row.cost and row.cost.flops > LARGE_FLOPS]
    roofs = Roofs(median(copies), {"bfloat16": median(rates)} if rates else {})
    return svg("Our best kernel on each op's largest workload, one H200", roofs, spots)


def _spot(op: str, rows: list[Row]) -> Spot | None:
    costs = {row.workload: row.cost for row in rows if row.ours and row.cost}
    if not costs:
        return None
    workload = max(costs, key=lambda name: costs[name].flops)
    best = min((row for row in rows if row.ours and row.workload == workload), key=lambda row: row.us)
    return Spot(f"{op} {workload}, {best.kernel}", costs[workload].flops / costs[workload].bytes, best.tflops())


PARTS: dict[str, Callable[[Benches], str]] = {
    "rows": tables.row_ops,
    "tiles": arithmetic.tiles, "waves": arithmetic.waves, "uneven": arithmetic.uneven, "products_told": words.tiles,
    "products": tables.compared("matmul", large),
    "precisions": arithmetic.precisions, "precisions_timed": arithmetic.precisions_timed,
    "endings_told": words.endings, "endings": tables.endings, "gated_told": words.gated, "gated": tables.compared("linear_swiglu"),
    "pipelines": tables.beside("attention"), "pipelines_told": words.attention,
    "decode": tables.decode, "decode_told": words.decode, "few": tables.compared("matmul", few_rows),
    "ragged": tables.beside("matmul", ragged), "ragged_told": words.copies,
    "count": words.count, "losses": tables.losses,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
