"""Kernels that remember, run late, differ from run to run, leak or meddle."""

from __future__ import annotations

import io
import os
import random
import sys
import time
import warnings
from collections.abc import Callable

import numpy
import torch
from torch import Tensor

from kernelyard.registry.backend import Executable
from tests.wrong_kernels.catalogue import Entry, rmsnorm


def cached_by_address() -> Executable:
    results: dict[tuple[int, ...], Tensor] = {}

    def call(x, w, *rest):
        key = (x.data_ptr(), w.data_ptr(), *x.shape, *x.stride())
        if key not in results:
            results[key] = rmsnorm(x, w, *rest)
        return results[key].clone()

    return Executable(call)


def cached_by_shape() -> Executable:
    results: dict[torch.Size, Tensor] = {}

    def call(x, w, *rest):
        return results.setdefault(x.shape, rmsnorm(x, w, *rest)).clone()

    return Executable(call)


def first_addresses_for_ever() -> Executable:
    first: list[tuple] = []

    def call(*args):
        first.append(args)
        return rmsnorm(*first[0])

    return Executable(call)


def writes_after_it_returned() -> Executable:
    earlier: list[Tensor] = []

    def call(*args):
        for output in earlier:
            output.view(-1)[-1:].fill_(7.0)
        y = rmsnorm(*args)
        earlier[:] = [y]
        return y

    return Executable(call)


def unfinished_when_it_returns() -> Executable:
    """The work is done when the next call begins."""
    pending: list[Callable[[], object]] = []

    def into(outputs, *args):
        for work in pending:
            work()
        pending[:] = [lambda: outputs[0].copy_(rmsnorm(*args))]

    return Executable(rmsnorm, into)


def differs_from_run_to_run() -> Executable:
    calls: list[int] = []

    def call(*args):
        calls.append(1)
        y = rmsnorm(*args)
        nudge = y.dtype == torch.float32 and len(calls) % 2 == 0
        return torch.nextafter(y, torch.full_like(y, torch.inf)) if nudge else y

    return Executable(call)


def leaks() -> Executable:
    return Executable(lambda *args: (kept := rmsnorm(*args), KEPT.append(kept))[0].clone())


KEPT: list[Tensor] = []


def meddling(meddle: Callable[[], object]) -> Callable[[], Executable]:
    def call(*args):
        meddle()
        return rmsnorm(*args)

    return lambda: Executable(call)


def patch_a_clock() -> None:
    time.perf_counter = lambda: 0.0


def patch_synchronize() -> None:
    torch.cuda.synchronize = lambda device=None: None


def patch_at_build() -> Executable:
    time.perf_counter_ns = lambda: 0
    return Executable(rmsnorm)


def on_the_default_stream() -> Executable:
    """As a launch on stream 0 is, whatever stream the caller is on."""

    def call(*args):
        with torch.cuda.stream(torch.cuda.default_stream()):
            return rmsnorm(*args)

    return Executable(call)


def on_a_stream_of_its_own() -> Executable:
    own = torch.cuda.Stream()

    def call(*args):
        with torch.cuda.stream(own):
            return rmsnorm(*args)

    return Executable(call)


def stream_left_current() -> None:
    torch.cuda.set_stream(torch.cuda.Stream())


def reduced_precision() -> None:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def default_device() -> None:
    """Where torch.empty and its kin allocate when they are not told."""
    torch.set_default_device("meta")


STREAMS = ("cuda", "a CPU has no streams")
GENERATOR = ("cuda", "a CPU has one random state, which random_state draws from")

CONDUCT = (
    Entry("cached_by_address", cached_by_address, "it is cached by address", defence="same_pointers"),
    Entry("cached_by_shape", cached_by_shape, "result of the earlier data came back"),
    Entry("first_addresses_for_ever", first_addresses_for_ever, "with inputs at fresh addresses", defence="fresh"),
    Entry("writes_after_it_returned", writes_after_it_returned, "a late write", defence="late"),
    Entry("unfinished_when_it_returns", unfinished_when_it_returns, "elements were left unwritten"),
    Entry("differs_from_run_to_run", differs_from_run_to_run, "it is declared bitwise: a race?", defence="repeat"),
    Entry("on_the_default_stream", on_the_default_stream, "on a side stream", defence="stream", only=STREAMS),
    Entry("on_a_stream_of_its_own", on_a_stream_of_its_own, "runs on one of its own", only=STREAMS),
    Entry("stream_left_current", meddling(stream_left_current), "left another CUDA stream current", only=STREAMS),
    Entry("leaks", leaks, "a memory leak: 24 calls kept", defence="memory"),
    Entry("default_dtype", meddling(lambda: torch.set_default_dtype(torch.float64)), "the default dtype", defence="state"),
    Entry("random_state", meddling(lambda: torch.rand(1, device="cpu")), "torch's random state"),
    Entry("cuda_random_state", meddling(lambda: torch.rand(1, device="cuda")), "the CUDA random state", only=GENERATOR),
    Entry("python_random_state", meddling(random.random), "Python's random state"),
    Entry("environment", meddling(lambda: os.environ.update(OMP_NUM_THREADS="1")), "the environment (OMP_NUM_THREADS)"),
    Entry("gradient_mode", meddling(lambda: torch.set_grad_enabled(False)), "the gradient mode (True -> False)"),
    Entry("threads", meddling(lambda: torch.set_num_threads(torch.get_num_threads() + 1)), "torch's number of threads"),
    Entry("flushes_denormals", meddling(lambda: torch.set_flush_denormal(True)), "flushing of denormals"),
    Entry("matmul_precision", meddling(lambda: torch.set_float32_matmul_precision("medium")), "the float32 matmul precision"),
    Entry("default_device", meddling(default_device), "the default device (cpu -> meta)"),
    Entry("autocast", meddling(lambda: torch.set_autocast_enabled("cpu", True)), "autocast"),
    Entry("tf32_in_cudnn", meddling(lambda: setattr(torch.backends.cudnn, "allow_tf32", False)), "TF32 in cuDNN"),
    Entry("cudnn_benchmark", meddling(lambda: setattr(torch.backends.cudnn, "benchmark", True)), "cuDNN's settings"),
    Entry("deterministic", meddling(lambda: torch.use_deterministic_algorithms(True)), "deterministic algorithms"),
    Entry("anomaly_detection", meddling(lambda: torch.set_anomaly_enabled(True)), "anomaly detection"),
    Entry("reduced_precision", meddling(reduced_precision), "reduced precision in matmul"),
    Entry("numpy_errors", meddling(lambda: numpy.seterr(all="ignore")), "NumPy's handling of floating-point errors (divide"),
    Entry("numpy_random_state", meddling(lambda: numpy.random.rand()), "NumPy's random state"),
    Entry("warning_filters", meddling(lambda: warnings.simplefilter("ignore")), "filters of warnings"),
    Entry("output_redirected", meddling(lambda: setattr(sys, "stdout", io.StringIO())), "standard output and error"),
    Entry("recursion_limit", meddling(lambda: sys.setrecursionlimit(54321)), "-> 54321)"),
    Entry("working_directory", meddling(lambda: os.chdir("/")), "the working directory"),
    Entry("clock_patched", meddling(patch_a_clock), "replaced a timer or a synchronisation: time.perf_counter", defence="clock"),
    Entry("synchronize_patched", meddling(patch_synchronize), "torch.cuda.synchronize"),
    Entry("patched_while_built", patch_at_build, "while it was built: time.perf_counter_ns"),
)
