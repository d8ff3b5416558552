"""The whole space by Kernel Tuner's brute force: CUDA C++ through NVRTC, or C++ through g++."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from beside.found import Found, asked_for, space_of
from kernelyard.contracts.rmsnorm import EPS
from kernelyard.registry import registry
from kernelyard.registry.spec import Config, Scalar, Workload

HERE = Path(__file__).parent
CLOCK = """#include <chrono>
#include "{header}"
extern "C" float timed(float* out, float* x, float* w, int rows, float eps, float offset) {{
  const auto start = std::chrono::steady_clock::now();
  normalise(out, x, w, rows, eps, offset);
  return std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - start).count();
}}
"""
"""Kernel Tuner takes what a C function returns as its time."""


def main() -> None:
    """Tune and write what was found."""
    from kernel_tuner import tune_kernel  # here, so that all else is tested where it is not installed

    asked = asked_for(__doc__)
    workload, configs = space_of(asked.language, asked.shape)
    arrays, expected = data(workload)
    how = for_cuda(workload, asked.backend) if asked.language == "cuda" else for_cpp(workload)
    if asked.check:
        relative = registry.current().op("rmsnorm").tolerance(workload).relative
        how |= {"answer": [expected, None, None, None, None, None], "verify": verifier(relative)}
    start = time.perf_counter()
    results, env = tune_kernel(arguments=arrays, tune_params=parameters(configs), **how)
    seconds = time.perf_counter() - start
    found(results, env, len(configs), seconds, how, asked.check).write(asked.into)


def data(workload: Workload) -> tuple[list[Any], Any]:
    """The kernel's arguments and what it has to write. bf16 as its 16 bits: numpy has no such type."""
    rows, cols = workload.dim("rows"), workload.dim("cols")
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape, dtype=np.float32) for shape in ((rows, cols), (cols,)))
    halves = workload.dtype == "bfloat16"
    if halves:
        x, w = (widened(narrowed(array)) for array in (x, w))
    y = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.float32(EPS)) * w
    stored = [narrowed(array) if halves else array for array in (np.zeros_like(x), x, w)]
    return [*stored, np.int32(rows), np.float32(EPS), np.float32(0)], narrowed(y) if halves else y


def narrowed(array: Any) -> Any:
    """float32 to the bits of bf16, rounded to nearest even; no NaN among them."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(bits: Any) -> Any:
    """Bits of bf16 to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def verifier(relative: float) -> Any:
    """bf16: at most one step from what is expected; float32: within the contract's tolerance, twice as numpy has roundings of its own."""

    def verify(answer: list[Any], result: list[Any], atol: float | None = None) -> bool:
        expected, got = answer[0], result[0]
        if expected.dtype == np.uint16:
            return bool(np.abs(got.astype(np.int32) - expected).max() <= 1)
        return bool(np.all(np.abs(got - expected) <= 2 * relative * np.abs(expected)))

    return verify


def parameters(configs: list[Config]) -> dict[str, list[Scalar]]:
    """Every parameter's values, by its define. The space has no constraints, so that its configs are all combinations of these."""
    return {name.upper(): sorted({config[name] for config in configs}) for name in configs[0]}


def for_cuda(workload: Workload, backend: str) -> dict[str, Any]:
    """A block is (THREADS, ROWS), a grid has rows / ROWS of them."""
    return {
        "kernel_name": "normalise", "kernel_source": f"#define COLS {workload.dim('cols')}\n{(HERE / 'normalise.cuh').read_text()}",
        "problem_size": workload.dim("rows"), "grid_div_x": ["ROWS"], "block_size_names": ["THREADS", "ROWS"],
        "lang": backend or "CUDA", "compiler_options": ["--std=c++17"],
    }  # fmt: skip


def for_cpp(workload: Workload) -> dict[str, Any]:
    """g++ with the optimisation of kernelyard's own builds."""
    from kernelyard.plugins.cpp.toolchain import recipe

    source = f"#define COLS {workload.dim('cols')}\n" + CLOCK.format(header=HERE / "normalise.h")
    flags = [flag for flag in recipe().cxx_flags if flag.startswith(("-O", "-m", "-std"))]
    return {
        "kernel_name": "timed", "kernel_source": source, "problem_size": workload.dim("rows"), "lang": "C", "compiler": "g++",
        "compiler_options": flags,
    }  # fmt: skip


def found(results: list[Any], env: Mapping[str, Any], configs: int, seconds: float, how: Mapping[str, Any], checked: bool) -> Found:
    """What it says; a config that failed has an error instead of a time."""
    times = [(float(result["time"]), result) for result in results if isinstance(result.get("time"), (int, float))]
    best = min(times, key=lambda pair: pair[0], default=None)
    names = [name for name in results[0] if name.isupper()] if results else []
    parts = ("compile", "verification", "benchmark")
    spent = {f"{part}_s": sum(float(result.get(f"{part}_time", 0)) for result in results) / 1e3 for part in parts}
    return Found(
        "Kernel Tuner" + (", answer given" if checked else ""), configs, len(times), configs - len(times), seconds,
        {name.lower(): best[1][name] for name in names} if best else None, best[0] * 1e3 if best else None,
        "every config's output copied to the host and compared there" if checked else "nothing: no answer was given",
        f"the mean of {env.get('iterations', 7)} calls, each between two events or clock reads, the same inputs each time, "
        "caches as the call before left them",
        {"kernel_tuner": metadata.version("kernel_tuner"), "lang": how["lang"], **spent},
    )  # fmt: skip


if __name__ == "__main__":
    main()
