"""A child process in which a kernel may segfault, hang, flood its output or end the process, and nothing else suffers.

The parent sends one JSON line a job and gets one back, over pipes of their own; what the job prints goes to a third
pipe, of which the last 64 KiB are kept. A child lives until it dies or is killed, then the next job gets a new one.
`child` has the other side.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kernelyard.registry.spec import Status

LOG_BYTES = 64 * 1024
"""Of what a job prints; a compiler's errors fit, a flood does not."""

LOOK_S = 0.1
"""Between two looks at a child's resident memory: one core fills some 70 MB meanwhile, at 0.7 GB/s of new pages."""

MOST_REPLY_BYTES = 64 << 20
"""Of one reply: a job that floods whatever pipe it finds must not fill our memory."""

MOST_ENDING_S = 30
"""For a process that is going: its pipes close before the driver has taken down its CUDA context, which may take seconds."""

IMPORT_LIMIT_S = 180.0
"""For importing the job's module, torch with it: 3 s on an idle machine, once more than 60 s on a crowded one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended. `value` is what it returned; `reason` says in a sentence why there is none.

    `log` is the tail of its stdout and stderr. `seconds` is the job alone, without start and imports.
    """

    status: Status
    value: dict[str, Any] | None
    log: str
    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """How much memory a child may take, so that a greedy kernel meets its own limit and not the out-of-memory killer.

    data_bytes       of private writable memory, kept by the system (RLIMIT_DATA): an allocation beyond it fails inside the child, at once.
                     For the CPU only: a CUDA context maps far more than it uses, and in which way is the driver's affair.
                     Not RLIMIT_AS, which counts torch's libraries and what threads only reserve
    resident_bytes   of anonymous memory that is really there, looked at from here every 0.1 s: beyond it the child is killed. Linux alone
                     tells. Memory of the GPU needs no limit: want of it is an error of the driver, and nobody else's process dies
    """

    data_bytes: int | None = None
    resident_bytes: int | None = None


class Worker:
    """Runs jobs in a child process, one at a time; a context manager, because the child must not outlive it.

    env            variables to add to the child's environment: {"TRITON_INTERPRET": "1"}
    log            a file to which the output of jobs that failed is appended
    memory      what the child may take; by default all there is
    """

    def __init__(self, env: Mapping[str, str] | None = None, log: Path | None = None, memory: MemoryLimit | None = None) -> None:
        self._env, self._log, self._memory = dict(env or {}), log, memory or MemoryLimit()
        self._child: _Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is no child."""
        return self._child.process.pid if self._child is not None else None

    def run(self, job: str, payload: Mapping[str, Any], timeout_s: float) -> Outcome:
        """Runs `job`, 'package.module:function' of one dict that returns a dict; never raises for what the job does.

        CRASHED has the signal, exit code or exception; TIMED_OUT means that the job and all it started were killed.
        """
        token = secrets.token_hex(8)  # a job that writes to every pipe it finds has not answered
        request = json.dumps({"job": job, "payload": dict(payload), "token": token})
        try:
            outcome = self._exchange(request, token, timeout_s)
        except BaseException:  # Ctrl-C too: the child has a session of its own and would not hear of it
            self.close()
            raise
        if outcome.status is not Status.OK and self._log is not None:
            with self._log.open("a") as file:
                file.write(f"{job}: {outcome.status}: {outcome.reason}\n{outcome.log}\n")
        return outcome

    def close(self) -> None:
        """Kills the child and what it started. The next `run` gets a new one: do this after a kernel that wrote astray."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _exchange(self, request: str, token: str, timeout_s: float) -> Outcome:
        if self._child is not None and self._child.process.poll() is not None:
            self.close()
        if self._child is None:
            self._child = _Child(self._env, self._memory)
        child = self._child
        child.send(request, token)
        started = time.monotonic()
        reply = child.receive(started + IMPORT_LIMIT_S)
        limit_s = IMPORT_LIMIT_S
        if reply is not None and reply.get("started"):
            started, limit_s = time.monotonic(), timeout_s
            reply = child.receive(started + timeout_s)
        seconds = time.monotonic() - started
        if reply is None:
            return self._broken(child, limit_s, seconds)
        if reply.get("last"):
            self.close()
        return Outcome(Status(reply["status"]), reply["value"], child.log(), seconds, reply["reason"])

    def _broken(self, child: _Child, limit_s: float, seconds: float) -> Outcome:
        """No reply came: the child hangs or is dead."""
        hangs = not child.ended and not child.excess
        if not hangs and not child.excess:
            _wait(child.process)
        code = child.process.poll()
        self.close()
        if child.excess:
            return Outcome(Status.CRASHED, None, child.log(), seconds, f"out of memory: {child.excess}; killed")
        if hangs:
            return Outcome(Status.TIMED_OUT, None, child.log(), seconds, f"still running after {limit_s:g} s; killed")
        return Outcome(Status.CRASHED, None, child.log(), seconds, _death(code))


