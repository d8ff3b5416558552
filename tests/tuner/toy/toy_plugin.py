"""An op whose kernels misbehave on request: y = 2 x. `work` makes a config slower without making it wrong."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernelyard.errors import BuildFailed
from kernelyard.registry.backend import Backend, Executable, writing
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Op, Point
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import YES, Answer, Config, Cost, TensorSpec, Tolerance, Workload
from kernelyard.tuner.limits import Limits

ONCE = {"batches": 3, "most_batches": 3, "budget_s": 0.05}
QUICK = Limits(check_s=10.0, finals=ONCE, again=ONCE, call=ONCE)
"""Finals as short as trials: what is compared here differs by factors. A hang ends after 10 s; a right check takes 0.2 s."""

EVERYWHERE = Support(("cpu",), ("float32",))


def _into(config: Config) -> Callable[..., None]:
    behaviour, work = config.get("behaviour", "right"), int(config.get("work", 1))
    calls = itertools.count()

    def into(outputs: Any, x: Any) -> None:
        called = next(calls)
        if behaviour == "idle" and called > 20:  # right while it is checked, and then does nothing any more
            return
        for _ in range(work):
            torch.mul(x, 2, out=outputs[0])
        if behaviour in MISDEEDS:
            MISDEEDS[behaviour](called)
        elif behaviour == "wrong":
            outputs[0].add_(1)
        elif behaviour == "raise":
            raise RuntimeError("this kernel always raises")
        elif behaviour == "segfault":
            import ctypes

            ctypes.string_at(0)
        elif behaviour == "hang":
            while True:
                pass
        elif behaviour == "exit":
            os._exit(7)

    return into


def _segfault() -> None:
    import ctypes

    print("about to crash", flush=True)
    ctypes.string_at(0)


def _hang() -> None:
    print("about to hang", flush=True)
    threading.Event().wait()


def _take_memory() -> None:
    """A quarter of a gigabyte at a time, up to 16; never touched, so that without a limit nobody suffers and the config is right."""
    import numpy

    print("about to take memory", flush=True)
    taken = [numpy.empty(1 << 28, numpy.uint8) for _ in range(64)]
    del taken


def _flood(mib: int) -> None:
    for _ in range(mib):
        os.write(1, b"x" * (1 << 20))
    print("\nthe last words", flush=True)


def _leave(code: object) -> None:
    print("about to leave", flush=True)
    sys.exit(code)  # type: ignore[arg-type]


def _leave_at_once() -> None:
    os.write(2, b"about to leave\n")
    os._exit(7)


def _late(called: int) -> None:
    if called > 100:  # a check has some tens of calls, timing has thousands
        _segfault()


MISDEEDS: dict[str, Callable[[int], None]] = {
    "segfault_in_a_call": lambda called: _segfault(),
    "segfault_when_timed": _late,
    "hang_in_a_call": lambda called: _hang(),
    "memory": lambda called: _take_memory(),
    "os_exit": lambda called: _leave_at_once(),
    "sys_exit": lambda called: _leave("no more"),
    "system_exit": lambda called: _leave(0),
    "flood": lambda called: _flood(4 if called < 3 else 0) if called < 4 else None,
    "flood_for_ever": lambda called: _flood(1 << 20),
}
BUILDS: dict[str, Callable[[], None]] = {"hang_in_a_build": _hang, "segfault_in_a_build": _segfault}
SOLITARY = ("slow", "right", "wrong", "raise", "build_failed", *MISDEEDS, *BUILDS)
"""Of one kernel: the default is right and slow, `right` is the fastest."""


class Builder:
    """Builds nothing, and writes one line a build where TOY_LOG says."""

    def versions(self) -> Mapping[str, str]:
        return {"toy": os.environ.get("TOY_VERSION", "1")}

    def build(self, op: Op, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        if "TOY_LOG" in os.environ:
            with Path(os.environ["TOY_LOG"]).open("a") as log:
                log.write(f"{kernel.name} {dict(config)}\n")
        behaviour = config.get("behaviour")
        if behaviour == "build_failed":
            raise BuildFailed("the toy does not compile.", log="toy.c:1: error: no such toy")
        if behaviour in BUILDS:
            BUILDS[str(behaviour)]()
        slow = 20 if behaviour in ("slow", *MISDEEDS) else 1
        work = 40 if kernel.name == "toy.eager" else config.get("work", slow)
        return writing(op, _into({**config, "work": work}))


builder = Builder()


def probe(device: str, purpose: str) -> Answer:
    return YES


def unused(workload: Workload, config: Config) -> None:
    """Every kernel's entry; the builder needs none."""


