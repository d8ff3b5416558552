"""`boundary OP`: what kernels declare to support, against what they can."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from kernelyard.cli.output import Seconds, device_option, emit, json_option, say, table

if TYPE_CHECKING:
    from kernelyard.verify.boundary import Row

MOST_WIDE = 110
"""Characters of an example in the table; --json has all."""


@click.command(epilog="Example: kernelyard boundary rmsnorm --kernel cpp.onepass")
@click.argument("op")
@click.option("--kernel", "kernels", multiple=True, help="Only this kernel; may be given again.")
@click.option("--timeout", "timeout_s", type=Seconds(min=1), default=300, show_default=True, help="Seconds for each kernel.")
@device_option
@json_option
def boundary(op: str, kernels: tuple[str, ...], timeout_s: float, device: str | None, as_json: bool) -> int:
    """Try each kernel of OP just inside and just outside of its declared support.

    Sizes at the bounds and beyond, dtypes, layouts, and points that predicates refuse. Too wide: it declares what it can't
    do right. Too narrow: it can do more, which may be on purpose. Exit code 1 when a kernel's support is too wide.
    """
    from kernelyard.registry import registry
    from kernelyard.registry.machine import check_device
    from kernelyard.verify.boundary import boundary as tried
    from kernelyard.verify.isolation import Worker

    device, everything = check_device(device), registry.current()
    asked = [everything.kernel(op, name) for name in kernels] or everything.kernels(op)
    rows: list[Row] = []
    for kernel in asked:
        say(f"{kernel.name}: trying its bounds")
        with Worker() as worker:
            rows += tried(everything.op(op), kernel, device, worker, timeout_s)
    if as_json:
        emit({"op": op, "device": device, "rows": [asdict(row) for row in rows]})
    else:
        columns = ("kernel", "axis", "declared", "real", "verdict", "points >", "example")
        cells = [(row.kernel, row.axis, row.declared, row.real, row.verdict, row.points, _short(row.example)) for row in rows]
        table(f"{op} on {device}: declared support and the real one", columns, cells)
    wide = any(row.verdict == "too wide" for row in rows)
    return 1 if wide or not any(row.points for row in rows) else 0


def _short(text: str) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= MOST_WIDE else line[: MOST_WIDE - 3] + "..."
