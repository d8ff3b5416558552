"""What runs in the worker process: build, check and time. JSON in, JSON out; built kernels stay in this process by id."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

import torch

from kernelyard.measure import device, roofline
from kernelyard.measure.arguments import last_level_cache_bytes
from kernelyard.measure.ceilings import best_copy
from kernelyard.measure.measured import Measured
from kernelyard.measure.occupancy import multiprocessor
from kernelyard.measure.protocol import PROTOCOL, Candidate, measure
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.machine import identity
from kernelyard.registry.spec import Status
from kernelyard.tuner.encoding import decode
from kernelyard.verify.oracle import LARGE, check_workload

_built: dict[str, tuple[Kernel, Candidate]] = {}
_alone = ExitStack()

COPY = "copy"


def build_job(payload: dict[str, Any]) -> dict[str, Any]:
    """Builds {id, op, kernel, config, workload} and keeps it. Raises BuildFailed."""
    everything, workload = registry.current(), decode(payload["workload"])
    kernel = everything.kernel(payload["op"], payload["kernel"])
    start = time.perf_counter()
    executable = everything.build(kernel, workload, payload["config"])
    _built[payload["id"]] = kernel, Candidate(payload["id"], everything.op(payload["op"]), workload, executable)
    return {"build_s": time.perf_counter() - start, "resources": dict(executable.resources)}


def check_job(payload: dict[str, Any]) -> dict[str, Any]:
    """Checks {id} on its own workload; the first fault met, or ok."""
    kernel, candidate = _built[payload["id"]]
    where = torch.device(candidate.workload.device)
    # Two sets of random values. For results of up to LARGE elements the oracle itself takes a second one.
    small = all(spec is None or spec.numel <= LARGE for _, spec in candidate.workload.tensors)
    for seed in (0,) if small else (0, 1):
        result = check_workload(candidate.op, kernel, candidate.executable, candidate.workload, device=where, seed=seed)
        if result.status is not Status.OK:
            return {"status": result.status, "reason": result.reason}
    return {"status": Status.OK, "reason": ""}


def hold_job(payload: dict[str, Any]) -> dict[str, Any]:
    """Waits until this process has {device} alone. A job of its own: waiting for others must not count as a hang."""
    _alone.enter_context(device.lock(identity(payload["device"]), waiting=lambda message: print(message, flush=True)))
    return {}


def ceilings_job(payload: dict[str, Any]) -> dict[str, Any]:
    """Measures the ceilings of {device}, which is held, unless they are kept from before."""
    try:
        roofline.ceilings(payload["device"])
    except BaseException:
        _alone.close()
        raise
    return {}


def time_job(payload: dict[str, Any]) -> dict[str, Any]:
    """Times {ids} against each other, interleaved, in {mode} with measure's {options}; lets the device go whatever happens.

    With {ceiling}, a copy of as many bytes runs among them. A device time that the device can't reach is named in `impossible`.
    """
    with _alone.pop_all():
        candidates = [_built[name][1] for name in payload["ids"]]
        copies = _copies(candidates[0]) if payload["ceiling"] else []
        measured = measure([*candidates, *copies], device_type=payload["device"], mode=payload["mode"], **payload["options"])
        impossible = _impossible(candidates, measured) if payload["mode"] == "device" else {}
    return {
        "protocol": PROTOCOL,
        "timings": {name: asdict(measured[name]) for name in payload["ids"]},
        "samples": {name: [list(batch) for batch in measured.samples[name]] for name in payload["ids"]},
        "notes": {name: measured.notes(name) for name in payload["ids"]},
        "impossible": impossible,
        "copy_us": measured[COPY].median_us if copies else None,
        "energy": asdict(measured.energy) if measured.energy else {},
    }


def itself_job(payload: dict[str, Any]) -> dict[str, Any]:
    """Times {id} against itself under another name; the ratio's interval, or None where there was no time to speak of."""
    candidate = _built[payload["id"]][1]
    pair = [candidate, replace(candidate, name="itself")]
    measured = measure(pair, device_type=payload["device"], **payload["options"])
    ratio = measured.ratio(candidate.name, "itself")
    return {"ratio": asdict(ratio) if ratio else None, "timing": asdict(measured[candidate.name])}


def facts_job(payload: dict[str, Any]) -> dict[str, Any]:
    """A CPU's {threads, cache_bytes}; a GPU's {multiprocessor, empty_us}: its limits (null where unknown), the time of the least copy."""
    if payload["device"] == "cpu":
        return {"threads": torch.get_num_threads(), "cache_bytes": last_level_cache_bytes()}
    machine = multiprocessor()
    return {"multiprocessor": None if machine is None else asdict(machine), "empty_us": best_copy(0, "cuda").median_us}


def _copies(candidate: Candidate) -> list[Candidate]:
    """The copy that is the ceiling of a candidate's workload; none where nothing has to move, or a GPU has no room for it."""
    nbytes = candidate.op.cost(candidate.workload).bytes
    if not nbytes or not roofline.copy_fits(nbytes, candidate.workload.device):
        return []
    return [roofline.copy_candidate(candidate.op, candidate.workload, COPY)]


def _impossible(candidates: list[Candidate], measured: Measured) -> dict[str, str]:
    """Candidates whose time is below what the device can do, with the figures."""
    found = {}
    for one in candidates:
        cost, workload = one.op.cost(one.workload), one.workload
        if reason := roofline.impossible(cost, measured[one.name], roofline.ceilings(workload.device)):
            found[one.name] = reason
    return found


def forget_job(payload: dict[str, Any]) -> dict[str, Any]:
    """Drops built kernels: all but {keep}."""
    for name in set(_built) - set(payload["keep"]):
        del _built[name]
    return {}
