"""`roofline [OP...]`: what this device can do at best, measured, and where the kernels that were tuned on it stand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.output import device_option, emit, json_option, microseconds, say, table
from kernelyard.errors import StoreFailed, UsageError

if TYPE_CHECKING:
    from kernelyard.measure.ceilings import Ceilings
    from kernelyard.measure.roofline_plot import Roofs, Spot
    from kernelyard.registry.op import Op


@click.command(epilog="Example: kernelyard roofline rmsnorm softmax --svg roofline.svg")
@click.argument("ops", metavar="[OP]...", nargs=-1)
@click.option("--refresh", is_flag=True, help="Measure the ceilings anew, whatever is stored.")
@click.option("--svg", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it into this file too.")
@device_option
@json_option
def roofline(ops: tuple[str, ...], refresh: bool, picture: Path | None, device: str | None, as_json: bool) -> int:
    """The device's ceilings, and every kernel of OP that finals have timed, by operations a byte and by rate.

    Bandwidths of a copy and a read and the rate of matrix products by dtype are measured by the timing protocol and kept. A
    kernel's point is its newest time on a workload of the frozen performance matrix; without OP, of every op that has one. Exit
    code 1 where an op that was named has none.
    """
    from kernelyard.measure.ceilings import ceilings
    from kernelyard.measure.roofline_plot import Roofs, Spot
    from kernelyard.registry import registry
    from kernelyard.registry.machine import check_device

    device, everything = check_device(device), registry.current()
    everywhere = [op for op in everything.ops.values() if {"performance", f"performance/{device}"} & set(op.matrices)]
    contracts = [everything.op(name) for name in dict.fromkeys(ops)] or everywhere
    if picture is not None and not picture.absolute().parent.is_dir():
        raise UsageError(f"{picture} can't be written: its folder does not exist.")
    say("ceilings: the stored ones, or measured now (10 seconds)" if not refresh else "measuring the ceilings anew (10 seconds)")
    found = ceilings(device, refresh)
    points = [point for op in contracts for point in _points(op, device, found.device_key)]
    missing = [name for name in dict.fromkeys(ops) if not any(point["op"] == name for point in points)]
    roofs = Roofs(found.copy_gbps, dict(found.matrix_tflops))
    spots = [Spot(f"{p['op']} {p['label']} {p['kernel']}", p["flops_per_byte"], p["tflops"]) for p in points if p["tflops"] > 0]
    if picture is not None:
        _draw(picture, found, roofs, spots)
    if as_json:
        emit({"device": found.device_key, "ceilings": _ceilings_json(found, roofs), "points": points, "missing": missing})
    else:
        _show(found, roofs, spots, points)
    for name in missing:
        say(f"{name}: no stored time on this device; `kernelyard tune {name}` gives some")
    return 1 if missing else 0


def _points(op: Op, device: str, device_key: str) -> list[dict[str, Any]]:
    """The newest time of each kernel on each workload of the performance matrix, the best of its configs in that run."""
    points = []
    for point in op.matrix("performance", device).points:
        workload = op.workload(point, device)
        cost = op.cost(workload)
        if not cost.bytes:
            continue
        for kernel, us in _newest(op.name, workload.key(), device_key).items():
            points.append({
                "op": op.name, "label": workload.label(), "kernel": kernel, "device_time_us": us, "bytes": cost.bytes, "flops": cost.flops,
                "flops_per_byte": cost.flops / cost.bytes, "gbps": cost.bytes / us / 1e3, "tflops": cost.flops / us / 1e6,
            })  # fmt: skip
    return points


def _newest(op: str, workload_key: str, device_key: str) -> dict[str, float]:
    """Kernel -> device time in the last run that timed it by this version of the protocol; nothing where there is no store."""
    from kernelyard.measure.measured import PROTOCOL
    from kernelyard.store.database import open_store
    from kernelyard.store.files import database_path

    path = database_path()
    if not path.is_file():
        return {}
    columns = "select kernel, run_id, min(median_us) as us, max(id) as last from measurements"
    where = "where op = ? and workload_key = ? and device_key = ? and protocol = ? and mode = 'device' and median_us > 0"
    with open_store(path, read_only=True) as store:
        if not store.db["measurements"].exists():
            return {}
        asked = [op, workload_key, device_key, PROTOCOL]
        rows = list(store.db.query(f"{columns} {where} group by kernel, run_id order by last", asked))
    return {row["kernel"]: row["us"] for row in rows}


def _ceilings_json(found: Ceilings, roofs: Roofs) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(found), "ridges": {dtype: roofs.ridge(dtype) for dtype in roofs.tflops}}


def _draw(picture: Path, found: Ceilings, roofs: Roofs, spots: list[Spot]) -> None:
    from kernelyard.measure.roofline_plot import svg

    try:
        picture.write_text(svg(f"{found.device_key}, ceilings measured {found.measured_at}", roofs, spots), encoding="utf-8")
    except OSError as error:
        raise StoreFailed(f"{picture} can't be written: {error.strerror}.", do="Name another file.") from error
    say(f"drawn into {picture}")


def _show(found: Ceilings, roofs: Roofs, spots: list[Spot], points: list[dict[str, Any]]) -> None:
    from kernelyard.measure.roofline_plot import characters, marked

    def width(name: str) -> str:
        return f"{found.spreads[name]:.1%}" if name in found.spreads else "n/a"

    rows = [("copy", f"{found.copy_gbps:.1f} GB/s", width("copy"), ""), ("read", f"{found.read_gbps:.1f} GB/s", width("read"), "")]
    rows += [
        (f"matrix {dtype}", f"{rate:.3g} TFLOP/s", width(dtype), f"{roofs.ridge(dtype):.1f}") for dtype, rate in found.matrix_tflops.items()
    ]
    table(f"{found.device_key}, measured {found.measured_at}", ("ceiling", "rate >", "interval >", "ridge, FLOP/byte >"), rows)
    if found.noisy:
        print(f"The ceilings are noisy and may be too low: {found.noisy}. On a quiet machine: kernelyard roofline --refresh\n")
    print(characters(roofs, spots))
    marks = {spot.label: mark for mark, spot in marked(spots)}
    by_mark = sorted(points, key=lambda p: -p["tflops"])
    lines = [
        (marks.get(f"{p['op']} {p['label']} {p['kernel']}", ""), p["op"], p["label"], p["kernel"], microseconds(p["device_time_us"]),
         f"{p['gbps']:.1f}", f"{p['tflops']:.3g}", f"{p['flops_per_byte']:.3g}")
        for p in by_mark
    ]  # fmt: skip
    if any(spot.tflops > roofs.at(spot.intensity) for spot in spots):
        print("\nPoints above the slope moved data that stayed in a cache; the slope is a copy far larger than any.")
    if lines:
        table("", ("", "op", "workload", "kernel", "device time >", "GB/s >", "TFLOP/s >", "FLOP/byte >"), lines)
