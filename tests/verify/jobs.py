"""Jobs that do to a worker what bad kernels do."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
from typing import Any

from kernelyard.errors import BuildFailed, Unsupported

Payload = dict[str, Any]


def echo(payload: Payload) -> Payload:
    return {"pid": os.getpid(), **payload}


def environment(payload: Payload) -> Payload:
    return {"value": os.environ.get(payload["name"])}


def printing(payload: Payload) -> Payload:
    print("to stdout")
    print("to stderr", file=sys.stderr)
    os.system("echo from a grandchild")
    return {}


def segfault(payload: Payload) -> Payload:
    print("about to crash", flush=True)
    ctypes.string_at(0)
    return {}


def leave(payload: Payload) -> Payload:
    if payload["how"] == "os":
        os._exit(payload["code"])
    sys.exit(payload["code"])


def hang(payload: Payload) -> Payload:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(payload["pids"], "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    threading.Event().wait()
    return {}


def hold_the_interpreter_lock(payload: Payload) -> Payload:
    with open(payload["pids"], "w") as file:
        file.write(f"{os.getpid()}")
    return {"sum": sum(range(10**12))}


def flood(payload: Payload) -> Payload:
    while True:
        os.write(1, b"x" * 65536)


def raise_build_failed(payload: Payload) -> Payload:
    raise BuildFailed("did not compile", log="error: expected ';'")


def raise_unsupported(payload: Payload) -> Payload:
    raise Unsupported("no AVX-512 here")


def raise_value_error(payload: Payload) -> Payload:
    raise ValueError("bad tile")


def nonsense(payload: Payload) -> Payload:
    return {"value": object()}


def close_everything(payload: Payload) -> Payload:
    os.closerange(3, 256)
    threading.Event().wait()
    return {}


def fill_memory(payload: Payload) -> Payload:
    return {"n": len(bytearray(8 << 30))}


def reserve_memory(payload: Payload) -> Payload:
    import mmap

    return {"n": len(mmap.mmap(-1, 8 << 30, prot=mmap.PROT_READ))}


def fill_memory_slowly(payload: Payload) -> Payload:
    print("took what it could", flush=True)
    taken = []
    for _ in range(2000):  # 2 GB, and then it waits: whoever watches has the time to see it
        taken.append(b"x" * (1 << 20))
    threading.Event().wait()
    return {}


def flood_every_pipe(payload: Payload) -> Payload:
    while True:
        for descriptor in range(3, 64):
            with contextlib.suppress(OSError):
                os.set_blocking(descriptor, False)
                os.write(descriptor, b"x" * 65536)


def leave_a_child_and_crash(payload: Payload) -> Payload:
    if os.fork() == 0:
        threading.Event().wait()
    os._exit(5)
