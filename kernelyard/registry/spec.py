"""Frozen records that the rooms exchange. Imports no torch, and of ours nothing but yes and no."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from kernelyard.registry.answer import YES, Answer, DeclarationError, digest, no, require, timed_only

__all__ = [
    "DTYPE_BYTES", "DTYPE_SHORT", "YES", "Answer", "Choice", "Config", "Cost", "DeclarationError", "Determinism", "DeviceIdentity", "Miss",
    "Missed", "Proof", "Scalar", "Status", "TensorSpec", "Timing", "Tolerance", "Workload", "canonical_strides", "config_key",
    "contiguous_strides", "digest", "dtype_name", "no", "require", "timed_only",
]  # fmt: skip

Scalar = int | float | str | bool
Config = Mapping[str, Scalar]
"""One point of a kernel's config space."""

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int8": 1, "int32": 4, "int64": 8, "bool": 1}
)
DTYPE_SHORT: Mapping[str, str] = MappingProxyType({"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"})


class Status(StrEnum):
    """The outcome of one trial or one check."""

    OK = "ok"
    PRUNED = "pruned"
    BUILD_FAILED = "build_failed"
    WRONG = "wrong"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    UNSUPPORTED = "unsupported"


class Determinism(StrEnum):
    """What two runs on equal inputs share: every bit always, every bit on one machine, or nothing promised."""

    BITWISE = "bitwise"
    RUN_TO_RUN = "run-to-run"
    NONE = "none"


class Missed(StrEnum):
    """Why no stored choice served a call that one could have served."""

    UNTUNED = "untuned"
    """No choice is stored for the workload: a kernel serves in its author's config."""
    STALE = "stale"
    """A choice is stored and can't be used: something it depends on has changed, or it does not build."""
    FALLBACK = "fallback"
    """No choice is stored, and no kernel can or may serve without one: the reference does."""


def dtype_name(text: str) -> str:
    """The full name of a dtype: 'bf16', 'bfloat16' and 'torch.bfloat16' are all 'bfloat16'."""
    name = text.removeprefix("torch.")
    name = DTYPE_SHORT.get(name, name)
    require(name in DTYPE_BYTES, f"no dtype '{text}'; there are {', '.join([*DTYPE_SHORT, *DTYPE_BYTES])}")
    return name


