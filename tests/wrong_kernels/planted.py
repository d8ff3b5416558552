"""A plugin of rmsnorm kernels with planted faults, for `repro` and `boundary`; with PLANTED_FIXED in the environment they are right."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kernelyard.registry.backend import Backend, Executable, writing
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.lazy import load
from kernelyard.registry.machine import cuda_ready
from kernelyard.registry.op import Op
from kernelyard.registry.spec import YES, Answer, Config, Workload

FIXED = "PLANTED_FIXED" in os.environ
DEVICES = ("cpu", "cuda")
REALLY_MOST = 1000
"""Columns that `too_wide` gets right."""

Into = Callable[..., None]


def store(outputs: tuple[Tensor, ...], x: Tensor, w: Tensor, factor: Tensor) -> None:
    outputs[0].copy_(x.float() * factor * w.float())


def factor(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)


def mask_off_by_one(outputs: tuple[Tensor, ...], x: Tensor, w: Tensor, eps: float, *rest: Any) -> None:
    cols = x.shape[-1]
    total = x[:, : cols if FIXED else cols - 1].float().square().sum(-1, keepdim=True)
    store(outputs, x, w, torch.rsqrt(total / cols + eps))


def store_out_of_bounds(outputs: tuple[Tensor, ...], x: Tensor, w: Tensor, eps: float, *rest: Any) -> None:
    """Past the end, for rows of more than 4 columns that are no multiple of 4."""
    store(outputs, x, w, factor(x, eps))
    y = outputs[0]
    if not FIXED and y.shape[-1] > 4 and y.shape[-1] % 4:
        y.as_strided((1,), (1,), y.storage_offset() + y.numel()).fill_(1.0)


def eps_outside_the_root(outputs: tuple[Tensor, ...], x: Tensor, w: Tensor, eps: float, *rest: Any) -> None:
    mean = x.float().square().mean(-1, keepdim=True)
    store(outputs, x, w, torch.rsqrt(mean + eps) if FIXED else 1 / (mean.sqrt() + eps))


def segfault(outputs: tuple[Tensor, ...], x: Tensor, w: Tensor, eps: float, *rest: Any) -> None:
    if not FIXED:
        ctypes.memset(8, 0, 1)
    store(outputs, x, w, factor(x, eps))


def hang(outputs: tuple[Tensor, ...], x: Tensor, w: Tensor, eps: float, *rest: Any) -> None:
    if not FIXED:
        threading.Event().wait()
    store(outputs, x, w, factor(x, eps))


def too_wide(outputs: tuple[Tensor, ...], x: Tensor, w: Tensor, eps: float, *rest: Any) -> None:
    store(outputs, x, w, factor(x[:, :REALLY_MOST], eps))


def right(outputs: tuple[Tensor, ...], x: Tensor, w: Tensor, eps: float, *rest: Any) -> None:
    store(outputs, x, w, factor(x, eps))


class Builder:
    """An entry's function is the kernel; it writes into given outputs."""

    def versions(self) -> Mapping[str, str]:
        return {}

    def build(self, op: Op, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        into: Into = load(kernel.entry)
        return writing(op, into)


def probe(device: str, purpose: str) -> Answer:
    return cuda_ready() if device == "cuda" else YES


def plain_meaning(workload: Workload) -> Answer:
    return YES if workload.static("casting") == "fp32" and not workload.static("offset") else Answer(False, "fp32 casting, no offset")


def _kernel(name: str, entry: str = "", **support: Any) -> Kernel:
    envelope = {"unit_last_stride": False, "predicates": (plain_meaning,), **support}
    reference = f"tests.wrong_kernels.planted:{entry or name}"
    return Kernel(f"planted.{name}", "rmsnorm", "planted", "planted", reference, Support(DEVICES, ("float32", "bfloat16"), **envelope))


builder = Builder()
plugin = Plugin(
    "planted",
    kernels=(
        *map(_kernel, ("mask_off_by_one", "store_out_of_bounds", "eps_outside_the_root", "segfault", "hang", "no_such_function")),
        _kernel("too_wide", most={"cols": 4096}),
        _kernel("too_narrow", "right", most={"cols": 512}),
    ),
    backends=(Backend("planted", "planted", DEVICES, "tests.wrong_kernels.planted:probe", "tests.wrong_kernels.planted:builder"),),
)
