"""From what the user typed (op, --shape, --dtype, --matrix) to a frozen matrix.

A shape may say what is unusual behind a colon, a layout and statics: `1x4096x4096:linear,bias=given,activation=gelu`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelyard.errors import UsageError
from kernelyard.registry.matrix_file import read_matrix
from kernelyard.registry.op import Matrix, Op, Point
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import DeclarationError, Scalar, dtype_name


def matrices(
    registry: Registry, ops: Sequence[str], *, device: str, matrix: str | None, shapes: Sequence[str], dtype: str | None, default: str
) -> list[Matrix]:
    """One matrix for each op, in the order given; raises UsageError or UnknownName before any work."""
    found = [registry.op(name) for name in ops]
    if shapes and matrix:
        raise UsageError("--shape and --matrix both say which sizes.", do="Give one of them.")
    if dtype and not shapes:
        raise UsageError("--dtype goes with --shape: a matrix has its own dtypes.", do="Add --shape, such as --shape 16x4096.")
    if shapes:
        return [_typed(op, shapes, dtype, device) for op in found]
    if matrix and is_file(matrix):
        return _from_file(registry, found, Path(matrix))
    return [op.matrix(matrix or default, device) for op in found]


def is_file(matrix: str | None) -> bool:
    """Whether --matrix names a file, not a frozen matrix."""
    return matrix is not None and (Path(matrix).suffix == ".json" or Path(matrix).exists())


def _typed(op: Op, shapes: Sequence[str], dtype: str | None, device: str) -> Matrix:
    try:
        name = dtype_name(dtype) if dtype else ("bfloat16" if device == "cuda" and "bfloat16" in op.dtypes else op.dtypes[0])
    except DeclarationError as error:
        raise UsageError(f"{error}.") from error
    points = tuple(_point(op, shape, name) for shape in shapes)
    for point in points:
        op.workload(point, device)
    return Matrix("command line", op.name, points)


def _point(op: Op, text: str, dtype: str) -> Point:
    sizes, _, more = text.partition(":")
    words = [word.strip() for word in more.split(",") if word.strip()]
    layouts = [word for word in words if "=" not in word]
    if len(layouts) > 1:
        raise UsageError(f"shape '{text}' has two layouts, {' and '.join(layouts[:2])}.", do="Give one of them.")
    statics = tuple(_static(op, *(part.strip() for part in word.split("=", 1))) for word in words if "=" in word)
    try:
        return Point(op.parse_shape(sizes), dtype, layouts[0] if layouts else "contiguous", statics)
    except DeclarationError as error:
        raise UsageError(f"shape '{text}' can't be used: {error}.") from error


def _static(op: Op, name: str, value: str) -> tuple[str, Scalar]:
    """One static by its argument's type; what is none stays a text, for the op to refuse with those it has."""
    kind = next((argument.type for argument in op.arguments if argument.name == name), "")
    if kind == "bool" and value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    if kind in ("int", "float"):
        try:
            return name, int(value) if kind == "int" else float(value)
        except ValueError:
            return name, value
    return name, value


def _from_file(registry: Registry, ops: Sequence[Op], path: Path) -> list[Matrix]:
    if not path.exists():
        raise UsageError(f"matrix file {path} does not exist.")
    by_op = {matrix.op: matrix for matrix in read_matrix(path, registry.op)}
    missing = [op.name for op in ops if op.name not in by_op]
    if missing:
        raise UsageError(f"matrix file {path} has no points of {', '.join(missing)}.", exists=f"It has {', '.join(by_op)}.")
    return [by_op[op.name] for op in ops] if ops else list(by_op.values())
