"""The rule of a bucket: a few kernels with configs, and which of them serves a shape that nobody tuned.

The nearest measured workload decides. Near is in doublings (see `distance`), among workloads of the same form, which is all but sizes. The
rule speaks for the sizes between the smallest and the largest that it was made on, and for none outside: that would be a guess. A nearest
neighbour, because it explains itself in one line, and because a tree has a depth and thresholds to fit, for which a matrix is too
small: rmsnorm's has six shapes a dtype. What it loses is measured, see `kernelyard.tuner.held_out`. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelyard.registry.spec import YES, Answer, Choice, TensorSpec, Workload, no, require


def distance(a: Mapping[str, Sequence[int]], b: Mapping[str, Sequence[int]]) -> float:
    """Doublings between two sets of shapes, summed over every size; infinite where they don't compare.

    Doublings and not differences: tiles and threads are chosen by factors, so 512 to 1024 rows is as far as 16384 to 32768.
    """
    if {name: len(shape) for name, shape in a.items()} != {name: len(shape) for name, shape in b.items()}:
        return math.inf
    return sum(abs(math.log2((x + 1) / (y + 1))) for name in a for x, y in zip(a[name], b[name], strict=True))


def form(workload: Workload) -> str:
    """All of a workload but its sizes: a rule takes one shape for another, never one dtype, layout or meaning."""
    tensors = ",".join(f"{name}={_kind(spec)}" for name, spec in workload.tensors)
    statics = ",".join(f"{name}={value}" for name, value in workload.statics)
    return f"{workload.op}[{tensors}{';' if statics else ''}{statics}]@{workload.device}"


def _kind(spec: TensorSpec | None) -> str:
    if spec is None:
        return "none"
    text = f"{len(spec.shape)}d:{spec.dtype}"
    if not spec.contiguous:  # which dimension lies innermost, and which repeat: how far apart they lie is a size
        order = sorted(range(len(spec.shape)), key=lambda i: -spec.strides[i])
        text += ":order=" + "x".join(f"{i}{'' if spec.strides[i] else 'r'}" for i in order)
    return text if spec.aligned else text + ":misaligned"


@dataclass(frozen=True, slots=True)
class Measured:
    """A workload that a rule was made on: its sizes, the place of the pair that serves it, and how far that is above the best measured.

    `loss` is a fraction: 0.03 where the pair took 3% longer than the fastest there.
    """

    form: str
    dims: tuple[tuple[str, int], ...]
    label: str
    pair: int
    loss: float

    def away(self, workload: Workload) -> float:
        """How far a workload of the same form is, in doublings."""
        return distance({name: (size,) for name, size in self.dims}, {name: (size,) for name, size in workload.dims})


@dataclass(frozen=True, slots=True)
class Step:
    """One pair that a rule has for a workload, and why."""

    pair: Choice
    reason: str


@dataclass(frozen=True, slots=True)
class Rule:
    """What `tune --bucket` stored for an op on a kind of device: pairs, each as a choice that can go stale, and measured workloads."""

    op: str
    device_key: str
    mode: str
    percent: float
    matrix_name: str
    matrix_hash: str
    pairs: tuple[Choice, ...]
    measured: tuple[Measured, ...]
    run_id: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", tuple(self.pairs))
        object.__setattr__(self, "measured", tuple(self.measured))
        require(bool(self.pairs) and bool(self.measured), "a rule has at least one pair and one measured workload")
        places = {one.pair for one in self.measured}
        require(places <= set(range(len(self.pairs))), f"a rule of {len(self.pairs)} pairs names pairs {sorted(places)}")
        require(all(math.isfinite(one.loss) and one.loss >= 0 for one in self.measured), "a loss is finite and >= 0")

    @property
    def name(self) -> str:
        """How people are told of it."""
        return f"rule of bucket {self.percent:g}%"

    def covers(self, workload: Workload) -> Answer:
        """Whether the rule speaks for a workload: one of a measured form, and no size outside of those that were measured."""
        kin = self._kin(workload)
        if not kin:
            return no("no workload of these dtypes, layouts and arguments was measured for it")
        for name, size in workload.dims:
            sizes = [dict(one.dims)[name] for one in kin]
            if not min(sizes) <= size <= max(sizes):
                return no(f"{name} is {size}, it was measured from {min(sizes)} to {max(sizes)}")
        return YES

    def steps(self, workload: Workload) -> Iterator[Step]:
        """The pairs in the order they should be tried, the nearest measured workload's first, each once."""
        seen: set[int] = set()
        for one in sorted(self._kin(workload), key=lambda one: one.away(workload)):
            if one.pair not in seen:
                yield Step(self.pairs[one.pair], self._reason(one, workload, first=not seen))
                seen.add(one.pair)

    def _kin(self, workload: Workload) -> list[Measured]:
        mine, names = form(workload), [name for name, _ in workload.dims]
        return [one for one in self.measured if one.form == mine and [name for name, _ in one.dims] == names]

    def _reason(self, one: Measured, workload: Workload, *, first: bool) -> str:
        made = f"chosen by the {self.name} (matrix {self.matrix_name}{f', run {self.run_id}' if self.run_id else ''})"
        near = "nearest tuned workload" if first else "nearest tuned workload with another pair,"
        return f"{made}: {near} {one.label}, {one.away(workload):.1f} doublings away, within {100 * one.loss:.1f}% of the best there"
