"""Config spaces: what of a kernel can be tuned, why those values, and which combinations make sense."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kernelyard.registry.spec import YES, Answer, Config, Scalar, Workload, digest, no, require


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tunable: its allowed values in rising cost or complexity, and the reason for the range."""

    name: str
    values: tuple[Scalar, ...]
    why: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        require(self.name.isidentifier(), f"parameter name '{self.name}' is not an identifier")
        require(len(self.values) > 0, f"parameter '{self.name}' has no values")
        require(len(set(map(repr, self.values))) == len(self.values), f"parameter '{self.name}' repeats a value: {self.values}")
        require(bool(self.why), f"parameter '{self.name}' needs a why: the reason for its range")


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule a config must keep on a workload; `reason` says what breaks otherwise."""

    holds: Callable[[Config, Workload], bool]
    reason: str


@dataclass(frozen=True, slots=True)
class ConfigSpace:
    """The parameters of a kernel, their constraints, and the author's default and hints.

    `default` and `hints` may depend on the workload; the default is trial 0.
    """

    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    default: Callable[[Workload], Config] | None = None
    hints: Callable[[Workload], tuple[Config, ...]] | None = None
    _names: frozenset[str] = field(init=False, repr=False, compare=False, default=frozenset())

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", tuple(self.parameters))
        object.__setattr__(self, "constraints", tuple(self.constraints))
        names = [parameter.name for parameter in self.parameters]
        require(len(set(names)) == len(names), f"a config space repeats a parameter: {names}")
        object.__setattr__(self, "_names", frozenset(names))

    @property
    def size(self) -> int:
        """Combinations, before constraints."""
        return math.prod(len(parameter.values) for parameter in self.parameters)

    def default_for(self, workload: Workload) -> Config:
        """The author's config for this workload, else the first value of each parameter that constraints allow."""
        if self.default is not None:
            return dict(self.default(workload))
        return next(self.configs(workload), {})

    def hints_for(self, workload: Workload) -> tuple[Config, ...]:
        """Configs the author would try first, the default before all."""
        extra = self.hints(workload) if self.hints is not None else ()
        return (self.default_for(workload), *extra)

    def configs(self, workload: Workload) -> Iterator[Config]:
        """Every config that the constraints allow on this workload, in declared order."""
        names = [parameter.name for parameter in self.parameters]
        for values in itertools.product(*(parameter.values for parameter in self.parameters)):
            config = dict(zip(names, values, strict=True))
            if self.allows(config, workload):
                yield config

    def allows(self, config: Config, workload: Workload) -> Answer:
        """Whether the config is of this space and keeps its constraints; else the reason."""
        if not (answer := self.holds(config)):
            return answer
        for constraint in self.constraints:
            if not constraint.holds(config, workload):
                return no(constraint.reason)
        return YES

    def holds(self, config: Config) -> Answer:
        """Whether the config has this space's parameters, each with one of its values; constraints, which are code, are not asked."""
        if set(config) != self._names:
            return no(f"config has {sorted(config)}, the space has {sorted(self._names)}")
        for parameter in self.parameters:
            value = config[parameter.name]
            if not any(value == v and type(value) is type(v) for v in parameter.values):
                return no(f"{parameter.name}={value!r} is not one of {list(parameter.values)}")
        return YES

    def hash(self) -> str:
        """Changes when parameters, values or constraints do."""
        return digest([[p.name, list(p.values)] for p in self.parameters] + [c.reason for c in self.constraints])
