"""A kernel: one implementation of an op for one backend, declared as data."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kernelyard.registry.space import ConfigSpace
from kernelyard.registry.spec import YES, Answer, Determinism, TensorSpec, Workload, dtype_name, no, require

FLOATS = ("float32", "bfloat16", "float16", "float64")
"""Dtypes that `Support.dtypes` speaks of; lengths and positions are a predicate's business."""


@dataclass(frozen=True, slots=True)
class Support:
    """The envelope of workloads that a kernel was tested on, as data plus predicates.

    `most` and `least` bound dims by name. `unit_last_stride` says that every tensor's last dimension must be
    contiguous; `contiguous`, that all of it must be; `aligned`, that addresses must be multiples of 16 bytes.
    A predicate returns an Answer with its reason, and looks at nothing but the workload.
    """

    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    most: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    unit_last_stride: bool = True
    contiguous: bool = False
    aligned: bool = False
    predicates: tuple[Callable[[Workload], Answer], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        object.__setattr__(self, "dtypes", tuple(dtype_name(d) for d in self.dtypes))
        require(bool(self.devices), "a kernel supports at least one device type, such as 'cpu' or 'cuda'")
        require(bool(self.dtypes), "a kernel supports at least one dtype, such as 'float32'")

    def fits(self, workload: Workload) -> Answer:
        """Whether these arguments are inside the envelope; else the first reason met."""
        return next(self._refusals(workload), YES)

    def _refusals(self, workload: Workload) -> Iterator[Answer]:
        """Reasons in rising cost; a predicate is asked only about workloads that all before it let through."""
        if workload.device not in self.devices:
            yield no(f"runs on {', '.join(self.devices)}, not on {workload.device}")
        for name, spec in workload.tensors:
            if spec is not None and spec.dtype in FLOATS and spec.dtype not in self.dtypes:
                whose = "" if spec.dtype == workload.dtype else f" of {name}"
                yield no(f"supports {', '.join(self.dtypes)}, not {spec.dtype}{whose}")
        for name, size in workload.dims:
            if size > self.most.get(name, size):
                yield no(f"{name} is {size}, the most is {self.most[name]}")
            if size < self.least.get(name, size):
                yield no(f"{name} is {size}, the least is {self.least[name]}")
        for name, spec in workload.tensors:
            if spec is not None and spec.numel:
                yield from self._layout_refusals(name, spec)
        yield from (answer for answer in (predicate(workload) for predicate in self.predicates) if not answer)

    def _layout_refusals(self, name: str, spec: TensorSpec) -> Iterator[Answer]:
        if self.contiguous and not spec.contiguous:
            yield no(f"{name} must be contiguous, its strides are {spec.strides}")
        if self.unit_last_stride and spec.shape and spec.shape[-1] > 1 and spec.strides[-1] != 1:
            yield no(f"the last dimension of {name} must be contiguous, its stride is {spec.strides[-1]}")
        if self.aligned and not spec.aligned:
            yield no(f"{name} must start at a multiple of 16 bytes")


@dataclass(frozen=True)
class Kernel:
    """One implementation. `entry` ('package.module:function') is imported only when the kernel is built.

    `entry(workload, config)` returns what the backend asks for: see `kernelyard.registry.backend`.
    `files` are further sources beside the entry's module ('rmsnorm.cpp'); a change in any makes choices stale.
    `priority` decides between untuned kernels, higher first; `fallbacks` are tried next, by name. Where measurements differ by workload,
    `priority_where` has priorities for ranges of workloads, of which the first that holds decides; `priority` is for all others.
    """

    name: str
    op: str
    backend: str
    summary: str
    entry: str
    support: Support
    space: ConfigSpace = field(default_factory=ConfigSpace)
    files: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    priority: int = 0
    determinism: Determinism = Determinism.BITWISE
    priority_where: tuple[tuple[Support, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "determinism", Determinism(self.determinism))
        for name in ("files", "fallbacks"):
            require(not isinstance(getattr(self, name), str), f"kernel '{self.name}': {name} must be a tuple of names, not one string")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        prefix, _, rest = self.name.partition(".")
        require(
            prefix == self.backend and bool(rest),
            f"kernel name '{self.name}' must be its backend, a dot and a word: '{self.backend}.word'",
        )
        require(":" in self.entry, f"kernel '{self.name}': entry '{self.entry}' must be 'package.module:function'")
        require(self.name not in self.fallbacks, f"kernel '{self.name}' names itself as a fallback")

    def priority_for(self, workload: Workload) -> int:
        """What decides between untuned kernels of this workload."""
        return next((priority for where, priority in self.priority_where if where.fits(workload)), self.priority)

    @property
    def folder(self) -> Path:
        """The folder of the entry's module, where `files` lie."""
        return _module_file(self.entry.partition(":")[0]).parent

    def source_hash(self) -> str:
        """Content hash of the entry's module and `files`; found without importing the module itself."""
        module = _module_file(self.entry.partition(":")[0])
        content = hashlib.sha256()
        for path in (module, *(module.parent / name for name in self.files)):
            content.update(path.read_bytes())
        return content.hexdigest()[:16]


@cache
def _module_file(module: str) -> Path:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # a parent package is missing
        spec = None
    require(spec is not None and spec.origin is not None, f"module '{module}' has no source file")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin)
