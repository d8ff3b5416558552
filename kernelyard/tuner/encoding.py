"""A workload as JSON holds it, for the worker's jobs and for recorded spaces. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kernelyard.registry.spec import TensorSpec, Workload


def encode(workload: Workload) -> dict[str, Any]:
    """A workload as JSON can hold it."""
    return asdict(workload)


def decode(data: Mapping[str, Any]) -> Workload:
    """The workload that `encode` was given."""
    tensors = tuple((name, None if spec is None else TensorSpec(**spec)) for name, spec in data["tensors"])
    statics, dims = (tuple((name, value) for name, value in data[part]) for part in ("statics", "dims"))
    return Workload(data["op"], tensors, statics, data["device"], dims, tuple(data["unusual"]))
