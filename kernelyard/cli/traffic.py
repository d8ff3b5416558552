"""`traffic OP --kernel K`: a kernel's memory traffic, understood on a machine that may have no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.output import Seconds, config_text, dtype_option, emit, json_option, say

if TYPE_CHECKING:
    from kernelyard.registry.kernel import Kernel
    from kernelyard.registry.registry import Registry


@click.command(epilog="Example: kernelyard traffic softmax --kernel triton.row --shape 16x1000 --dtype bf16 --explain")
@click.argument("op")
@click.option("--kernel", required=True, help="The kernel to trace.")
@click.option("--shape", help="Sizes such as 16x1000; by default a small point of the op's performance matrix.")
@dtype_option
@click.option("--config", "config_words", multiple=True, metavar="NAME=VALUE", help="Instead of the author's default; may be given again.")
@click.option("--explain", is_flag=True, help="Print one warp's request lane by lane: element, byte address, sector.")
@click.option("--line", type=click.IntRange(min=1), help="With --explain: the source line to explain; by default the first load.")
@click.option("--program", metavar="X[,Y[,Z]]", help="With --explain: the program; by default the first that runs the line.")
@click.option("--timeout", "timeout_s", type=Seconds(min=1), default=600, show_default=True, help="Seconds for tracing, and for compiling.")
@json_option
def traffic(
    op: str,
    kernel: str,
    shape: str | None,
    dtype: str | None,
    config_words: tuple[str, ...],
    explain: bool,
    line: int | None,
    program: str | None,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Every load and store of a kernel of OP: bytes requested and unique, sectors per request, masked lanes, beside the op's model.

    Triton's interpreter runs the kernel program by program, in a process of its own, with random values; another process compiles it
    for Hopper and tells registers and shared memory. Neither needs a GPU. Exit code 1 when an access is out of bounds, when
    programs race for an address, or when an output is read before it is written.
    """
    from kernelyard.cli.traffic_choice import require_tracer, traced_point, typed_config
    from kernelyard.cli.traffic_text import show
    from kernelyard.measure import traffic_jobs
    from kernelyard.registry import registry

    everything = registry.current()
    contract, chosen = everything.op(op), everything.kernel(op, kernel)
    asked = _question(explain, line, program)
    require_tracer(everything, chosen)
    device = "cuda" if "cuda" in chosen.support.devices else chosen.support.devices[0]
    point = traced_point(everything, contract, chosen, device, shape, dtype)
    workload = contract.workload(point, device)
    config = typed_config(chosen, workload, config_words)
    payload = {"op": op, "kernel": kernel, "dims": list(point.dims), "dtype": point.dtype, "device": device, "config": dict(config)}
    say(f"tracing {kernel} of {op}, {workload.label()}, {config_text(config)}")
    report = _job(traffic_jobs.TRACE, {**payload, "question": asked}, {"TRITON_INTERPRET": "1"}, timeout_s)
    resources, reason = _resources(everything, chosen, payload, timeout_s)
    content = {
        "op": op, "kernel": kernel, "config": dict(config), "label": workload.label(),
        "workload": {"shapes": workload.shapes, "dtype": workload.dtype},
        **report, "resources": resources, "resources_reason": reason, "target": traffic_jobs.HOPPER,
    }  # fmt: skip
    if as_json:
        emit(content)
    else:
        show(content)
    return 1 if content["findings"] else 0


def _question(explain: bool, line: int | None, program: str | None) -> dict[str, Any] | None:
    from kernelyard.errors import UsageError

    if not explain:
        if line is not None or program is not None:
            raise UsageError("--line and --program choose what --explain shows.", do="Add --explain.")
        return None
    if program is None:
        return {"line": line, "program": None}
    words = program.split(",")
    if len(words) > 3 or not all(word.strip().isdigit() for word in words):
        raise UsageError(f"program '{program}' does not parse.", do="Give its id as x, x,y or x,y,z, such as --program 3 or --program 3,0.")
    return {"line": line, "program": [int(word) for word in words] + [0] * (3 - len(words))}


def _resources(everything: Registry, kernel: Kernel, payload: Mapping[str, Any], timeout_s: float) -> tuple[dict[str, Any] | None, str]:
    """What the compiled kernel takes, or why that can't be told."""
    from kernelyard.errors import KernelyardError
    from kernelyard.measure import traffic_jobs
    from kernelyard.registry.tracing import Compiler

    if not isinstance(everything.builder(kernel.backend), Compiler):
        return None, f"the backend '{kernel.backend}' compiles for no GPU that is not here"
    try:
        return _job(traffic_jobs.COMPILE, payload, {"TRITON_INTERPRET": "0"}, timeout_s), ""
    except KernelyardError as error:
        return None, str(error)


def _job(job: str, payload: Mapping[str, Any], environment: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
    """A job in a process of its own; raises Unsupported or BuildFailed with what it said."""
    from kernelyard.errors import BuildFailed, Unsupported
    from kernelyard.registry.spec import Status
    from kernelyard.verify.isolation import Worker

    with Worker(env=environment) as worker:
        outcome = worker.run(job, payload, timeout_s)
    if outcome.value is not None:
        return outcome.value
    if outcome.status is Status.UNSUPPORTED:
        raise Unsupported(outcome.reason)
    if outcome.status is Status.TIMED_OUT:
        raise Unsupported(f"{payload['kernel']}: {outcome.reason}.", do="Give a smaller --shape, or a longer --timeout.")
    raise BuildFailed(outcome.reason, log="" if outcome.status is Status.BUILD_FAILED else outcome.log)
