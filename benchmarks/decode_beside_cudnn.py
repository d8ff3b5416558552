"""attention_decode beside the attention kernels that know no lengths: cuDNN's and FlashAttention-2, over caches that are full.

    python benchmarks/decode_beside_cudnn.py [--seconds 1] [--kernel cuda.cluster ...] [--save NAME]

`bench attention_decode` cannot have them: torch calls cuDNN with a mask where sequences differ in length, which is slow, and without one a
shorter sequence would come out wrong. On the frozen contiguous shapes all sequences are as long as the cache, so that one query over all
keys (op `attention`, not causal) asks for the same result of the same bytes. Kernels of both ops run interleaved, on inputs of each
op's own; ours are checked before. Needs a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from kernelyard.cli.bench_rows import item_of
from kernelyard.cli.output import show_and_save
from kernelyard.contracts.attention_decode_inputs import full
from kernelyard.errors import KernelyardError
from kernelyard.registry import registry
from kernelyard.registry.answer import Answer
from kernelyard.registry.dispatch import as_pinned
from kernelyard.registry.machine import check_device, identity
from kernelyard.registry.matrix import Point
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Status, Workload
from kernelyard.tuner.bench import Bench, Item, Result
from kernelyard.tuner.limits import Limits
from kernelyard.verify.isolation import Worker

OURS = ("cuda.cluster", "triton.split", "torch.plain")
LENGTHLESS = ("torch.cudnn", "torch.flash")


def main() -> int:
    """Time both ops' kernels on every full shape, print a table, keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="time for the batches of a shape (1)")
    parser.add_argument("--kernel", action="append", default=[], help=f"of attention_decode; may be given again ({', '.join(OURS)})")
    parser.add_argument("--save", metavar="NAME", help="write experiments/<date>-NAME")
    asked = parser.parse_args()
    try:
        check_device("cuda")
        rows = measured(asked.kernel or OURS, asked.seconds)
    except KernelyardError as error:
        print(error, file=sys.stderr)
        return 2
    show_and_save(asked.save, rows, device=identity("cuda"), text=table(rows), about=__doc__)
    return 0


def measured(names: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """Rows of every full, contiguous frozen shape."""
    everything = registry.current()
    decode, attention = everything.op("attention_decode"), everything.op("attention")
    rows: list[dict[str, Any]] = []
    with Worker() as worker:
        bench = Bench(worker, Limits())
        for workload in full_caches(decode):
            asked = [(decode, workload, names), (attention, as_attention(attention, workload), LENGTHLESS)]
            found = [one for op, same, some in asked for one in candidates(op, same, some)]
            rows += timed(bench, workload.label(), found, seconds)
    return rows


def full_caches(decode: Op) -> list[Workload]:
    """The frozen workloads whose sequences are as long as their contiguous cache."""
    frozen = [decode.workload(point, "cuda") for point in decode.matrix("performance", "cuda").points]
    return [workload for workload in frozen if full(workload) and not workload.has("block_table")]


def as_attention(attention: Op, workload: Workload) -> Workload:
    """The same queries over the same keys, all seen."""
    dims = tuple(workload.dim(name) for name in ("batch", "q_heads", "kv_heads", "q_len", "capacity", "head_dim"))
    return attention.workload(Point(dims, workload.dtype), "cuda")


def candidates(op: Op, workload: Workload, names: Sequence[str]) -> list[tuple[Item, Answer]]:
    """Those named that can be timed, in their authors' defaults, and whether each may serve."""
    kernels = [kernel for kernel in registry.current().kernels(op.name) if kernel.name in names]
    found = [(kernel, *as_pinned(op, kernel, workload)) for kernel in kernels]
    return [(item_of(kernel, config, workload), answer) for kernel, answer, config in found if answer or answer.timed]


def timed(bench: Bench, label: str, candidates: Sequence[tuple[Item, Answer]], seconds: float) -> list[dict[str, Any]]:
    """One interleaved measurement; what may serve is checked before, and left out with its reason where it is wrong."""
    checked = {item.id: bench.prepare(item) if answer else bench.build(item) for item, answer in candidates}
    right = [item for item, _ in candidates if checked[item.id].status is Status.OK]
    rows = [_row(label, item, checked[item.id].reason) for item, _ in candidates if item not in right]
    times = bench.time(right, {"batches": 3, "most_batches": 5, "budget_s": seconds})
    if isinstance(times, Result):
        return rows + [_row(label, item, times.reason) for item in right]
    for item in right:
        timing, impossible = times.timings[item.id], times.impossible.get(item.id, "")
        facts = {"device_time_us": timing.median_us, "low_us": timing.low_us, "high_us": timing.high_us, "noisy": timing.noisy}
        rows.append(_row(label, item, impossible) | facts)
    bench.keep([])
    return sorted(rows, key=lambda row: row["device_time_us"] or float("inf"))


def _row(label: str, item: Item, reason: str) -> dict[str, Any]:
    names = {"workload": label, "op": item.workload.op, "kernel": item.kernel}
    return {**names, "config": dict(item.config), "device_time_us": None, "reason": reason}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """For people, as Markdown: device time, its interval, and cuDNN's time over it."""
    cudnn = {row["workload"]: row["device_time_us"] for row in rows if row["kernel"] == "torch.cudnn"}
    lines = ["| workload | op | kernel | us | interval | cuDNN over it |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        start = f"| {row['workload']} | {row['op']} | {row['kernel']}"
        time, reference = row["device_time_us"], cudnn.get(row["workload"])
        if time is None:
            lines.append(f"{start} | {row['reason']} | | |")
            continue
        ratio = f"{reference / time:.2f}x" if reference else "n/a"
        lines.append(f"{start} | {time:.4g} {row['reason']} | {row['low_us']:.4g}..{row['high_us']:.4g} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
