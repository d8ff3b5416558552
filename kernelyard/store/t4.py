"""Trials in the T4 results format, version 1.0.0, which Kernel Tuner and others read.

Tørring et al., "Towards a Benchmarking Suite for Kernel Tuners" (doi 10.1145/3629527.3651429); the schema is `results-schema.json` of
github.com/odgaard/TuningSchema, of which Kernel Tuner's copy also knows `invalidity: correct`, as it is written here.
T4 has one tuning problem in a file and no place for its name: each result has it under `problem`, which the schema allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelyard.registry.spec import Status
from kernelyard.store.trials import Trial

VERSION = "1.0.0"
INVALIDITY: Mapping[str, str] = {
    Status.OK: "correct",
    Status.PRUNED: "constraints",
    Status.UNSUPPORTED: "constraints",
    Status.BUILD_FAILED: "compile",
    Status.WRONG: "correctness",
    Status.CRASHED: "runtime",
    Status.TIMED_OUT: "timeout",
}


def content(trials: list[tuple[Trial, Mapping[str, Any]]]) -> dict[str, Any]:
    """The JSON object of trials, each with its config."""
    return {"schema_version": VERSION, "results": [_result(trial, config) for trial, config in trials]}


def _result(trial: Trial, config: Mapping[str, Any]) -> dict[str, Any]:
    """One result; times in milliseconds, as Kernel Tuner has them. `runtimes` holds the median, the one time that a trial keeps."""
    result, timing = trial.result, trial.timing
    times: dict[str, Any] = {"runtimes": [timing.median_us / 1000] if timing else []}
    if isinstance(result.get("build_s"), int | float):
        times["compilation_time"] = result["build_s"] * 1000
    named = {"time": timing.median_us, "time_low": timing.low_us, "time_high": timing.high_us} if timing else {}
    measured = [{"name": name, "value": value / 1000, "unit": "ms"} for name, value in named.items()]
    return {
        "timestamp": trial.completed,
        "configuration": dict(config),
        "times": times,
        "invalidity": INVALIDITY[result["status"]],
        "correctness": 1 if result["status"] == Status.OK else 0,
        "measurements": measured,
        "objectives": ["time"],
        "problem": {name: trial.key.get(name, "") for name in ("op", "label", "workload", "kernel", "device", "protocol")},
    }
