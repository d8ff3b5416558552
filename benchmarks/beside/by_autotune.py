"""The whole space by triton.autotune: one call of the function under it."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import triton

from beside.found import Found, asked_for, space_of
from beside.triton_rmsnorm import normalise
from kernelyard.contracts.rmsnorm import EPS
from kernelyard.registry.spec import Config, Workload


def main() -> None:
    """Tune and write what was found."""
    asked = asked_for(__doc__)
    workload, configs = space_of(asked.language, asked.shape)
    x, w, y = tensors(workload)
    torch.cuda.synchronize()
    start = time.perf_counter()
    tuner = tuned(configs)
    call(tuner, y, x, w)
    torch.cuda.synchronize()
    found(tuner, len(configs), time.perf_counter() - start).write(asked.into)


def tensors(workload: Workload) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, w and room for y."""
    shape, cols = workload["x"].shape, workload.dim("cols")
    torch.manual_seed(0)
    x = torch.randn(shape, device=workload.device, dtype=torch.bfloat16)
    return x, torch.randn(cols, device=workload.device, dtype=torch.bfloat16), torch.empty_like(x)


def tuned(configs: list[Config], **how: Any) -> Any:
    """The function under triton.autotune with exactly these configs."""
    given = [
        triton.Config({"ROWS": c["rows"], "HINT": c["hint"], "EARLY": c["early"]}, num_warps=int(c["num_warps"]), num_stages=2)
        for c in configs
    ]
    return triton.autotune(given, key=["rows"], **how)(normalise)


def call(tuner: Any, y: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> None:
    """What a user writes; the first call tunes."""
    rows, cols = x.shape
    tuner[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](y, x, w, rows, EPS, 0.0, COLS=cols)


def found(tuner: Any, configs: int, seconds: float) -> Found:
    """What it says of itself; a config that failed has an infinite time."""
    times = {config: _median_ms(told) for config, told in tuner.configs_timings.items()}
    finished = [time_ms for time_ms in times.values() if math.isfinite(time_ms)]
    best, kwargs = tuner.best_config, tuner.best_config.kwargs
    named = {"rows": kwargs["ROWS"], "num_warps": best.num_warps, "hint": kwargs["HINT"], "early": kwargs["EARLY"]}
    return Found(
        "triton.autotune", configs, len(finished), configs - len(finished), seconds, named, times[best] * 1e3,
        "nothing",
        "do_bench: some 25 ms of warm-up and 100 ms of calls a config, the same inputs each time, L2 zeroed before each; the median",
        {"triton": triton.__version__, "bench_s": tuner.bench_time},
    )  # fmt: skip


def _median_ms(told: Any) -> float:
    """do_bench was asked for three quantiles, the median first."""
    return float(told[0] if isinstance(told, (list, tuple)) else told)


if __name__ == "__main__":
    main()
