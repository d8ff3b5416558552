"""`doctor`: what this machine has, whether each backend really builds and runs a kernel, and what to do where not."""

from __future__ import annotations

import platform
import sys
from typing import Any

import click

from kernelyard.cli.output import device_option, emit, json_option, say, table

PROBE_OP = "vector_add"
PROBE_LIMIT_S = 300.0


@click.command(epilog="Example: kernelyard doctor")
@device_option
@json_option
def doctor(device: str | None, as_json: bool) -> int:
    """Check the machine, the plugins, the store, and each backend by building and checking a small kernel with it.

    Exit code 1 when a plugin, the store or an available backend has a problem; a backend that is merely absent is none.
    """
    from kernelyard.registry import registry
    from kernelyard.registry.machine import check_device, identity

    device = check_device(device)
    everything = registry.current()
    backends = [_try_backend(name, device, as_json) for name in sorted(everything.backends)]
    store = _store()
    problems = [{"plugin": p.plugin, "distribution": p.distribution, "reason": p.reason} for p in everything.problems]
    content: dict[str, Any] = {
        "device": {"type": device, "name": identity(device).name, "key": identity(device).key()},
        "versions": _versions(),
        "store": store,
        "backends": backends,
        "problems": problems,
    }
    if as_json:
        emit(content)
    else:
        _show(content)
    bad = problems or not store["ok"] or any(backend["status"] not in ("ok", "unavailable") for backend in backends)
    return 1 if bad else 0


def _versions() -> dict[str, str]:
    from kernelyard.store.results import versions

    return {"python": platform.python_version(), "platform": platform.platform(), **versions()}


def _store() -> dict[str, Any]:
    from kernelyard.errors import KernelyardError
    from kernelyard.registry.home import home_path
    from kernelyard.store.database import open_store

    try:
        with open_store() as store:
            return {"ok": True, "home": str(home_path()), "choices": len(store.choices()), "runs": len(store.runs())}
    except KernelyardError as error:
        return {"ok": False, "home": str(home_path()), "reason": str(error)}


def _try_backend(name: str, device: str, quiet: bool) -> dict[str, Any]:
    """Build and check one small kernel of the backend in a process of its own."""
    from kernelyard.registry import registry
    from kernelyard.verify.isolation import Worker
    from kernelyard.verify.jobs import check_isolated

    everything = registry.current()
    op = everything.op(PROBE_OP)
    answer = everything.backend(name).available(device, "run")
    if not answer:
        return {"backend": name, "status": "unavailable", "reason": answer.reason}
    kernel = next((k for k in everything.kernels(PROBE_OP) if k.backend == name and device in k.support.devices), None)
    if kernel is None:
        return {"backend": name, "status": "ok", "reason": f"available; it has no {PROBE_OP} kernel to try"}
    if not quiet:
        say(f"trying {kernel.name}")
    with Worker() as worker:
        report = check_isolated(worker, op, kernel, op.matrix("smoke", device), device, timeout_s=PROBE_LIMIT_S)
    if not report.ok:
        status, reason = (report.failures[0].status, report.failures[0].reason) if report.failures else ("unsupported", report.reason)
        return {"backend": name, "status": str(status), "reason": f"{kernel.name}: {reason}"}
    seen = f"{kernel.name} built and right in {report.cases} cases, {report.seconds:.1f} s"
    return {"backend": name, "status": "ok", "reason": seen}


def _show(content: dict[str, Any]) -> None:
    device, store = content["device"], content["store"]
    print(f"device   {device['name']} ({device['key']})")
    print("versions " + ", ".join(f"{name} {version}" for name, version in content["versions"].items()))
    state = f"{store['choices']} choices, {store['runs']} runs" if store["ok"] else f"problem: {store['reason']}"
    print(f"store    {store['home']}: {state}")
    table("", ("backend", "status", "what was seen"), [(b["backend"], b["status"], b["reason"]) for b in content["backends"]])
    for problem in content["problems"]:
        print(f"problem: {problem['plugin']} ({problem['distribution']}): {problem['reason']}")
    sys.stdout.flush()
