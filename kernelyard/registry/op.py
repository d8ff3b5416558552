"""An op: the contract that every kernel of it keeps, declared as data and plain functions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernelyard.errors import InvalidInput, UnknownName, UsageError
from kernelyard.registry.matrix import ABSENT, GIVEN, LAYOUTS, collapse, lay_out
from kernelyard.registry.matrix import Matrix as Matrix
from kernelyard.registry.matrix import Point as Point
from kernelyard.registry.schema import Argument, parse_schema
from kernelyard.registry.sources import stated
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload, dtype_name, require

if TYPE_CHECKING:
    import torch

TIMED_SEED = 0
"""The seed of the inputs that are timed and traced. Where a cost depends on values, such as lengths, it is that of these."""


@dataclass(frozen=True)
class Gradient:
    """The derivative of an op, used by autograd.

    saved(args, outputs) -> the tensors and scalars that `backward` needs
    backward(saved, grads) -> one gradient (or None) for each argument of the schema; of several outputs, one that nothing was made of
                has None for its grad. By plain torch, or by an op of its own,
                which has kernels: `kernelyard.registry.operator.operator("rmsnorm_backward")(...)`
    """

    saved: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]
    backward: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]


@dataclass(frozen=True)
class Op:
    """A contract. All functions take and return plain values; torch is imported only inside them.

    schema      torch.library schema without the name. An argument that the op writes into is `Tensor(a!) cache`: a call may be repeated on
                the same arguments, as timing does, so what it writes must not depend on what it wrote. Such an op has no gradient
    dims        names of the sizes people give: ('rows', 'cols')
    dtypes      dtypes of the first tensor
    statics     scalar arguments that select code and so belong to a workload
    tensors     (sizes, dtype, statics) -> the workload's tensors by argument name, contiguous; a name in statics with
                matrix.ABSENT for its value is an optional tensor that is not given, which matters where others then differ; with
                matrix.GIVEN one that is, where the usual call has none
    sizes       (tensor specs by name) -> sizes by dim name; raises InvalidInput where they contradict
    validate    (*args) -> None; raises InvalidInput for arguments that no kernel may accept
    empty       (*args) -> tuple of outputs, allocated and not filled, contiguous (meta tensors give meta tensors)
    reference   (*args) -> outputs in the precision of its arguments: the meaning, in plain torch, with nothing
                rounded on the way; called with float32 or float64 arguments. It writes into the arguments that the op writes into
    inputs      (workload, torch.Generator) -> args in schema order, on the generator's device, values typical of the op
    tolerance   (workload) -> Tolerance, derived from dtype and reduction length; of the outputs, then of the arguments written into
    cost        (workload) -> Cost, of the inputs that TIMED_SEED gives
    matrices    points by name: 'correctness', 'performance/cpu', 'performance/cuda', 'held_out/cpu', ...
    filled      names of the tensors whose values edge inputs overwrite
    edges       the kinds of edge values that have a defined result: see kernelyard.verify.edges
    collapse    how many dimensions mean something, from the right: with 2, (2, 8, 64) and (16, 64) are one workload;
                with 1, any shape is one row of elements; with 0, each dimension counts
    merge       (tensor specs by name) -> the same with fewer dimensions, where `collapse` can't say which ones belong together
    layouts     (tensor specs by name) -> the same laid out otherwise, by the name of a layout of the op's own
    assumed     sizes that a shape in words may leave out: {"batch": 1} lets matmul's be 16x4096x4096
    tables      names of tensors that rows are looked up in: how many they have selects no code, a workload has them with one
    in_place    (place of an output, name of an argument): with `out=`, that output may be that very tensor
    fallback    the kernel that serves when no other can: the op as plain torch
    baseline    what users of plain torch call, where the contract asks more than that (and the fallback costs more); to compare with
    """

    name: str
    summary: str
    schema: str
    dims: tuple[str, ...]
    dtypes: tuple[str, ...]
    tensors: Callable[[Mapping[str, int], str, Mapping[str, Scalar]], Mapping[str, TensorSpec | None]]
    sizes: Callable[[Mapping[str, TensorSpec | None]], Mapping[str, int]]
    validate: Callable[..., None]
    empty: Callable[..., tuple[torch.Tensor, ...]]
    reference: Callable[..., Any]
    inputs: Callable[[Workload, torch.Generator], tuple[Any, ...]]
    tolerance: Callable[[Workload], Tolerance]
    cost: Callable[[Workload], Cost]
    matrices: Mapping[str, tuple[Point, ...]]
    statics: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    collapse: int = 0
    merge: Callable[[Mapping[str, TensorSpec | None]], Mapping[str, TensorSpec | None]] | None = None
    layouts: Mapping[str, Callable[[Mapping[str, TensorSpec | None]], Mapping[str, TensorSpec | None]]] = field(default_factory=dict)
    assumed: Mapping[str, int] = field(default_factory=dict)
    gradient: Gradient | None = None
    tables: tuple[str, ...] = ()
    in_place: tuple[tuple[int, str], ...] = ()
    fallback: str = "torch.eager"
    baseline: str = ""
    arguments: tuple[Argument, ...] = field(init=False, repr=False)
    mutated: tuple[str, ...] = field(init=False, repr=False)
    returns: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require(self.name.isidentifier(), f"op name '{self.name}' is not an identifier")
        require(bool(self.dims), f"op '{self.name}' names no dims")
        object.__setattr__(self, "dtypes", tuple(dtype_name(d) for d in self.dtypes))
        arguments, returns = parse_schema(self.schema)
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "returns", returns)
        object.__setattr__(self, "mutated", tuple(argument.name for argument in arguments if argument.mutated))
        require(not (self.mutated and self.gradient), f"op '{self.name}' writes into {self.mutated}: it can't have a gradient")
        names = {argument.name for argument in arguments}
        require(set(self.assumed) <= set(self.dims), f"op '{self.name}' assumes {sorted(self.assumed)}; its dims are {self.dims}")
        unknown = {*self.statics, *self.filled, *self.tables, *(name for _, name in self.in_place)} - names
        require(not unknown, f"op '{self.name}': {sorted(unknown)} are not arguments; those are {sorted(names)}")
        for name, points in self.matrices.items():
            for point in points:
                require(len(point.dims) == len(self.dims), f"op '{self.name}', matrix '{name}': {point.dims} must be {self.dims}")

    # What a call means ------------------------------------------------------------------------------

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments in schema order, defaults filled in; raises InvalidInput as Python would a TypeError."""
        values = dict(zip((a.name for a in self.arguments), args, strict=False))
        positional = [a.name for a in self.arguments if not a.keyword_only]
        if len(args) > len(positional):
            raise InvalidInput(f"{self.name} takes at most {len(positional)} positional arguments, not {len(args)}.", do=self.usage())
        for name, value in kwargs.items():
            if name in values or name not in {a.name for a in self.arguments}:
                problem = "given twice" if name in values else "unknown"
                raise InvalidInput(f"{self.name}: argument '{name}' is {problem}.", do=self.usage())
            values[name] = value
        for argument in self.arguments:
            if argument.required and argument.name not in values:
                raise InvalidInput(f"{self.name}: argument '{argument.name}' is missing.", do=self.usage())
        return tuple(values.get(a.name, a.default) for a in self.arguments)

    def usage(self) -> str:
        """One line: how to call the op."""
        return f"Usage: kernelyard.ops.{self.name}{self.schema}"

    def check(self, args: Sequence[Any]) -> None:
        """Raise InvalidInput unless the (bound) arguments are of the schema's types and keep the contract."""
        import torch

        for argument, value in zip(self.arguments, args, strict=True):
            absent = value is None and argument.type == "Tensor?"
            fits = isinstance(value, torch.Tensor) if argument.tensor else argument.takes(value)
            if not absent and not fits:
                kind = "tensor" if argument.tensor else argument.type
                raise InvalidInput(
                    f"{self.name}: argument '{argument.name}' is of type {type(value).__name__}, not {kind}.", do=self.usage()
                )
        self.validate(*args)

    def workload_of(self, args: Sequence[Any]) -> Workload:
        """The workload that a call with these (bound) arguments asks for."""
        specs: dict[str, TensorSpec | None] = {}
        device = "cpu"
        for argument, value in zip(self.arguments, args, strict=True):
            if argument.tensor:
                specs[argument.name] = None if value is None else self._spec_of(argument.name, value)
                device = value.device.type if value is not None else device
        statics = {a.name: v for a, v in zip(self.arguments, args, strict=True) if a.name in self.statics}
        return self._workload(self.merge(specs) if self.merge else specs, statics, device)

    def _spec_of(self, name: str, tensor: torch.Tensor) -> TensorSpec:
        shape = (1, *tensor.shape[1:]) if name in self.tables else tuple(tensor.shape)
        spec = TensorSpec(shape, str(tensor.dtype), tensor.stride(), tensor.data_ptr() % 16 == 0)
        return collapse(spec, min(self.collapse, self._ranks[name])) if self.collapse else spec

    @cached_property
    def _ranks(self) -> Mapping[str, int]:
        """Dimensions of each tensor as the contract lays out workloads: a weight of (cols,) stays so beside x of (rows, cols)."""
        declared = self.tensors(dict.fromkeys(self.dims, 1), self.dtypes[0], self._static_defaults)
        absent = {a.name: self.collapse for a in self.arguments if a.tensor}
        return absent | {name: len(spec.shape) for name, spec in declared.items() if spec is not None}

    @cached_property
    def _given(self) -> Mapping[str, bool]:
        """Which tensors the usual call has."""
        declared = self.tensors(dict.fromkeys(self.dims, 1) | dict(self.assumed), self.dtypes[0], self._static_defaults)
        return {a.name: declared.get(a.name) is not None for a in self.arguments if a.tensor}

    @cached_property
    def _static_defaults(self) -> Mapping[str, Scalar]:
        return {a.name: a.default for a in self.arguments if a.name in self.statics}

    def _workload(self, specs: Mapping[str, TensorSpec | None], statics: Mapping[str, Scalar], device: str) -> Workload:
        sizes = self.sizes(specs)
        return Workload(
            self.name,
            tuple(specs.items()),
            tuple((a.name, a.scalar(statics[a.name])) for a in self.arguments if a.name in self.statics),
            device,
            tuple((name, sizes[name]) for name in self.dims),
            tuple(self._unusual(specs, statics)),
        )

    def _unusual(self, specs: Mapping[str, TensorSpec | None], statics: Mapping[str, Scalar]) -> Iterator[str]:
        for name, usual in self._static_defaults.items():
            if (value := statics[name]) != usual:
                yield value if isinstance(value, str) else name if value is True else f"{name}={value}"
        for name, spec in specs.items():
            if (spec is not None) != self._given[name]:
                yield f"without {name}" if spec is None else f"with {name}"

    def results(self, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The reference's outputs, then what it leaves in the arguments that the op writes into; `args` stay as they are."""
        own = tuple(value.clone() if argument.mutated else value for argument, value in zip(self.arguments, args, strict=True))
        made = self.reference(*own)
        outputs = tuple(made) if isinstance(made, tuple | list) else (made,)
        return (*outputs, *(value for argument, value in zip(self.arguments, own, strict=True) if argument.mutated))

    # Workloads made from sizes ----------------------------------------------------------------------

    def workload(self, point: Point, device: str = "cpu") -> Workload:
        """The workload of a matrix point on a device type."""
        if point.dtype not in self.dtypes:
            raise UsageError(f"{self.name} has no dtype {point.dtype}.", exists=f"Its dtypes: {', '.join(self.dtypes)}.")
        if len(point.dims) != len(self.dims):
            raise UsageError(f"shape {'x'.join(map(str, point.dims))} does not fit.", exists=f"{self.name} takes {'x'.join(self.dims)}.")
        statics = {**self._static_defaults, **dict(point.statics)}
        optional = {a.name for a in self.arguments if a.type == "Tensor?" and statics.get(a.name) in (ABSENT, GIVEN)}
        for name, value in statics.items():
            argument = next((a for a in self.arguments if a.name == name and name in self.statics), None)
            if name not in optional and (argument is None or not argument.takes(value)):
                raise UsageError(f"{self.name} has no static {name}={value!r}.", exists=f"Its statics: {self._static_defaults}.")
        specs = dict(self.tensors(dict(zip(self.dims, point.dims, strict=True)), point.dtype, statics))
        specs |= dict.fromkeys(name for name in optional if statics[name] == ABSENT)
        laid_out = self._laid_out(specs, point.layout)
        if not point.tensors:
            return self._workload(laid_out, statics, device)
        if unknown := [name for name, _ in point.tensors if name not in laid_out]:
            raise UsageError(f"{self.name} has no tensor {unknown[0]}.", exists=f"Its tensors: {', '.join(laid_out)}.")
        workload = self._workload({**laid_out, **dict(point.tensors)}, statics, device)
        if tuple(size for _, size in workload.dims) != point.dims:
            told = "x".join(str(size) for _, size in workload.dims)
            raise UsageError(f"the tensors of a point of {self.name} are of {told}, its shape says {'x'.join(map(str, point.dims))}.")
        return workload

    def _laid_out(self, specs: Mapping[str, TensorSpec | None], layout: str) -> Mapping[str, TensorSpec | None]:
        if layout in self.layouts:
            return self.layouts[layout](specs)
        (first, base), *others = specs.items()
        assert base is not None
        if layout not in LAYOUTS:
            raise UsageError(f"{self.name} has no layout '{layout}'.", exists=f"Its layouts: {', '.join((*LAYOUTS, *self.layouts))}.")
        return {first: lay_out(base, layout), **dict(others)}

    def parse_shape(self, text: str) -> tuple[int, ...]:
        """Sizes from '16x4096', without those that are assumed or with them; raises UsageError that names the dims."""
        expected = "x".join(f"[{name}]" if name in self.assumed else name for name in self.dims)
        given = text.strip().split("x") if re.fullmatch(r"\d+(x\d+)*", text.strip()) else []
        if len(given) == len(self.dims) - len(self.assumed):
            sizes = iter(given)
            return tuple(self.assumed[name] if name in self.assumed else int(next(sizes)) for name in self.dims)
        if len(given) != len(self.dims):
            frozen = next((points for name, points in self.matrices.items() if name.startswith("performance") and points), ())
            example = "x".join(str(size) for size in frozen[0].dims) if frozen else "x".join(["16"] * len(self.dims))
            raise UsageError(f"shape '{text}' does not parse.", exists=f"{self.name} takes {expected}, such as {example}.")
        return tuple(int(size) for size in given)

    def matrix(self, name: str, device: str) -> Matrix:
        """A frozen matrix: 'correctness', or 'performance' and 'held_out' for a device type."""
        for key in (name, f"{name}/{device}"):
            if key in self.matrices:
                return Matrix(key, self.name, tuple(self.matrices[key]))
        raise UnknownName(f"matrix of {self.name} on {device}", name, self.matrices)

    # Identity ---------------------------------------------------------------------------------------

    def contract_hash(self) -> str:
        """Changes with the schema, the files that state the functions, and those of their package that these import from."""
        return self._contract_hash

    @cached_property
    def _contract_hash(self) -> str:
        functions = (self.reference, self.tolerance, self.validate, self.empty, self.inputs, self.tensors, self.sizes)
        return hashlib.sha256(b"".join(stated(functions)) + self.schema.encode()).hexdigest()[:16]