def config_key(config: Config) -> str:
    """A canonical text of a config, the same whatever order its keys came in."""
    return json.dumps(dict(config), sort_keys=True, separators=(",", ":"))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements; a 0-sized dimension counts as 1, as torch does."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def canonical_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, those that no element depends on (dimensions of size 1, empty tensors) as if there were no gaps.

    torch gives such strides freely: (1, 77) may come with (77, 1) or (1, 1).
    """
    if 0 in shape:
        return contiguous_strides(shape)
    canonical, step = [], 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        canonical.append(step if size == 1 else stride)
        step = size * canonical[-1]
    return tuple(reversed(canonical))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, dtype, strides in elements, and whether the address is a multiple of 16 bytes.

    Equal where the same code reads the same places: strides are canonical, and an empty tensor is aligned.
    """

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] = ()
    aligned: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        strides = tuple(self.strides) or contiguous_strides(self.shape)
        require(all(size >= 0 for size in self.shape), f"shape {self.shape} has a negative size")
        require(len(strides) == len(self.shape), f"strides {strides} do not fit shape {self.shape}")
        object.__setattr__(self, "strides", canonical_strides(self.shape, strides))
        object.__setattr__(self, "aligned", self.aligned or self.numel == 0)

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, whatever the strides."""
        return self.numel * DTYPE_BYTES[self.dtype]

    @property
    def contiguous(self) -> bool:
        """Row-major without gaps; the stride of a dimension of size 1 does not matter."""
        return self.strides == contiguous_strides(self.shape)

    def key(self) -> str:
        """`16x4096:bfloat16`, with strides and misalignment only where they matter."""
        text = "x".join(map(str, self.shape)) + ":" + self.dtype
        if not self.contiguous:
            text += ":strides=" + "x".join(map(str, self.strides))
        return text if self.aligned else text + ":misaligned"


@dataclass(frozen=True, slots=True)
class Workload:
    """One point to run: an op, its tensors, the scalars that select code, and a device type.

    `dims` names the sizes as people do, (("rows", 16), ("cols", 4096)), and `unusual` says how it differs from the op's usual call,
    ("llama", "without w"); both follow from the rest.
    """

    op: str
    tensors: tuple[tuple[str, TensorSpec | None], ...]
    statics: tuple[tuple[str, Scalar], ...] = ()
    device: str = "cpu"
    dims: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    unusual: tuple[str, ...] = field(default=(), compare=False)

    def __getitem__(self, name: str) -> TensorSpec:
        spec = dict(self.tensors)[name]
        if spec is None:
            raise KeyError(f"{name} is absent in {self.key()}")
        return spec

    def has(self, name: str) -> bool:
        """Whether the optional tensor was given."""
        return dict(self.tensors).get(name) is not None

    def dim(self, name: str) -> int:
        """One size by its name: `workload.dim("cols")`."""
        return dict(self.dims)[name]

    def static(self, name: str) -> Scalar:
        """One scalar that selects code: `workload.static("casting")`."""
        return dict(self.statics)[name]

    @property
    def dtype(self) -> str:
        """The dtype of the first tensor, which names the workload."""
        return next(spec.dtype for _, spec in self.tensors if spec is not None)

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Tensor name -> shape, for JSON."""
        return {name: list(spec.shape) for name, spec in self.tensors if spec is not None}

    def label(self) -> str:
        """Short, for tables: `16x4096 bf16`, and what is unusual."""
        short = {full: text for text, full in DTYPE_SHORT.items()}.get(self.dtype, self.dtype)
        text = "x".join(str(size) for _, size in self.dims) + " " + short
        strided = [name for name, spec in self.tensors if spec is not None and not spec.contiguous]
        return text + (f" {','.join(strided)} strided" if strided else "") + (f" {', '.join(self.unusual)}" if self.unusual else "")

    def key(self) -> str:
        """Canonical text: equal exactly when the same code and the same sizes run."""
        tensors = ",".join(f"{name}={spec.key() if spec else 'none'}" for name, spec in self.tensors)
        statics = ",".join(f"{name}={value}" for name, value in self.statics)
        return f"{self.op}[{tensors}{';' if statics else ''}{statics}]@{self.device}"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|out - reference| <= absolute + relative * |reference|, and why that much.

    `roundings` says how many roundings to the output's dtype `relative` grants; the rest of it is accumulation in a
    wider one. With 0, not told, errors are not judged beside those of plain torch. `others` are those of the outputs
    after the first, where they differ: a sum over rows is of another length and dtype than one over columns. `factors` is what
    ||got - want|| / ||want|| may come to by a precision of the inputs that the contract allows, before anything is summed.
    """

    relative: float
    absolute: float
    reason: str
    roundings: int = 0
    others: tuple[Tolerance, ...] = ()
    factors: float = 0.0

    def of(self, output: int) -> Tolerance:
        """That of one output, counted from 0."""
        return self.others[output - 1] if 0 < output <= len(self.others) else self


@dataclass(frozen=True, slots=True)
class Cost:
    """The least bytes a workload must move through memory, and the floating-point operations it needs."""

    bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """What a stored choice is tied to. `uuid` names the very device, for its lock; the rest its kind."""

    type: str
    name: str
    capability: str
    driver: str
    uuid: str

    def key(self) -> str:
        """The kind of device: choices made on one serve all of the same kind and driver."""
        return f"{self.type}/{self.name}/{self.capability}/{self.driver}"


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one call of one candidate, in microseconds.

    `mode` is 'device' (inputs resident and rotated, no host work) or 'call' (what Python pays); `clock`
    names the timer (graph, events, monotonic). `low_us` and `high_us` bound the median (95%,
    over batches). `noisy` is empty or says why the figure should not be leaned on.
    """

    median_us: float
    low_us: float
    high_us: float
    mode: str
    clock: str
    batches: int
    calls: int
    noisy: str = ""

    def __post_init__(self) -> None:
        values = (self.median_us, self.low_us, self.high_us)
        require(all(math.isfinite(v) and v >= 0 for v in values), f"a time must be finite and >= 0, not {values}")
        require(self.mode in ("device", "call"), f"mode is 'device' or 'call', not '{self.mode}'")


@dataclass(frozen=True, slots=True)
class Choice:
    """The winner stored for one workload on one kind of device, and what it is valid for."""

    op: str
    workload_key: str
    device_key: str
    mode: str
    kernel: str
    config: Config
    contract_hash: str
    source_hash: str
    space_hash: str
    versions: Mapping[str, str]
    run_id: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """A kernel passed its op's frozen matrix on a kind of device, each case run twice with equal bits, and what that holds for."""

    op: str
    kernel: str
    device_key: str
    contract_hash: str
    source_hash: str
    versions: Mapping[str, str]
    matrix_name: str
    matrix_hash: str
    cases: int
    determinism: Determinism

    def __post_init__(self) -> None:
        require(self.determinism is not Determinism.NONE, f"{self.kernel} declares no determinism: there is nothing to prove")
        require(self.cases > 0, f"a proof of {self.kernel} needs at least one case")


@dataclass(frozen=True, slots=True)
class Miss:
    """A workload that no stored choice served, for people and for the list of those that processes leave behind.

    `reason` is what dispatch said of the kernel that served instead, `run` the command that tunes it; empty where no shape in words
    says it.
    """

    op: str
    workload: str
    workload_key: str
    device_key: str
    missed: Missed
    kernel: str
    reason: str
    run: str