def _kernel(name: str, op: str = "twice", **more: Any) -> Kernel:
    return Kernel(name, op, "toy", "twice x", "toy_plugin:unused", EVERYWHERE, **more)


def _behaviours(*values: str) -> Parameter:
    return Parameter("behaviour", values, "what the test is about")


def _op(name: str) -> Op:
    return Op(
        name=name,
        summary="twice x",
        schema="(Tensor x) -> Tensor",
        dims=("n",),
        dtypes=("float32",),
        tensors=lambda sizes, dtype, statics: {"x": TensorSpec((sizes["n"],), dtype)},
        sizes=lambda specs: {"n": specs["x"].numel},  # type: ignore[union-attr]
        validate=lambda x: None,
        empty=lambda x: (torch.empty_like(x),),
        reference=lambda x: x * 2,
        inputs=lambda workload, generator: (torch.randn(workload["x"].shape, generator=generator),),
        tolerance=lambda workload: Tolerance(1e-6, 0.0, "one rounding"),
        cost=lambda workload: Cost(8 * workload["x"].numel, workload["x"].numel),
        matrices={"performance/cpu": (Point((20_000,), "float32"),)},
        filled=("x",),
        collapse=1,
        fallback="toy.eager",
    )


WORK = Parameter("work", (1, 2, 3, 5, 8, 13), "how slow")
SMALL = Constraint(lambda config, workload: int(config["work"]) < 3, "work must be below 3")
LARGE = Constraint(lambda config, workload: int(config["work"]) > 5, "work must be above 5")
plugin = Plugin(
    name="toy",
    ops=tuple(map(_op, ("twice", "hopeless", "many", "interrupted", "plain", "idle", "sized", "misbehaving", "greedy", "empty"))),
    backends=(Backend("toy", "a toy", ("cpu",), "toy_plugin:probe", "toy_plugin:builder"),),
    kernels=(
        _kernel("toy.eager"),
        _kernel(
            "toy.tuned",
            space=ConfigSpace(
                (
                    _behaviours("right", "wrong", "raise", "segfault", "hang", "exit", "build_failed"),
                    Parameter("work", (20, 1), "the default is slow"),
                ),
                (Constraint(lambda c, w: c["behaviour"] == "right" or c["work"] == 1, "misbehaviour needs no work"),),
            ),
        ),
        _kernel("toy.other", space=ConfigSpace()),
        _kernel("toy.eager", "hopeless"),
        _kernel("toy.tuned", "hopeless", space=ConfigSpace((_behaviours("wrong", "raise", "build_failed"),))),
        _kernel("toy.eager", "many"),
        _kernel("toy.tuned", "many", space=ConfigSpace((WORK,), default=lambda w: {"work": 3}, hints=lambda w: ({"work": 5},))),
        _kernel("toy.eager", "interrupted"),
        _kernel("toy.tuned", "interrupted", space=ConfigSpace((WORK,))),
        _kernel("toy.eager", "greedy"),
        _kernel("toy.tuned", "greedy", space=ConfigSpace((_behaviours("right", "memory"),))),
        _kernel("toy.eager", "plain"),
        _kernel("toy.eager", "sized"),
        _kernel("toy.tuned", "sized", space=ConfigSpace((Parameter("work", (100, 50, 1), "all but one are slow by far"),))),
        _kernel("toy.eager", "idle"),
        _kernel("toy.eager", "misbehaving"),
        _kernel("toy.tuned", "misbehaving", space=ConfigSpace((_behaviours(*SOLITARY),))),
        _kernel("toy.eager", "empty"),
        _kernel("toy.tuned", "empty", space=ConfigSpace((WORK,), (SMALL, LARGE))),
        _kernel("toy.tuned", "idle", space=ConfigSpace((_behaviours("idle"),))),
    ),
)
