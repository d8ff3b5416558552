"""A fully measured space in a file: every valid config of a kernel on one workload with what became of it. No torch, no Optuna.

The file holds the parameters themselves, so that it can be searched where the kernel, its plugin or its GPU is not; the space hash says
whether the kernel still has that space. Constraints are code, and what they allow on this workload is exactly what was recorded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelyard.errors import UsageError
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import Config, DeclarationError, Status, Timing, Workload, config_key, require
from kernelyard.tuner.bench import Finished, Result
from kernelyard.tuner.encoding import decode, encode

SCHEMA = 1
RECORD = "kernelyard replay record OP --kernel K --shape S writes one."


@dataclass(frozen=True)
class Recorded:
    """One space on one workload. `wanted`: the default and the author's hints; `about`: protocol, versions, date, sources."""

    kernel: str
    workload: Workload
    device: str
    space_hash: str
    parameters: tuple[Parameter, ...]
    wanted: tuple[Config, ...]
    trials: tuple[Finished, ...]
    about: Mapping[str, Any]

    @property
    def best(self) -> Finished:
        """The right config with the least median."""
        return min((one for one in self.trials if one.result.timing is not None), key=median_us)

    def results(self) -> dict[str, Result]:
        """What became of each config, by its key."""
        return {config_key(one.config): one.result for one in self.trials}

    def as_kernel(self) -> Kernel:
        """A kernel with this space, whose constraints allow what was recorded; it can't be built."""
        keys = frozenset(self.results())
        rule = Constraint(lambda config, workload: config_key(config) in keys, "the kernel's constraints forbid it on this workload")
        space = ConfigSpace(self.parameters, (rule,), default=lambda workload: self.wanted[0], hints=lambda workload: self.wanted[1:])
        support = Support((self.workload.device,), (self.workload.dtype,))
        backend = self.kernel.partition(".")[0]
        return Kernel(self.kernel, self.workload.op, backend, "a recorded space", "kernelyard.tuner.spaces:Recorded", support, space)


def median_us(one: Finished) -> float:
    """The time of a trial that has one."""
    return one.result.timing.median_us if one.result.timing is not None else float("inf")


def save(recorded: Recorded, path: Path) -> None:
    """Write the file; raises UsageError where it can't be."""
    content = {
        "schema": SCHEMA, "op": recorded.workload.op, "kernel": recorded.kernel, "label": recorded.workload.label(),
        "workload": encode(recorded.workload), "device": recorded.device, "space_hash": recorded.space_hash, **recorded.about,
        "parameters": [asdict(parameter) for parameter in recorded.parameters], "wanted": [dict(config) for config in recorded.wanted],
    }  # fmt: skip
    head = json.dumps(content, indent=1, allow_nan=False).removesuffix("\n}")
    rows = ",\n  ".join(json.dumps(_row(one), allow_nan=False) for one in recorded.trials)  # a config a line, for people and for diffs
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{head},\n "configs": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}.") from error


def load(path: Path) -> Recorded:
    """A recorded space; raises UsageError for a file that is none."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for, and /dev/zero has no end
            raise UsageError(f"{path} is no file.", do=RECORD)
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise UsageError(f"{path} has schema {content['schema']}, this version reads {SCHEMA}.", do="Record it anew.")
        recorded = _read(content)
        _check(recorded)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.", do=RECORD) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, StopIteration, DeclarationError) as error:
        told = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{path} is no recorded space: {told}.", do=RECORD) from error
    if all(one.result.timing is None for one in recorded.trials):
        raise UsageError(f"{path} has no right config among {len(recorded.trials)}: there is nothing to find.")
    return recorded


def _read(content: Mapping[str, Any]) -> Recorded:
    return Recorded(
        content["kernel"],
        decode(content["workload"]),
        content["device"],
        content["space_hash"],
        tuple(Parameter(one["name"], tuple(one["values"]), one["why"]) for one in content["parameters"]),
        tuple(content["wanted"]),
        tuple(Finished(row["config"], _result(row)) for row in content["configs"]),
        {},
    )


def _check(recorded: Recorded) -> None:
    """Raises one of the errors of a file that is none where a part is not what a search and a table take for granted."""
    space, workload = recorded.as_kernel().space, recorded.workload
    for text in (workload.label(), workload.key(), workload.dtype, recorded.device, recorded.space_hash):
        require(isinstance(text, str) and text.isprintable(), f"it has {text!r:.60} where a name should be")
    for parameter in space.parameters:
        bad = [value for value in parameter.values if not isinstance(value, str | int | float) or not _told(value)]
        require(not bad, f"parameter '{parameter.name}' has the value {bad[:1]!r:.60}")
    require(bool(recorded.wanted), "it has no default config")
    for config in (*recorded.wanted, *(one.config for one in recorded.trials)):
        require(isinstance(config, dict), f"it has {config!r:.60} where a config should be")
        answer = space.holds(config)
        require(bool(answer), answer.reason)


def _told(value: str | float) -> bool:
    """Whether a sampler can take it: finite, and an integer that a float can hold."""
    return value.isprintable() if isinstance(value, str) else abs(value) < 2**63


def _row(one: Finished) -> dict[str, Any]:
    result = one.result
    timing = asdict(result.timing) if result.timing is not None else None
    return {"config": dict(one.config), "status": str(result.status), "reason": result.reason, "timing": timing, "build_s": result.build_s}


def _result(row: Mapping[str, Any]) -> Result:
    timing = Timing(**row["timing"]) if row["timing"] is not None else None
    return Result(Status(row["status"]), row["reason"], timing=timing, build_s=row["build_s"])