class _Child:
    """One child process and its pipes: requests, replies, what it prints, and one whose end means that we died."""

    def __init__(self, env: Mapping[str, str], memory: MemoryLimit) -> None:
        request_read, self._request = os.pipe()
        self._reply, reply_write = os.pipe()
        self._output, output_write = os.pipe()
        lifeline_read, self._lifeline = os.pipe()
        theirs = (request_read, reply_write, lifeline_read, output_write)
        # -P: the folder that the user stands in must not shadow torch; our own sys.path goes along instead.
        numbers = [str(number) for number in (*theirs[:3], memory.data_bytes or 0)]
        command = [sys.executable, "-P", "-m", "kernelyard.verify.isolation", *numbers]
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output_write, stderr=output_write, pass_fds=theirs[:3],
                start_new_session=True, env={**os.environ, "PYTHONPATH": path, **env},
            )  # fmt: skip
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        os.set_blocking(self._output, False)
        self.ended, self.excess = False, ""
        self._resident_bytes, self._next_look = memory.resident_bytes, 0.0
        self._printed = bytearray()
        self._replies = bytearray()
        self._token = ""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._reply, selectors.EVENT_READ)
        self._selector.register(self._output, selectors.EVENT_READ)

    def send(self, request: str, token: str) -> None:
        self._token = token
        self._printed.clear()
        with contextlib.suppress(BrokenPipeError):  # it died: `receive` sees the end of its pipe
            view = memoryview(request.encode() + b"\n")
            while view:
                view = view[os.write(self._request, view) :]

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """The next reply; None at the deadline, once the child has closed its side (`ended`) or has taken too much memory (`excess`)."""
        step_s = LOOK_S if self._resident_bytes else 1.0
        while (reply := self._next_reply()) is None:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or self._greedy():
                return None
            dead = self.process.poll() is not None  # asked before its pipes: what it wrote last is still read
            ready = self._selector.select(min(remaining, 0.0 if dead else step_s))
            for key, _ in ready:
                if key.fd == self._output:
                    self.drain()
                elif not self._receive_some():
                    self.ended = True
                    return None
            if dead and not ready:  # a process that it left behind holds its pipes
                self.ended = True
                return None
        self.drain()
        return reply

    def _greedy(self) -> bool:
        """Whether it has taken more than it may; looked at now and then."""
        if self._resident_bytes is None or time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + LOOK_S
        taken = resident_bytes(self.process.pid)
        if taken > self._resident_bytes:
            self.excess = f"{taken / 1e9:.1f} GB of {self._resident_bytes / 1e9:.1f} GB were taken"
        return bool(self.excess)

    def _next_reply(self) -> dict[str, Any] | None:
        while b"\n" in self._replies:
            line, _, rest = self._replies.partition(b"\n")
            self._replies = bytearray(rest)
            with contextlib.suppress(ValueError):
                reply = json.loads(line)
                if isinstance(reply, dict) and reply.get("token") == self._token:
                    return reply
        return None

    def _receive_some(self) -> bool:
        content = os.read(self._reply, 1 << 16)
        self._replies += content
        return bool(content) and len(self._replies) <= MOST_REPLY_BYTES

    def drain(self) -> None:
        """Takes what was printed so far, at most 16 MiB at a time, and keeps the tail."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(256):
                content = os.read(self._output, 1 << 16)
                if not content:
                    if self._output in self._selector.get_map():
                        self._selector.unregister(self._output)
                    return
                self._printed += content
                del self._printed[:-LOG_BYTES]

    def log(self) -> str:
        return self._printed.decode(errors="replace").strip()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its pid names the group: it leads a session
        self.process.wait()
        self.drain()
        self._selector.close()
        for descriptor in (self._request, self._reply, self._output, self._lifeline):
            os.close(descriptor)


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Until it has ended, or is seen to live on without its pipes."""
    for _ in range(MOST_ENDING_S):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        if process.returncode is not None or not ending(process.pid):
            return


def ending(pid: int) -> bool:
    """Whether the system is taking the process down: it has no memory any more. Linux alone tells."""
    try:
        return Path(f"/proc/{pid}/statm").read_text().startswith("0 ")
    except OSError:
        return False


def resident_bytes(pid: int) -> int:
    """Anonymous memory of a process that is really there: resident pages but those of files and shared ones; 0 where Linux doesn't tell."""
    try:
        resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _death(code: int | None) -> str:
    if code is None:
        return "the kernel closed the pipe to its checker"
    if code >= 0:
        return f"the kernel ended the process with code {code}"
    name = signal.Signals(-code).name
    words = {"SIGSEGV": "segmentation fault", "SIGABRT": "abort", "SIGFPE": "arithmetic fault", "SIGILL": "illegal instruction",
             "SIGBUS": "bus error", "SIGKILL": "killed, perhaps for want of memory"}  # fmt: skip
    return f"{words.get(name, 'killed by a signal')} ({name})"


if __name__ == "__main__":
    from kernelyard.verify.child import serve

    serve(*(int(number) for number in sys.argv[1:5]))
