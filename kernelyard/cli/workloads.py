"""From what the user typed (op, --shape, --dtype, --matrix) to a frozen matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelyard.errors import UsageError
from kernelyard.registry.op import Matrix, Op, Point, read_matrix
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import DeclarationError, dtype_name


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
    if matrix and (Path(matrix).suffix == ".json" or Path(matrix).exists()):
        return _from_file(registry, found, Path(matrix))
    return [op.matrix(matrix or default, device) for op in found]


def _typed(op: Op, shapes: Sequence[str], dtype: str | None, device: str) -> Matrix:
    try:
        name = dtype_name(dtype) if dtype else ("bfloat16" if device == "cuda" and "bfloat16" in op.dtypes else op.dtypes[0])
    except DeclarationError as error:
        raise UsageError(f"{error}.") from error
    points = tuple(Point(op.parse_shape(shape), name) for shape in shapes)
    for point in points:
        op.workload(point, device)
    return Matrix("command line", op.name, points)


def _from_file(registry: Registry, ops: Sequence[Op], path: Path) -> list[Matrix]:
    if not path.exists():
        raise UsageError(f"matrix file {path} does not exist.")
    by_op = {matrix.op: matrix for matrix in read_matrix(path, registry.op)}
    missing = [op.name for op in ops if op.name not in by_op]
    if missing:
        raise UsageError(f"matrix file {path} has no points of {', '.join(missing)}.", exists=f"It has {', '.join(by_op)}.")
    return [by_op[op.name] for op in ops] if ops else list(by_op.values())
