"""How the memory of an attention call grows with the length of the sequence, for each kernel that can run, plain formula included.

    python benchmarks/attention_memory.py [--device cuda] [--kernel torch.math] [--length 1024 ...] [--save NAME]

Causal, one sequence, 8 heads over 2 of keys and values, head_dim 128; bf16 on a GPU, fp32 on a CPU. Peak memory of a call beyond its
inputs, the result included. On a GPU by torch's count, from before the kernel is built, so that what it keeps between calls counts too. On
a CPU by the resident pages of the process at their peak (Linux), second call over first: what a library keeps from the first is not seen.

`exponent` is the slope of log bytes over log length, least squares over the longer half of the lengths; a kernel is called linear where it
is below 1.2. A length is left out, and all longer ones, where a call is about to take more than a minute or more memory than is free.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelyard.cli.output import show_and_save
from kernelyard.errors import KernelyardError, Unsupported
from kernelyard.registry import registry
from kernelyard.registry.dispatch import as_pinned
from kernelyard.registry.machine import check_device, identity
from kernelyard.registry.matrix import Point
from kernelyard.registry.spec import Workload
from kernelyard.verify.isolation import Worker

LENGTHS = tuple(1 << power for power in range(10, 17))
LINEAR_BELOW = 1.2
LONGEST_S = 60.0
LIMIT_S = 240.0
"""For building a kernel and two calls of it."""
JOB = f"{__spec__.name if __spec__ else Path(__file__).stem}:measure_job"
M_MMAP_THRESHOLD, SMALL_BYTES = -3, 1 << 16
"""glibc's mallopt: blocks from this size on are mappings of their own, which go back when they are freed."""
Row = dict[str, Any]


def main() -> int:
    """Measure all kernels, print them, keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu or cuda (this machine's)")
    parser.add_argument("--kernel", action="append", default=[], help="only this kernel of attention; may be given again")
    parser.add_argument("--length", action="append", type=int, default=[], help="only this length; may be given again (1024 to 65536)")
    parser.add_argument("--save", metavar="NAME", help="write experiments/<date>-NAME")
    asked = parser.parse_args()
    try:
        device = check_device(asked.device)
        rows = measured(device, names(device, asked.kernel), sorted(asked.length) or LENGTHS)
    except KernelyardError as error:
        print(error, file=sys.stderr)
        return 2
    show_and_save(asked.save, rows, device=identity(device), text=table(rows), about=__doc__)
    return 0


def names(device: str, asked: Sequence[str]) -> list[str]:
    """The kernels asked for, or all that the device has; raises UnknownName, and Unsupported where pages can't be counted."""
    if device == "cpu" and not Path("/proc/self/clear_refs").exists():
        raise Unsupported("a process's peak can't be read here.", do="On a CPU this runs on Linux.")
    everything = registry.current()
    if asked:
        return [everything.kernel("attention", name).name for name in asked]
    return [kernel.name for kernel in everything.kernels("attention") if everything.can_run(kernel, device)]


def workload_of(length: int, device: str) -> Workload:
    """Causal attention of that length."""
    dtype = "bfloat16" if device == "cuda" else "float32"
    return registry.current().op("attention").workload(Point((1, 8, 2, length, length, 128), dtype, statics=(("causal", True),)), device)


def measured(device: str, kernels: Sequence[str], lengths: Sequence[int]) -> list[Row]:
    """A row for each kernel and length, each kernel in a process of its own, and in each row what its kernel was found to be."""
    rows = []
    for kernel in kernels:
        with Worker() as worker:
            some = of_kernel(worker, device, kernel, lengths)
        rows += [row | verdict({one["length"]: one["peak_bytes"] for one in some if one["peak_bytes"]}) for row in some]
    return rows


def of_kernel(worker: Worker, device: str, kernel: str, lengths: Sequence[int]) -> list[Row]:
    """Rows of one kernel; after the first length without a figure the longer ones have its reason."""
    rows: list[Row] = []
    reason = ""
    for length in lengths:
        print(f"{kernel} {length}", file=sys.stderr, flush=True)
        found: Row = {"peak_bytes": None, "seconds": None}
        if not reason:
            payload = {"kernel": kernel, "length": length, "device": device, "last": rows[-1] if rows else None}
            outcome = worker.run(JOB, payload, LIMIT_S)
            found, reason = (outcome.value, "") if outcome.value else (found, outcome.reason)
        workload = workload_of(length, device).label()
        rows.append({"op": "attention", "workload": workload, "kernel": kernel, "length": length, **found, "reason": reason})
    return rows


