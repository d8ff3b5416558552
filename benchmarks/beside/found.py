"""What a tuner found, as its process writes it and the comparison reads it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from beside.declared import KERNELS
from kernelyard.errors import UsageError
from kernelyard.registry import registry
from kernelyard.registry.matrix import Point
from kernelyard.registry.spec import Config, Workload


@dataclass(frozen=True)
class Found:
    """One tuner on one space. `seconds` from before its first build to after its last time, imports left out.

    `best_us` is the tool's own figure by its own protocol, and not to be compared between tools; `times_us` by config, as JSON.
    """

    tool: str
    configs: int
    finished: int
    failed: int
    seconds: float
    best: Config | None
    best_us: float | None
    checked: str
    protocol: str
    about: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), allow_nan=False))

    @staticmethod
    def read(path: Path) -> Found:
        """What `write` wrote."""
        return Found(**json.loads(path.read_text()))


def space_of(language: str, shape: str) -> tuple[Workload, list[Config]]:
    """The workload of that shape and the valid configs of a language's space, in order."""
    everything = registry.current()
    op, kernel = everything.op("rmsnorm"), everything.kernel("rmsnorm", KERNELS[language])
    workload = op.workload(Point(op.parse_shape(shape), kernel.support.dtypes[0]), kernel.support.devices[0])
    if not (answer := kernel.support.fits(workload)):
        raise UsageError(f"{kernel.name} does not take {shape}: {answer.reason}.")
    return workload, list(kernel.space.configs(workload))


def asked_for(about: str) -> argparse.Namespace:
    """What the comparison tells a tuner's process."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--language", required=True, choices=KERNELS)
    parser.add_argument("--shape", required=True)
    parser.add_argument("--into", type=Path, required=True, help="file for what was found")
    parser.add_argument("--backend", default="", help="of the tool's own, where it has several")
    parser.add_argument("--check", action="store_true", help="verify every config, where the tool leaves that open")
    return parser.parse_args()
