"""The child's side of `isolation`: reads one job a line, runs it, answers in one line, dies with its parent."""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

from kernelyard.errors import BuildFailed, KernelyardError, Unsupported
from kernelyard.registry.lazy import load
from kernelyard.registry.spec import Status
from kernelyard.verify.machine import is_out_of_memory, out_of_memory

F_SETSIG = 10  # Linux; Python's fcntl does not name it


def serve(request: int, reply: int, lifeline: int, data_bytes: int) -> None:
    """Answers requests until the parent closes the pipe."""
    _die_with_parent(lifeline)
    faulthandler.enable()  # a crash then ends with the Python stack that led to it
    if data_bytes:
        _limit_memory(data_bytes)
    for descriptor in (request, reply, lifeline):
        os.set_inheritable(descriptor, False)
    with open(request, encoding="utf-8") as requests, open(reply, "w", encoding="utf-8") as replies:
        while line := requests.readline():
            _answer(json.loads(line), replies)


def _answer(request: dict[str, Any], replies: TextIO) -> None:
    token = request["token"]
    try:
        job = load(request["job"])
        _send(replies, {"token": token, "started": True})
        result: dict[str, Any] = {"status": Status.OK, "value": _checked(job, request["payload"]), "reason": ""}
    except SystemExit as error:
        _leave(error.code)
    except Exception as error:
        traceback.print_exc()
        last = is_out_of_memory(error) or _device_is_suspect()  # what it took by then may still be held
        result = {"status": _status(error), "value": None, "reason": _words(error), "last": last}
    sys.stdout.flush()
    sys.stderr.flush()
    _send(replies, {"token": token, **result})


def _leave(code: object) -> NoReturn:
    """As the kernel asked, and as Python does it: nothing is 0, words are printed and are 1. The parent sees and says so."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if code is None else code & 0xFF if isinstance(code, int) else 1)


def _checked(job: Callable[[dict[str, Any]], Any], payload: dict[str, Any]) -> dict[str, Any]:
    value = job(payload)
    if not isinstance(value, dict):
        raise TypeError(f"the job returned {type(value).__name__}, not a dict")
    json.dumps(value)
    return value


def _send(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _status(error: Exception) -> Status:
    if isinstance(error, BuildFailed):
        return Status.BUILD_FAILED
    return Status.UNSUPPORTED if isinstance(error, Unsupported) else Status.CRASHED


def _words(error: Exception) -> str:
    if is_out_of_memory(error):
        return out_of_memory(error)
    return str(error) if isinstance(error, KernelyardError) else f"{type(error).__name__}: {error}"


def _device_is_suspect() -> bool:
    """After an error a CUDA context may refuse everything: a process that holds one is not used again."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _limit_memory(limit_bytes: int) -> None:
    import resource

    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = limit_bytes if most == resource.RLIM_INFINITY else min(limit_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, most))  # the user's own may be lower


def _die_with_parent(lifeline: int) -> None:
    """Nothing is ever written to this pipe, and the parent alone holds its other side: its end kills the whole group.

    On Linux the kernel sends the signal itself, so a job that never lets go of the interpreter lock dies too
    (PR_SET_PDEATHSIG would not do: it fires when the parent's *thread* ends). Elsewhere a thread watches.
    """
    poll = select.poll()
    poll.register(lifeline, select.POLLHUP)
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        if poll.poll(0):
            os.killpg(0, signal.SIGKILL)
    else:
        threading.Thread(target=lambda: (poll.poll(), os.killpg(0, signal.SIGKILL)), daemon=True).start()
