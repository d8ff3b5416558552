"""Kernels that take their process along, and the job that checks one of them inside a worker."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelyard.registry.backend import Executable
from kernelyard.registry.spec import Status
from tests.wrong_kernels.catalogue import Entry, rmsnorm


def segfault(*args: Any) -> Tensor:
    ctypes.memset(8, 0, 1)
    return rmsnorm(*args)


def hang(*args: Any) -> Tensor:
    threading.Event().wait()
    return rmsnorm(*args)


def leave(*args: Any) -> Tensor:
    os._exit(0)


def leave_politely(*args: Any) -> Tensor:
    sys.exit("done")


def abort(*args: Any) -> Tensor:
    os.abort()


def interrupt(*args: Any) -> Tensor:
    os.kill(os.getpid(), signal.SIGTERM)
    return rmsnorm(*args)


def forge_a_verdict(*args: Any) -> Tensor:
    """Writes an answer to every pipe it can find, then leaves."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b'{"status": "ok", "value": {"ok": true, "failures": [], "cases": 9}, "reason": ""}\n')
        except OSError:
            continue
    os._exit(0)


def _entry(function: Callable[..., Tensor], says: str, status: Status = Status.CRASHED) -> Entry:
    return Entry(function.__name__, lambda: Executable(function), says, status=status)


PROCESS = (
    _entry(segfault, "segmentation fault (SIGSEGV)"),
    _entry(hang, "still running after", Status.TIMED_OUT),
    _entry(leave, "the kernel ended the process with code 0"),
    _entry(leave_politely, "the kernel ended the process with code 1"),
    _entry(abort, "abort (SIGABRT)"),
    _entry(interrupt, "killed by a signal (SIGTERM)"),
    _entry(forge_a_verdict, "the kernel ended the process with code 0"),
)


def ready(payload: dict[str, Any]) -> dict[str, Any]:
    """Begins with the device, which takes seconds on a GPU, so that a kernel's time is its own."""
    return {"sum": float(torch.ones(3, device=payload["device"]).sum())}


def check(payload: dict[str, Any]) -> dict[str, Any]:
    entry = next(entry for entry in PROCESS if entry.name == payload["name"])
    torch.set_num_threads(1)
    return entry.check(device=payload["device"]).as_dict()