def measure_job(payload: dict[str, Any]) -> dict[str, Any]:
    """In the child: one kernel at one length; raises Unsupported with the reason where it is not to be tried."""
    import torch

    everything, device, last = registry.current(), payload["device"], payload["last"]
    op, kernel = everything.op("attention"), everything.kernel("attention", payload["kernel"])
    workload = workload_of(payload["length"], device)
    answer, config = as_pinned(op, kernel, workload)
    if not answer and not answer.timed:
        raise Unsupported(answer.reason)
    if last:
        square = (payload["length"] / last["length"]) ** 2  # what a kernel that nobody knows may need more, in time and memory
        refuse_longer(last["seconds"] * square, last["peak_bytes"] * square, free_bytes(device))
    generator = torch.Generator(device=device).manual_seed(0)
    args = op.inputs(workload, generator)
    with torch.inference_mode():
        peak, seconds = peak_bytes(lambda: everything.build(kernel, workload, config).call, args, device)
    return {"peak_bytes": peak, "seconds": seconds}


def refuse_longer(seconds: float, peak: float, free: int) -> None:
    """Raises Unsupported where a call that may need so much takes too long or does not fit; memory in bytes."""
    if seconds > LONGEST_S:
        raise Unsupported(f"a call may take {seconds:.0f} s")
    if peak > free:
        raise Unsupported(f"a call may take {peak / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")


def peak_bytes(build: Callable[[], Callable[..., Any]], args: Sequence[Any], device: str) -> tuple[int, float]:
    """Peak bytes of the second call of what `build` gives, beyond its arguments, and that call's seconds."""
    return _cuda_peak(build, args) if device == "cuda" else _cpu_peak(build, args)


def _cuda_peak(build: Callable[[], Callable[..., Any]], args: Sequence[Any]) -> tuple[int, float]:
    import torch

    square = torch.ones(16, 16, dtype=torch.bfloat16, device="cuda")
    (square @ square).sum().item()  # cuBLAS takes its workspace once in a process, of one size
    before = torch.cuda.memory_allocated()
    call = build()
    call(*args)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.monotonic()
    call(*args)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, time.monotonic() - start


def _cpu_peak(build: Callable[[], Callable[..., Any]], args: Sequence[Any]) -> tuple[int, float]:
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(M_MMAP_THRESHOLD, SMALL_BYTES)
    call = build()
    call(*args)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now: proc(5)
    before, start = _status("VmRSS"), time.monotonic()
    result = call(*args)
    seconds = time.monotonic() - start
    del result
    return max(_status("VmHWM") - before, 0), seconds


def free_bytes(device: str) -> int:
    """Memory that a call can have."""
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable") * 1024


def _status(field: str) -> int:
    return _kilobytes(Path("/proc/self/status"), field) * 1024


def _kilobytes(path: Path, field: str) -> int:
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(f"{field}:"))


def exponent(peaks: dict[int, int]) -> float | None:
    """Slope of log bytes over log length by least squares, over the longer half of the lengths; None of fewer than two of them."""
    longest = sorted(peaks)[len(peaks) // 2 :] if len(peaks) > 3 else sorted(peaks)
    if len(longest) < 2:
        return None
    xs, ys = [math.log(length) for length in longest], [math.log(peaks[length]) for length in longest]
    x, y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    return math.fsum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / math.fsum((a - x) ** 2 for a in xs)


def verdict(peaks: dict[int, int]) -> dict[str, Any]:
    """The exponent, and in words whether memory is linear in the length."""
    slope = exponent(peaks)
    return {"exponent": slope, "growth": "too few lengths" if slope is None else "linear" if slope < LINEAR_BELOW else "not linear"}


def table(rows: Sequence[Row]) -> str:
    """For people, as Markdown: MB by length, one line a kernel, and why there are gaps."""
    lengths = sorted({row["length"] for row in rows})
    lines = ["MB of a call beyond its inputs, by length", "", "| kernel | " + " | ".join(map(str, lengths)) + " | exponent | memory |"]
    lines.append("|" + " --- |" * (len(lengths) + 3))
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        some = {row["length"]: row for row in rows if row["kernel"] == kernel}
        first = next(iter(some.values()))
        cells = ["n/a" if not some[one]["peak_bytes"] else f"{some[one]['peak_bytes'] / 1e6:.4g}" for one in lengths]
        slope = "n/a" if first["exponent"] is None else f"{first['exponent']:.2f}"
        lines.append(f"| {kernel} | {' | '.join(cells)} | {slope} | {first['growth']} |")
    told = {row["kernel"]: f"- {row['kernel']} from {row['length']} on: {row['reason']}" for row in reversed(rows) if row["reason"]}
    return "\n".join([*lines, "", *reversed(told.values())]).rstrip()


if __name__ == "__main__":
    sys.exit(main())
