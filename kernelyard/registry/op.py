"""An op: the contract that every kernel of it keeps, declared as data and plain functions."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelyard.errors import InvalidInput, UnknownName, UsageError
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload, digest, dtype_name, require

if TYPE_CHECKING:
    import torch

_ARGUMENT = re.compile(r"^(?P<type>Tensor\??|float|int|bool|str)(?:\(\w!\))? (?P<name>\w+)(?:=(?P<default>.+))?$")
_DEFAULTS: Mapping[str, Callable[[str], Any]] = {
    "float": float, "int": int, "bool": lambda t: t == "True", "str": lambda t: t.strip("\"'"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an op's schema."""

    name: str
    type: str
    default: Any
    required: bool
    keyword_only: bool

    @property
    def tensor(self) -> bool:
        """Whether it is a tensor, optional or not."""
        return self.type.startswith("Tensor")


def parse_schema(schema: str) -> tuple[tuple[Argument, ...], int]:
    """The arguments and the number of returned tensors of a torch.library schema such as
    `(Tensor x, Tensor? w=None, float eps=1e-06, *, float offset=0.0) -> Tensor`."""
    inside, arrow, returns = schema.partition("->")
    require(bool(arrow) and inside.strip().startswith("("), f"schema '{schema}' must read '(Tensor x, ...) -> Tensor'")
    arguments, keyword_only = [], False
    for part in filter(None, (text.strip() for text in inside.strip()[1:-1].split(","))):
        if part == "*":
            keyword_only = True
            continue
        match = _ARGUMENT.match(part)
        require(match is not None, f"schema argument '{part}' must be 'Tensor x', 'Tensor? w=None', 'float eps=1e-06', ...")
        assert match is not None
        kind, name, text = match["type"], match["name"], match["default"]
        default = None if text in (None, "None") else _DEFAULTS[kind](text)
        arguments.append(Argument(name, kind, default, text is None, keyword_only))
    count = returns.count("Tensor")
    require(count >= 1, f"schema '{schema}' must return at least one Tensor")
    return tuple(arguments), count


@dataclass(frozen=True, slots=True)
class Point:
    """One row of a shape matrix, before a device is known: sizes in the order of `Op.dims`.

    `layout` is 'contiguous', 'row_strided' (a gap after every row), 'transposed', 'broadcast' (rows repeat through
    a stride of 0) or 'offset' (starts one element past a 16-byte boundary).
    """

    dims: tuple[int, ...]
    dtype: str
    layout: str = "contiguous"
    statics: tuple[tuple[str, Scalar], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", tuple(int(size) for size in self.dims))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        require(self.layout in LAYOUTS, f"layout '{self.layout}' is not one of {', '.join(LAYOUTS)}")
        require(all(size >= 0 for size in self.dims), f"dims {self.dims} have a negative size")


LAYOUTS = ("contiguous", "row_strided", "transposed", "broadcast", "offset")


@dataclass(frozen=True)
class Matrix:
    """A named, frozen, hashed list of points of one op."""

    name: str
    op: str
    points: tuple[Point, ...]

    @cached_property
    def hash(self) -> str:
        """Content hash; stored with every result."""
        return digest([self.op, [[p.dims, p.dtype, p.layout, p.statics] for p in self.points]])


@dataclass(frozen=True)
class Gradient:
    """The derivative of an op as plain torch, used by autograd.

    saved(args, outputs) -> the tensors and scalars that `backward` needs
    backward(saved, grads) -> one gradient (or None) for each argument of the schema
    """

    saved: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]
    backward: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]


