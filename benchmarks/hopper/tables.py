"""Tables of stored rows. What they compare ran side by side, in one experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.hopper.arithmetic import SMS
from benchmarks.hopper.reasons import why
from benchmarks.hopper.rows import ROW_OPS, Benches, Keep, Row, best, by_workload, decided, frozen, pairs, ratio
from benchmarks.hopper.text import missing, span, table, us
from kernelyard.registry.spec import DTYPE_BYTES

FUSED, ALONE = "1x8192x14336x4096 bf16 gelu, with bias", "1x8192x14336x4096 bf16"

AGAINST = ("ours", "time", "rate", "of ceiling", "best other", "time", "theirs / ours")


def compared(op: str, keep: Keep | None = None) -> Callable[[Benches], str]:
    """A maker of the table of one op: our best kernel beside the best of the others, by workload."""

    def made(found: Benches) -> str:
        some = by_workload(found.get(op, []), keep)
        if not some:
            return missing(op)
        return table(["workload", *AGAINST], [_against(each) for each in some.values()])

    return made


def _against(each: Sequence[Row]) -> list[str]:
    ours, other = best(each)
    share = "n/a" if ours is None or ours.percent is None else f"{ours.percent:.0f}%"
    mine = ["not run", "", "", ""] if ours is None else [ours.kernel, us(ours.us), ours.rate(), share]
    theirs = ["not run", ""] if other is None else [other.kernel, us(other.us)]
    return [each[0].workload, *mine, *theirs, str(ratio(other, ours)) if ours and other else ""]


def beside(op: str, keep: Keep | None = None) -> Callable[[Benches], str]:
    """A maker of the table of every kernel's TFLOP/s on an op, a column a kernel."""

    def made(found: Benches) -> str:
        some = by_workload(found.get(op, []), keep)
        if not some:
            return missing(op)
        kernels = sorted({row.kernel for each in some.values() for row in each})
        rates = {workload: {row.kernel: f"{row.tflops():.0f}" if row.cost else "n/a" for row in each} for workload, each in some.items()}
        return table(["TFLOP/s", *kernels], [[workload, *(rate.get(kernel, "") for kernel in kernels)] for workload, rate in rates.items()])

    return made


def row_ops(found: Benches) -> str:
    """One line for each op on rows: all its workloads, ours and the best of the others."""
    lines = []
    for op in ROW_OPS:
        if op not in found:
            lines.append([op, "not measured yet", "", ""])
            continue
        both = pairs(found[op])
        ceilings = [ours.percent for ours, _ in both if ours.percent is not None]
        apart = [ratio(other, ours) for ours, other in both]
        counted = "{} faster, {} slower, {} undecided".format(*decided(apart))
        theirs = span(each.value for each in apart) if apart else "not run"
        lines.append([op, span(ceilings, "{:.0f}%") if ceilings else "n/a", theirs, counted])
    return table(["op", "our best, of ceiling", "theirs / ours", "workloads where ours is"], lines)


def pass_apart_us(found: Benches) -> float | None:
    """Microseconds of reading and writing the result of `ALONE` once more, at the rate of the largest stored sum of vectors."""
    adds = [row for row in found.get("vector_add", []) if row.cost]
    if not adds:
        return None
    rate = max(adds, key=lambda row: row.cost.bytes if row.cost else 0).gbps()
    return pass_apart_bytes() / rate / 1e3


def pass_apart_bytes() -> int:
    """Bytes of that pass."""
    work = next(work for work in frozen("matmul") if work.label() == ALONE)
    return 2 * work.dim("m") * work.dim("n") * DTYPE_BYTES[work.dtype]


def added_us(found: Benches) -> dict[str, tuple[Row, Row]]:
    """By kernel, the product by itself and with bias and gelu; the fastest of the latter first."""
    some = by_workload(found.get("matmul", []))
    alone = {row.kernel: row for row in some.get(ALONE, [])}
    return {row.kernel: (alone[row.kernel], row) for row in some.get(FUSED, []) if row.kernel in alone}


def endings(found: Benches) -> str:
    """Each product with and without bias and gelu, beside a pass of its own over the result."""
    both, apart = added_us(found), pass_apart_us(found)
    if not both or apart is None:
        return missing("matmul")
    rows = [[kernel, us(alone.us), us(fused.us), f"{fused.us - alone.us:+.0f} us", us(apart)] for kernel, (alone, fused) in both.items()]
    return table(["kernel", "product", "with bias and gelu", "added", "a pass of its own"], rows)


def decode(found: Benches) -> str:
    """Attention over a cache: its bytes, how many programs there are without a split, and ours beside the best of the others."""
    some = by_workload(found.get("attention_decode", []), lambda work: True)
    if not some:
        return missing("attention_decode")
    lines = []
    for each in some.values():
        work, cost = each[0].work, each[0].cost
        assert work is not None and cost is not None
        tasks = f"{work.dim('batch') * work.dim('kv_heads')} for {SMS}"
        lines.append([each[0].workload, f"{cost.bytes / 1e6:.1f} MB", tasks, *_against(each)[1:]])
    return table(["workload", "to read", "programs without a split", *AGAINST], lines)


def losses(found: Benches) -> str:
    """Every workload where another's kernel is faster than our best, or ran alone; and why, where that is known."""
    lines = []
    for op, rows in found.items():
        for each in by_workload(rows).values():
            ours, other = best(each)
            if other is None or (ours and other.us >= ours.us):
                continue
            apart = ratio(other, ours) if ours else None
            told = "not in that bench, or it refuses the workload" if ours is None else why(op, ours.work)
            if apart and apart.high >= 1:
                told = f"undecided, the interval holds 1; if it is one: {told}"
            lines.append([op, other.workload, ours.kernel if ours else "not run", other.kernel, str(apart or ""), told])
    return table(["op", "workload", "our best", "faster", "theirs / ours", "why"], lines) if lines else "None is stored."
