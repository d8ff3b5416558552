"""`list`, `explain`, `plugins list`: what is installed, what would serve a call, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from kernelyard.cli.output import device_option, dtype_option, emit, json_option, matrix_option, say, shape_option, table


@click.command("list", epilog="Example: kernelyard list --op rmsnorm --json")
@click.option("--op", help="Only this op.")
@click.option("--strict", is_flag=True, help="Exit with 1 when a plugin has a problem.")
@device_option
@json_option
def list_command(op: str | None, strict: bool, device: str | None, as_json: bool) -> int:
    """The ops and kernels that are installed, and whether each kernel can run here."""
    from kernelyard.errors import UnknownName
    from kernelyard.registry.listing import listing
    from kernelyard.registry.machine import check_device

    found = listing(check_device(device), say)
    names = [name for name, _, _ in found.ops]
    if op is not None and op not in names:
        raise UnknownName("op", op, names)
    ops = [{"name": name, "summary": summary, "plugin": plugin} for name, summary, plugin in found.ops if op in (None, name)]
    kernels = [asdict(kernel) for kernel in found.kernels if op in (None, kernel.op)]
    problems = [{"plugin": p.plugin, "distribution": p.distribution, "reason": p.reason} for p in found.problems]
    if as_json:
        emit({"ops": ops, "kernels": kernels, "problems": problems})
    else:
        _print_kernels(ops, kernels)
        for problem in problems:
            say(f"problem: {problem['plugin']} ({problem['distribution']}): {problem['reason']}")
    return 1 if strict and problems else 0


def _print_kernels(ops: list[dict[str, Any]], kernels: list[dict[str, Any]]) -> None:
    """Plain lines, not a drawn table: the library that draws would cost more time than the listing."""
    width = max((len(kernel["name"]) for kernel in kernels), default=0)
    for op in ops:
        print(f"{op['name']}: {op['summary']}")
        for kernel in (k for k in kernels if k["op"] == op["name"]):
            state = "available" if kernel["available"] else f"unavailable: {kernel['reason']}"
            print(f"  {kernel['name']:<{width}}  {kernel['plugin']:<12}  {state}")


@click.command(epilog="Example: kernelyard explain rmsnorm --shape 16x4096 --dtype fp32")
@click.argument("op")
@shape_option("16x4096")
@dtype_option
@matrix_option
@device_option
@json_option
def explain(op: str, shapes: tuple[str, ...], dtype: str | None, matrix: str | None, device: str | None, as_json: bool) -> int:
    """Which kernel would serve a workload of OP, why, and why not the others."""
    from kernelyard.cli.workloads import matrices
    from kernelyard.registry import registry
    from kernelyard.registry.dispatch import select
    from kernelyard.registry.machine import check_device

    device, everything = check_device(device), registry.current()
    chosen = matrices(everything, [op], device=device, matrix=matrix, shapes=shapes, dtype=dtype, default="performance")[0]
    contract = everything.op(op)
    selections = [select(contract, contract.workload(point, device)) for point in chosen.points]
    content = [
        {
            "workload": {"shapes": s.workload.shapes, "dtype": s.workload.dtype},
            "selected": s.kernel.name,
            "config": dict(s.config),
            "reason": s.reason,
            "rejected": [{"kernel": r.kernel, "reason": r.reason} for r in s.rejected],
        }
        for s in selections
    ]
    if as_json:
        emit({"op": op, "device": device, **content[0], "workloads": content})
        return 0
    for selection in selections:
        print(selection)
    return 0


@click.group()
def plugins() -> None:
    """The plugins that bring ops, kernels and backends."""


@plugins.command("list", epilog="Example: kernelyard plugins list")
@json_option
def plugins_list(as_json: bool) -> int:
    """Each plugin with its distribution, version, what it brings, load time and problems."""
    from kernelyard.registry.listing import listing
    from kernelyard.registry.machine import default_device

    found = listing(default_device(), say)
    rows: list[dict[str, Any]] = [
        {
            "plugin": p.plugin,
            "distribution": p.distribution,
            "version": p.version,
            "load_ms": p.load_ms,
            "ops": [name for name, _ in p.ops],
            "kernels": [f"{op}: {name}" for name, op, _, _ in p.kernels],
            "backends": [name for name, _ in p.backends],
            "printed": p.printed,
        }
        for p in found.plugins
    ]
    problems = [{"plugin": p.plugin, "distribution": p.distribution, "reason": p.reason} for p in found.problems]
    if as_json:
        emit({"plugins": rows, "problems": problems})
        return 0
    columns = ("plugin", "distribution", "version", "ops >", "kernels >", "backends", "import >")
    table("", columns, [_counted(row) for row in rows])
    for problem in problems:
        print(f"problem: {problem['plugin']} ({problem['distribution']}): {problem['reason']}")
    return 0


def _counted(row: dict[str, Any]) -> tuple[object, ...]:
    names, backends = (row["plugin"], row["distribution"], row["version"]), " ".join(row["backends"])
    return (*names, len(row["ops"]), len(row["kernels"]), backends, f"{row['load_ms']:.0f} ms")
