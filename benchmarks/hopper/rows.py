"""The rows of each op's newest stored bench on a Hopper GPU, and how they are compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelyard.registry import registry
from kernelyard.registry.spec import Cost, Workload

OURS = ("triton", "cuda", "gluon")
ROW_OPS = (
    "vector_add", "softmax", "softmax_backward", "rmsnorm", "rmsnorm_backward", "add_rmsnorm", "add_rmsnorm_backward", "swiglu",
    "swiglu_backward", "rope",
)  # fmt: skip
OPS = (*ROW_OPS, "attention_decode", "linear_swiglu", "matmul", "attention")


@dataclass(frozen=True)
class Row:
    """One kernel on one workload of a stored bench: microseconds, the 95% interval of their median, the share of the ceiling in percent.

    `work` is None where the workload is no point of a frozen matrix."""

    workload: str
    kernel: str
    us: float
    low_us: float
    high_us: float
    percent: float | None
    cost: Cost | None
    work: Workload | None = None

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
Keep = Callable[[Workload], bool]


@dataclass(frozen=True)
class Ratio:
    """Another kernel's time over ours, and how far it goes if both medians lie at the ends of their intervals."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f} to {self.high:.2f})"


def ratio(theirs: Row, ours: Row) -> Ratio:
    """Above 1 where ours is faster. The interval is wider than that of ratios within rounds, which no bench stores."""
    return Ratio(theirs.us / ours.us, theirs.low_us / ours.high_us, theirs.high_us / ours.low_us)


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
    """Timed rows; operations, bytes and shapes of those that are points of the frozen matrices."""
    works = {work.label(): work for work in frozen(op)}
    return [_row(op, row, works.get(row["workload"])) for row in rows if row["device_time_us"]]


def _row(op: str, row: dict[str, Any], work: Workload | None) -> Row:
    cost = registry.current().op(op).cost(work) if work else None
    times = (row["device_time_us"], row["low_us"], row["high_us"])
    return Row(row["workload"], row["kernel"], *times, row["percent_of_ceiling"], cost, work)


def frozen(op: str) -> Iterator[Workload]:
    """The workloads of an op's performance matrix on a GPU."""
    contract = registry.current().op(op)
    return (contract.workload(point, "cuda") for point in contract.matrix("performance", "cuda").points)


def by_workload(rows: Sequence[Row], keep: Keep | None = None) -> dict[str, list[Row]]:
    """In the order of the bench, the fastest first; of the frozen workloads that `keep` says yes to, or of all."""
    some: dict[str, list[Row]] = {}
    for row in rows:
        if keep is None or (row.work is not None and keep(row.work)):
            some.setdefault(row.workload, []).append(row)
    return {workload: sorted(each, key=lambda row: row.us) for workload, each in some.items()}


def best(each: Sequence[Row]) -> tuple[Row | None, Row | None]:
    """The fastest of ours and of the others, of rows in order of time."""
    return next((row for row in each if row.ours), None), next((row for row in each if not row.ours), None)


def pairs(rows: Sequence[Row], keep: Keep | None = None) -> list[tuple[Row, Row]]:
    """The fastest of ours and of the others, by workload, where both ran."""
    return [(ours, other) for ours, other in map(best, by_workload(rows, keep).values()) if ours and other]


def decided(found: Sequence[Ratio]) -> tuple[int, int, int]:
    """How many show ours faster, how many slower, and how many have 1 in their interval."""
    won, lost = sum(each.low > 1 for each in found), sum(each.high < 1 for each in found)
    return won, lost, len(found) - won - lost


def ratios(rows: Sequence[Row], theirs: str, ours: str) -> dict[str, Ratio]:
    """By workload, where both kernels ran."""
    named = {workload: {row.kernel: row for row in each} for workload, each in by_workload(rows).items()}
    return {workload: ratio(each[theirs], each[ours]) for workload, each in named.items() if theirs in each and ours in each}


def few_rows(work: Workload) -> bool:
    """A product of as many rows as one step of decoding has."""
    return work.dim("m") <= 16


def ragged(work: Workload) -> bool:
    """Whether rows of a factor or of the result start at no multiple of 16 bytes: then no tensor memory accelerator takes it."""
    return any(size % 8 for size in (work.dim("n"), work.dim("k"))) and not few_rows(work)


def large(work: Workload) -> bool:
    """Of many rows, all of which start at multiples of 16 bytes."""
    return not few_rows(work) and not ragged(work)