@dataclass(frozen=True)
class Op:
    """A contract. All functions take and return plain values; torch is imported only inside them.

    schema      torch.library schema without the name
    dims        names of the sizes people give: ('rows', 'cols')
    dtypes      dtypes of the first tensor
    statics     scalar arguments that select code and so belong to a workload
    tensors     (sizes, dtype, statics) -> the workload's tensors by argument name, contiguous
    sizes       (tensor specs by name) -> sizes by dim name; raises InvalidInput where they contradict
    validate    (*args) -> None; raises InvalidInput for arguments that no kernel may accept
    empty       (*args) -> tuple of outputs, allocated and not filled, contiguous (meta tensors give meta tensors)
    reference   (*args) -> outputs in the precision of its arguments: the meaning, in plain torch, with nothing
                rounded on the way; called with float32 or float64 arguments
    inputs      (workload, torch.Generator) -> args in schema order, on the generator's device, values typical of the op
    tolerance   (workload) -> Tolerance, derived from dtype and reduction length
    cost        (workload) -> Cost
    matrices    points by name: 'correctness', 'performance/cpu', 'performance/cuda', 'held_out/cpu', ...
    filled      names of the tensors whose values edge inputs overwrite
    edges       the kinds of edge values that have a defined result: see kernelyard.verify.edges
    collapse    how many dimensions mean something, from the right: with 2, (2, 8, 64) and (16, 64) are one workload;
                with 1, any shape is one row of elements; with 0, each dimension counts
    fallback    the kernel that serves when no other can: the op as plain torch
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
    gradient: Gradient | None = None
    fallback: str = "torch.eager"
    arguments: tuple[Argument, ...] = field(init=False, repr=False)
    returns: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require(self.name.isidentifier(), f"op name '{self.name}' is not an identifier")
        require(bool(self.dims), f"op '{self.name}' names no dims")
        object.__setattr__(self, "dtypes", tuple(dtype_name(d) for d in self.dtypes))
        arguments, returns = parse_schema(self.schema)
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "returns", returns)
        names = {argument.name for argument in arguments}
        unknown = (set(self.statics) | set(self.filled)) - names
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

    def workload_of(self, args: Sequence[Any]) -> Workload:
        """The workload that a call with these (bound) arguments asks for."""
        specs: dict[str, TensorSpec | None] = {}
        device = "cpu"
        for argument, value in zip(self.arguments, args, strict=True):
            if argument.tensor:
                specs[argument.name] = None if value is None else self._spec_of(value)
                device = value.device.type if value is not None else device
        statics = {a.name: v for a, v in zip(self.arguments, args, strict=True) if a.name in self.statics}
        return self._workload(specs, statics, device)

    def _spec_of(self, tensor: torch.Tensor) -> TensorSpec:
        shape, strides = tuple(tensor.shape), tensor.stride()
        spec = TensorSpec(shape, str(tensor.dtype), strides, tensor.data_ptr() % 16 == 0)
        return collapse(spec, self.collapse) if self.collapse else spec

    def _workload(self, specs: Mapping[str, TensorSpec | None], statics: Mapping[str, Scalar], device: str) -> Workload:
        sizes = self.sizes(specs)
        return Workload(
            self.name,
            tuple(specs.items()),
            tuple((name, statics[name]) for name in self.statics),
            device,
            tuple((name, sizes[name]) for name in self.dims),
        )

    # Workloads made from sizes ----------------------------------------------------------------------

    def workload(self, point: Point, device: str = "cpu") -> Workload:
        """The workload of a matrix point on a device type."""
        if point.dtype not in self.dtypes:
            raise UsageError(f"{self.name} has no dtype {point.dtype}.", exists=f"Its dtypes: {', '.join(self.dtypes)}.")
        defaults = {a.name: a.default for a in self.arguments if a.name in self.statics}
        statics = {**defaults, **dict(point.statics)}
        specs = dict(self.tensors(dict(zip(self.dims, point.dims, strict=True)), point.dtype, statics))
        first = next(iter(specs))
        base = specs[first]
        assert base is not None
        specs[first] = lay_out(base, point.layout)
        return self._workload(specs, statics, device)

    def parse_shape(self, text: str) -> tuple[int, ...]:
        """Sizes from '16x4096'; raises UsageError that names the dims."""
        expected = "x".join(self.dims)
        if not re.fullmatch(r"\d+(x\d+)*", text.strip()) or text.strip().count("x") != len(self.dims) - 1:
            example = "x".join(str(size) for size in next(iter(self.matrices.values()))[0].dims) if self.matrices else expected
            raise UsageError(f"shape '{text}' does not parse.", exists=f"{self.name} takes {expected}, such as {example}.")
        return tuple(int(size) for size in text.strip().split("x"))

    def matrix(self, name: str, device: str) -> Matrix:
        """A frozen matrix: 'correctness', or 'performance' and 'held_out' for a device type."""
        for key in (name, f"{name}/{device}"):
            if key in self.matrices:
                return Matrix(key, self.name, tuple(self.matrices[key]))
        raise UnknownName(f"matrix of {self.name} on {device}", name, self.matrices)

    # Identity ---------------------------------------------------------------------------------------

    def contract_hash(self) -> str:
        """Changes when the file that states the contract does, or the schema."""
        return _contract_hash(self)


_contract_hashes: dict[int, str] = {}


def _contract_hash(op: Op) -> str:
    if id(op) not in _contract_hashes:
        file = inspect.getsourcefile(op.reference)
        source = Path(file).read_bytes() if file else b""
        _contract_hashes[id(op)] = hashlib.sha256(source + op.schema.encode()).hexdigest()[:16]
    return _contract_hashes[id(op)]


def collapse(spec: TensorSpec, keep: int) -> TensorSpec:
    """The spec with `keep` dimensions: the leading ones as one where the strides allow it, or ones put before.

    With keep=2, (2, 8, 64) becomes (16, 64) and (64,) becomes (1, 64). What can't be so viewed stays.
    """
    shape, strides = spec.shape, spec.strides
    if len(shape) < keep:
        missing = keep - len(shape)
        return TensorSpec((1,) * missing + shape, spec.dtype, (max(spec.numel, 1),) * missing + strides, spec.aligned)
    lead = len(shape) - keep + 1
    steps = [(n, s) for n, s in zip(shape[:lead], strides[:lead], strict=True) if n != 1]
    if lead == 1 or (spec.numel and any(outer != n * inner for (_, outer), (n, inner) in pairwise(steps))):
        return spec
    step = steps[-1][1] if steps else math.prod(shape[lead:])
    return TensorSpec((math.prod(shape[:lead]), *shape[lead:]), spec.dtype, (step, *strides[lead:]), spec.aligned)


def lay_out(spec: TensorSpec, layout: str) -> TensorSpec:
    """The same shape and dtype under a layout of `Point.layout`."""
    if layout == "contiguous":
        return spec
    if layout == "offset":
        return TensorSpec(spec.shape, spec.dtype, spec.strides, aligned=False)
    require(len(spec.shape) == 2, f"layout '{layout}' is for two dimensions, not {spec.shape}")
    rows, cols = spec.shape
    strides = {"row_strided": (cols + 8, 1), "transposed": (1, max(rows, 1)), "broadcast": (0, 1)}[layout]
    return TensorSpec(spec.shape, spec.dtype, strides, spec.aligned)


def read_matrix(path: Path, find_op: Callable[[str], Op]) -> tuple[Matrix, ...]:
    """Matrices from a user's JSON file, one for each op in it.

    {"name": "mine", "points": [{"op": "rmsnorm", "shape": [16, 4096], "dtype": "bf16"}, ...]}
    """
    import json

    try:
        content = json.loads(path.read_text())
        points = content["points"]
        rows = [(find_op(p["op"]), Point(tuple(p["shape"]), p.get("dtype", "float32"), p.get("layout", "contiguous"),
                 tuple(sorted(p.get("statics", {}).items())))) for p in points]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"matrix file {path} can't be used: {type(error).__name__}: {error}.",
            do='It must read {"name": "mine", "points": [{"op": "rmsnorm", "shape": [16, 4096], "dtype": "bf16"}]}.',
        ) from error
    if not rows:
        raise UsageError(f"matrix file {path} has no points.")
    for op, point in rows:
        op.workload(point)
    names = dict.fromkeys(op.name for op, _ in rows)
    return tuple(Matrix(content.get("name", path.stem), name, tuple(p for o, p in rows if o.name == name)) for name in names)
