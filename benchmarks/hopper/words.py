"""Sentences with figures of stored rows; which of them stands depends on the rows."""

from __future__ import annotations

from benchmarks.hopper.rows import Benches, Ratio, best, by_workload, decided, large, pairs, ragged, ratios
from benchmarks.hopper.tables import added_us, pass_apart_bytes, pass_apart_us
from benchmarks.hopper.text import joined, missing, span, us
from kernelyard.registry.spec import DTYPE_BYTES, Workload

PAIRS = (
    ("triton.twoloop", "gluon.specialized", "What FlashAttention-3 adds, `gluon.specialized` over `triton.twoloop`"),
    ("torch.flash", "triton.twoloop", "The same FlashAttention-2 form by another compiler, `triton.twoloop` over torch's `flash`"),
    ("torch.flash", "gluon.specialized", "All of it, `gluon.specialized` over torch's `flash`"),
    ("torch.cudnn", "gluon.specialized", "Against a kernel with the same ideas, `gluon.specialized` over cuDNN"),
    ("fa4.attention", "gluon.specialized", "`gluon.specialized` over FlashAttention-4 on this GPU"),
)


def endings(found: Benches) -> str:
    """What a fused end saves by arithmetic, and whose end costs less than that."""
    apart = pass_apart_us(found)
    rate = f", {us(apart)} at the rate of the largest stored sum of vectors." if apart else "; at which rate is not measured yet."
    words = [f"bias and gelu apart move {pass_apart_bytes() / 1e6:.0f} MB more than in the product's own kernel{rate}"]
    both = added_us(found)
    if not both or apart is None:
        return f"By arithmetic {' '.join(words)}"
    cheap = [kernel for kernel, (alone, fused) in both.items() if fused.us - alone.us < apart]
    dear = [kernel for kernel in both if kernel not in cheap]
    if cheap:
        words.append(f"Fusion pays in {joined(cheap)}: the end adds less than that pass.")
    if dear:
        words.append(f"It does not in {joined(dear)}: the end adds as much as a pass of its own, or more.")
    return f"By arithmetic {' '.join(words)}"


def gated(found: Benches) -> str:
    """Bytes that a gated linear of one row keeps on chip beside those of its weights, and what fusion buys."""
    both = pairs(found.get("linear_swiglu", []), lambda work: work.dim("rows") == 1)
    if not both:
        return missing("linear_swiglu")
    first = both[0][0]
    work, cost = first.work, first.cost
    assert work is not None and cost is not None
    kept = 4 * work.dim("n") * DTYPE_BYTES[work.dtype]
    return (
        f"One gated row ({first.workload}) moves {cost.bytes / 1e6:.0f} MB, and both halves stay on chip: to write and read "
        f"them would be {kept / 1e3:.0f} kB, {kept / cost.bytes:.2%} more. So fusion buys launches there, not bytes. The best other takes "
        f"{span(other.us / ours.us for ours, other in both)} our time."
    )


def attention(found: Benches) -> str:
    """What each pair of kernels says, a point of a list each."""
    rows = found.get("attention", [])
    if not rows:
        return missing("attention")
    return "\n".join(f"- {title}: {_times(ratios(rows, theirs, ours))}" for theirs, ours, title in PAIRS)


def ends(values: dict[str, float]) -> tuple[str, str]:
    """The workloads of the least and of the most."""
    return min(values, key=lambda workload: values[workload]), max(values, key=lambda workload: values[workload])


def _times(found: dict[str, Ratio]) -> str:
    """How often faster and slower, and where the most and the least is."""
    if not found:
        return "not measured yet."
    least, most = ends({workload: each.value for workload, each in found.items()})
    counts = zip(decided(list(found.values())), ("faster", "slower", "undecided"), strict=True)
    counted = ", ".join(f"{count} {word}" for count, word in counts if count)
    return f"{found[least].value:.2f}x ({least}) to {found[most].value:.2f}x ({most}) as fast; {counted}."


def decode(found: Benches) -> str:
    """What one sequence would occupy, and which of ours is fastest where."""
    some = by_workload(found.get("attention_decode", []), lambda work: True)
    if not some:
        return missing("attention_decode")
    mine: dict[str, list[str]] = {}
    for workload, each in some.items():
        if ours := best(each)[0]:
            mine.setdefault(ours.kernel, []).append(workload)
    words = [f"`{kernel}` is our fastest on {len(workloads)} of {len(some)} caches." for kernel, workloads in mine.items()]
    shares = {row.workload: row.percent for each in some.values() if (row := best(each)[0]) and row.percent is not None}
    if shares:
        low, high = ends(shares)
        words.append(f"Of the ceiling they reach {shares[low]:.0f}% at {low} and {shares[high]:.0f}% at {high}.")
    return " ".join(words)


def copies(found: Benches) -> str:
    """What repacking ragged factors moves, by arithmetic, and what each way to do without TMA gives."""
    some = by_workload(found.get("matmul", []), ragged)
    even = [row.tflops() for each in by_workload(found.get("matmul", []), large).values() for row in each]
    words = []
    for each in some.values():
        work = each[0].work
        assert work is not None
        rates = {row.kernel: row.tflops() for row in each}
        first = max(rates, key=lambda kernel: rates[kernel])
        blas = f" beside {rates['torch.plain']:.0f} of cuBLAS" if "torch.plain" in rates and first != "torch.plain" else ""
        share = f", {rates[first] / max(even):.0%} of the best aligned product" if even else ""
        moved = f"copies move {repacked_bytes(work) / 1e6:.0f} MB"
        words.append(f"- {each[0].workload}: {moved}; `{first}` is fastest, {rates[first]:.0f} TFLOP/s{blas}{share}.")
    return "\n".join(words) if words else missing("matmul")


def repacked_bytes(work: Workload) -> int:
    """To read and write each factor once more whose rows start at no multiple of 16 bytes."""
    m, n, k = (work.dim(name) for name in "mnk")
    return 2 * DTYPE_BYTES[work.dtype] * (m * k * (k % 8 > 0) + k * n * (n % 8 > 0))


def tiles(found: Benches) -> str:
    """Whether quantisation explains the rates of the stored products."""
    some = by_workload(found.get("matmul", []), large)
    if not some:
        return missing("matmul")
    rates = {workload: max(row.tflops() for row in each) for workload, each in some.items()}
    least, most = ends(rates)
    return f"Stored rates go from {rates[least]:.0f} TFLOP/s ({least}) to {rates[most]:.0f} ({most})."


def count(found: Benches) -> str:
    """How many workloads are stored, and on how many another is faster."""
    both = [(op, ours.us > other.us) for op, rows in found.items() for ours, other in pairs(rows)]
    slower = [op for op, lost in both if lost]
    where = f", in {joined(dict.fromkeys(slower))}" if slower else ""
    absent = [op for op in ("matmul", "attention") if op not in found]
    more = f" Not measured yet: {joined(absent)}." if absent else ""
    return f"Of {len(both)} workloads where ours and another ran, another is faster on {len(slower)}{where}.{more}"
