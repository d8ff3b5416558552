"""What is watched of global state: how each piece is read, and how it is put back."""

from __future__ import annotations

import builtins
import os
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

OWN_VARIABLES = ("TORCH", "PYTORCH", "TRITON", "KMP_", "PYTEST_CURRENT_TEST")
"""Environment variables that torch.compile, Triton, OpenMP and pytest set for themselves, by their beginnings."""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)}


def _put_environment(before: dict[str, str]) -> None:
    for name in _environment():
        os.environ.pop(name)
    os.environ.update(before)


def _flushes_denormals() -> bool:
    """Compilers set this for the whole thread when they link with -ffast-math; torch has no way to ask."""
    return float(torch.tensor(1e-310, dtype=torch.float64, device="cpu") * 1.0) == 0.0


def _put_streams(before: tuple[Any, Any]) -> None:
    sys.stdout, sys.stderr = before


def _put_cuda_random_state(state: bytes) -> None:
    torch.cuda.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _put_random_state(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _warning_filters() -> tuple[Any, ...]:
    """Those for everything of Python's own categories; narrower ones are what libraries add when they are imported."""
    return tuple((entry[0], entry[2]) for entry in warnings.filters if _broad(entry))


def _put_warning_filters(before: tuple[Any, ...]) -> None:
    narrow = [entry for entry in warnings.filters if not _broad(entry)]
    warnings.resetwarnings()
    for action, category in reversed(before):
        warnings.simplefilter(action, category)
    warnings.filters[:0] = narrow  # type: ignore[index]


def _broad(entry: Any) -> bool:
    _, message, category, module, _ = entry
    return message is None and module is None and getattr(builtins, category.__name__, None) is category


def _deterministic() -> tuple[bool, bool, bool]:
    fills = bool(torch.utils.deterministic.fill_uninitialized_memory)  # type: ignore[attr-defined]
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(), fills


def _put_deterministic(before: tuple[bool, bool, bool]) -> None:
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    torch.utils.deterministic.fill_uninitialized_memory = before[2]  # type: ignore[attr-defined]


def _numpy_errors() -> dict[str, str]:
    """Of NumPy where it is imported already: what is not there has no state."""
    return dict(sys.modules["numpy"].geterr()) if "numpy" in sys.modules else {}


def _numpy_random() -> tuple[Any, ...]:
    if "numpy.random" not in sys.modules:
        return ()
    kind, keys, *rest = sys.modules["numpy.random"].get_state()
    return kind, keys.tobytes(), *rest


def _put_numpy_random(before: tuple[Any, ...]) -> None:
    import numpy

    if before:
        kind, keys, *rest = before
        numpy.random.set_state((kind, numpy.frombuffer(keys, dtype=numpy.uint32), *rest))


def _put_default_device(before: torch.device) -> None:
    torch.set_default_device(None if before.type == "cpu" else before)  # a CPU set as default costs every call


def _autocast() -> tuple[tuple[bool, torch.dtype], ...]:
    return tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))


def _put_autocast(before: tuple[tuple[bool, torch.dtype], ...]) -> None:
    for kind, (on, dtype) in zip(("cpu", "cuda"), before, strict=True):
        torch.set_autocast_enabled(kind, on)
        torch.set_autocast_dtype(kind, dtype)


def _flags(owner: Any, *names: str) -> Watch:
    """Attributes that are set like any other."""

    def put(before: tuple[Any, ...]) -> None:
        for name, value in zip(names, before, strict=True):
            setattr(owner, name, value)

    return lambda: tuple(getattr(owner, name) for name in names), put


Watch = tuple[Callable[[], Any], Callable[[Any], Any]]

WATCHED: dict[str, Watch] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the default device": (torch.get_default_device, _put_default_device),
    "the gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "anomaly detection": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "deterministic algorithms": (_deterministic, _put_deterministic),
    "the float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "TF32 in cuDNN": (lambda: torch.backends.cudnn.allow_tf32, lambda on: setattr(torch.backends.cudnn, "allow_tf32", on)),
    "cuDNN's settings": _flags(torch.backends.cudnn, "enabled", "benchmark", "deterministic"),
    "reduced precision in matmul": _flags(
        torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"
    ),
    "autocast": (_autocast, _put_autocast),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "flushing of denormals": (_flushes_denormals, torch.set_flush_denormal),
    "torch's random state": (lambda: torch.get_rng_state().numpy().tobytes(), _put_random_state),
    "Python's random state": (random.getstate, random.setstate),
    "NumPy's handling of floating-point errors": (_numpy_errors, lambda before: before and sys.modules["numpy"].seterr(**before)),
    "NumPy's random state": (_numpy_random, _put_numpy_random),
    "filters of warnings": (_warning_filters, _put_warning_filters),
    "standard output and error": (lambda: (sys.stdout, sys.stderr), _put_streams),
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "the environment": (_environment, _put_environment),
    "the working directory": (os.getcwd, os.chdir),
}
ON_CUDA: dict[str, Watch] = {
    "the current CUDA device": (torch.cuda.current_device, torch.cuda.set_device),
    "the current CUDA stream": (torch.cuda.current_stream, torch.cuda.set_stream),
    "the CUDA random state": (lambda: torch.cuda.get_rng_state().numpy().tobytes(), _put_cuda_random_state),
}
