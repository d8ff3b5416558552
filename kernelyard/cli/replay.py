"""`replay record`, `replay compare`: spaces measured whole and kept, and samplers compared on them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelyard.cli.output import (
    config_text,
    device_option,
    dtype_option,
    emit,
    json_option,
    matrix_option,
    microseconds,
    say,
    shape_option,
    table,
)

if TYPE_CHECKING:
    from kernelyard.tuner.bench import Finished
    from kernelyard.tuner.replay import Row

FOLDER = Path("benchmarks/spaces")


@click.group()
def replay() -> None:
    """Record a space that is measured whole, and compare samplers on recorded spaces."""


@replay.command(epilog="Example: kernelyard replay record rmsnorm --kernel cpp.onepass --shape 512x1024 --dtype fp32")
@click.argument("op")
@click.option("--kernel", required=True, help="The kernel whose space is recorded.")
@shape_option("512x1024")
@dtype_option
@matrix_option
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=FOLDER, show_default=True, help="For the files.")
@device_option
@json_option
def record(
    op: str, kernel: str, shapes: tuple[str, ...], dtype: str | None, matrix: str | None, folder: Path, device: str | None, as_json: bool
) -> int:
    """Build, check and time every valid config of a kernel of OP, and write a file for each workload.

    The trials are those of `tune`. Exit code 1 when on some workload no config was right.
    """
    from kernelyard.cli.workloads import matrices
    from kernelyard.registry import registry
    from kernelyard.registry.machine import check_device, identity
    from kernelyard.tuner.recording import record as measured
    from kernelyard.tuner.spaces import median_us, save

    device, everything = check_device(device), registry.current()
    found = everything.kernel(op, kernel)
    (frozen,) = matrices(everything, [op], device=device, matrix=matrix, shapes=shapes, dtype=dtype, default="performance")
    contract, files = everything.op(op), []
    for workload in [contract.workload(point, device) for point in frozen.points]:
        space = measured(everything, found, workload, identity(device), _progress)
        path = folder / f"{op}-{kernel}-{workload.label()}-{device}.json".replace(" ", "-").replace(",", "_").replace("/", "_")
        save(space, path)
        right = sum(one.result.timing is not None for one in space.trials)
        best = {"config": dict(space.best.config), "us": median_us(space.best)} if right else None
        files.append({"file": str(path), "workload": workload.label(), "configs": len(space.trials), "right": right, "best": best})
        if not as_json:
            fastest = f"; the best is {config_text(best['config'])}, {microseconds(median_us(space.best))}" if best else ""
            print(f"{path}: {len(space.trials)} configs, {right} right{fastest}")
    if as_json:
        emit({"op": op, "kernel": kernel, "files": files})
    return 0 if all(row["right"] for row in files) else 1


def _progress(done: int, total: int, one: Finished) -> None:
    from kernelyard.tuner.spaces import median_us

    time = microseconds(median_us(one)) if one.result.timing is not None else one.result.reason
    say(f"[{done}/{total}] {config_text(one.config)}: {one.result.status} {time}")


@replay.command(epilog="Example: kernelyard replay compare benchmarks/spaces/*.json --sampler tpe --sampler random --seeds 50")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--sampler", "samplers", multiple=True, help="As for tune; may be given again. By default all that can run here.")
@click.option("--seeds", type=click.IntRange(min=1), default=50, show_default=True, help="Searches of each sampler on each space.")
@json_option
def compare(files: tuple[Path, ...], samplers: tuple[str, ...], seeds: int, as_json: bool) -> int:
    """How many trials each sampler needs to come within 2% of the best of recorded spaces: median and quartiles over seeds.

    The search is that of `tune`; only a trial is looked up instead of measured. Blind, the sampler is alone; cold, the author's
    default and hints come first; warm, the best of the nearest recorded shape after them, where its file is among FILE.
    """
    from kernelyard.tuner.replay import compare as compared
    from kernelyard.tuner.samplers import able, sampling
    from kernelyard.tuner.spaces import load

    hows = [sampling(name) for name in samplers or able()]
    rows = compared([load(path) for path in files], hows, seeds)
    if as_json:
        emit({"seeds": seeds, "rows": [asdict(row) for row in rows]})
        return 0
    columns = ("op", "kernel", "workload", "configs >", "sampler", "start", "median trials >", "quartiles >")
    cells = [
        (row.op, row.kernel, row.workload, row.configs, row.sampler, _start(row), f"{row.median:g}", f"{row.lower:g} to {row.upper:g}")
        for row in rows
    ]
    table(f"trials to within 2% of the best, {seeds} seeds", columns, cells)
    return 0


def _start(row: Row) -> str:
    return f"{row.start}: {row.near}" if row.near else row.start
