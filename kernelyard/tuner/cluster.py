"""Tuning on the devices of a Ray cluster: an actor for each, those of one model searching one study together, one model after another."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from kernelyard.errors import MeasurementFailed, Unsupported, UsageError
from kernelyard.registry.machine import installed
from kernelyard.registry.spec import DeviceIdentity, Workload
from kernelyard.store.choices import listed
from kernelyard.tuner.answers import Asked
from kernelyard.tuner.fleet import Fleet
from kernelyard.tuner.progress import Listener, Tracker
from kernelyard.tuner.ray_device import RESOURCES, Greeting, RayDevice, sources
from kernelyard.tuner.report import TuneReport, WorkloadReport
from kernelyard.tuner.tune import check, reported, stopped

OPTIONS = {"cpu": {"num_cpus": 1}, "cuda": {"num_cpus": 0, "num_gpus": 1}}
"""What an actor with one device of a type asks for."""

CONNECT_S = 10.0

FREED_S = 10.0
"""For the devices of one op's actors to be free for the next op's: Ray tells so a second after they were killed."""


@dataclass(frozen=True)
class Devices:
    """Those of one type that were free when the command began."""

    type: str
    count: int


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Ray, for as long as this lasts; raises UsageError without the package or the cluster. 'local' begins a cluster of its own."""
    if not installed("ray"):
        raise UsageError("--ray needs Ray, which is not installed.", do="pip install 'kernelyard[ray]'")
    _refuse_silence(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unasked
    import ray

    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"no Ray cluster answers at {address!r}: {told}", do="Begin one: ray start --head") from error
    try:
        yield
    finally:
        ray.shutdown()


def _refuse_silence(address: str) -> None:
    """Ray itself tries for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        raise UsageError(f"no Ray cluster answers at {address!r}: {error.strerror or error}.", do="Begin one: ray start --head") from error


def devices(wanted: str | None) -> Devices:
    """Those of the type that was asked for, else GPUs where the cluster has one; raises UsageError where none of it is free."""
    free = _free()
    chosen = wanted or ("cuda" if free.get("GPU", 0) >= 1 else "cpu")
    if chosen not in RESOURCES:
        raise UsageError(f"no device type '{chosen}'.", exists=f"There are: {', '.join(RESOURCES)}.")
    if (count := int(free.get(RESOURCES[chosen], 0))) < 1:
        raise UsageError(f"the Ray cluster has no {RESOURCES[chosen]} free.", exists=f"Free: {_text(free)}.")
    return Devices(chosen, count)


def _free() -> dict[str, float]:
    import ray

    cluster: Any = ray  # whose function has no types
    return dict(cluster.available_resources())


def _text(free: dict[str, float]) -> str:
    return ", ".join(f"{count:g} {name}" for name, count in sorted(free.items()) if name in ("CPU", "GPU")) or "nothing"


def tune(asked: Asked, workloads: Sequence[Workload], among: Devices, progress: Listener) -> Generator[TuneReport, None, None]:
    """A report for each model among the cluster's devices, as it is finished, in a run of its own; `asked.device` is replaced by theirs.

    Raises Stopped on Ctrl-C, as `tune.tune` does, with the report of the model that was being tuned.
    """
    check(asked)
    with _actors(asked, among) as actors:
        for number, (model, mine) in enumerate(_models(asked, actors), 1):
            yield _tuned(replace(asked, device=model, run_id=f"{asked.run_id}-{number}"), mine, workloads, progress)


@contextmanager
def _actors(asked: Asked, among: Devices) -> Iterator[list[Any]]:
    """One for each device; they are gone when this ends."""
    import ray

    parts = ("kernels", "trials", "force", "matrix", "command", "limits", "sampler", "ending")
    remote: Any = ray.remote(RayDevice).options(**OPTIONS[among.type])
    count = _waited_for(among)
    actors = [remote.remote(asked.op.name, among.type, {part: getattr(asked, part) for part in parts}) for _ in range(count)]
    try:
        yield actors
    finally:
        for actor in actors:
            ray.kill(actor)


def _waited_for(among: Devices) -> int:
    """How many are free, at the latest FREED_S from now; raises MeasurementFailed where none is."""
    resource, until = RESOURCES[among.type], time.monotonic() + FREED_S
    while (count := int(_free().get(resource, 0))) < among.count and time.monotonic() < until:
        time.sleep(0.1)
    if not count:
        raise MeasurementFailed(f"no {resource} of the Ray cluster is free any more.", do="The same command goes on from there.")
    return min(count, among.count)


def _models(asked: Asked, actors: Sequence[Any]) -> list[tuple[DeviceIdentity, list[Any]]]:
    """The actors by their device's kind. Raises Unsupported where one would tune something else than this machine means."""
    import ray

    mine, found = sources(asked.registry, asked.op), dict[str, tuple[DeviceIdentity, list[Any]]]()
    for actor in actors:
        greeting: Greeting = ray.get(actor.greet.remote())
        if greeting.device is None:
            raise Unsupported(f"a node of the Ray cluster can't tune {asked.op.name}: {greeting.problem}")
        if greeting.sources != mine:
            where = greeting.device.name
            raise Unsupported(f"{asked.op.name} or its kernels differ on {where} and here.", do="Install the same kernelyard and plugins.")
        found.setdefault(greeting.device.key(), (greeting.device, []))[1].append(actor)
    return list(found.values())


def _tuned(asked: Asked, actors: Sequence[Any], workloads: Sequence[Workload], progress: Listener) -> TuneReport:
    from kernelyard.tuner.session import kept_in

    tracker = Tracker(asked.op.name, 0, len(workloads), progress)
    fleet = Fleet(asked, actors, lambda message: tracker.say("waiting", message=message))
    reports: list[WorkloadReport] = []
    tracker.watch(fleet.spent)
    try:
        with closing(fleet), kept_in(asked, fleet) as session:
            near = [one for one in listed(asked.op.name) if one.device_key == asked.device.key()] if not asked.force else []
            plans = [fleet.plan(workload, near) for workload in workloads]
            tracker.total = sum(plan.trials for plan in plans)
            for plan in plans:
                tracker.begin(plan.workload)
                reports.append(session.workload(plan, tracker))
                if session.stopped:
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise stopped(asked, reports, tracker) from None
    return reported(asked, reports)
