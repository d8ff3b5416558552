"""The JSON file of a user's own matrix: written by hand, or by `capture` from a model that ran.

{"format": 2, "name": "mine", "points": [{"op": "rmsnorm", "shape": [16, 4096], "dtype": "bf16", "count": 33}, ...]}

Several ops may share a file. Format 2 adds to a point how often it was asked for (`count`) and the tensors that no layout tells of
(`tensors`: shape, dtype, strides in elements, aligned); a file that says no format is of format 1, which has neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelyard.errors import UsageError
from kernelyard.registry.matrix import Matrix, Point, tensors_from, tensors_payload
from kernelyard.registry.spec import DeclarationError, require

if TYPE_CHECKING:
    from kernelyard.registry.op import Op

FORMAT = 2
KEYS = {1: {"op", "shape", "dtype", "layout", "statics"}}
KEYS[2] = KEYS[1] | {"count", "tensors"}


def read_matrix(path: Path, find_op: Callable[[str], Op]) -> tuple[Matrix, ...]:
    """Matrices from a user's JSON file, one for each op in it; raises UsageError that says which point is wrong."""
    name, rows, keys = _content(path)
    by_op: dict[str, list[tuple[Point, int]]] = {}
    for number, row in enumerate(rows, 1):
        try:
            op, point, count = find_op(row["op"]), _point(row, keys), _count(row)
            op.workload(point)
        except (KeyError, TypeError, AttributeError, DeclarationError) as error:
            raise _unusable(path, f"point {number}, {row!r}: {_told(error)}") from error
        by_op.setdefault(op.name, []).append((point, count))
    counted = any("count" in row for row in rows)
    return tuple(
        Matrix(name, op, tuple(point for point, _ in found), tuple(count for _, count in found) if counted else ())
        for op, found in by_op.items()
    )


def matrix_text(name: str, matrices: Sequence[Matrix]) -> str:
    """The file of these matrices, a line for each point."""
    rows = [_row(m.op, point, count) for m in matrices for point, count in zip(m.points, m.counts, strict=True)]
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    return f'{{"format": {FORMAT}, "name": {json.dumps(name)}, "points": [\n{lines}\n]}}\n'


def _row(op: str, point: Point, count: int) -> dict[str, Any]:
    row: dict[str, Any] = {"op": op, "shape": list(point.dims), "dtype": point.dtype}
    if point.layout != "contiguous":
        row["layout"] = point.layout
    if point.statics:
        row["statics"] = dict(point.statics)
    if point.tensors:
        row["tensors"] = tensors_payload(point)
    return row | {"count": count}


def _content(path: Path) -> tuple[str, list[Any], set[str]]:
    try:
        content = json.loads(path.read_text())
        name, points, version = content.get("name", path.stem), content["points"], content.get("format", 1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unusable(path, _told(error)) from error
    if type(version) is not int or version not in KEYS:
        exists = f"This version of kernelyard reads {' and '.join(map(str, KEYS))}."
        raise UsageError(f"matrix file {path} is of format {version!r}.", exists=exists, do="Update kernelyard, or capture anew.")
    if not isinstance(name, str) or not isinstance(points, list) or not points:
        raise _unusable(path, "it has no points" if points == [] else '"name" must be a text and "points" a list')
    return name, points, KEYS[version]


def _point(row: Mapping[str, Any], keys: set[str]) -> Point:
    unknown = set(row) - keys
    format_2 = ' (with "format": 2 a point may have it)' if unknown and unknown <= KEYS[2] else ""
    require(not unknown, f"unknown {', '.join(sorted(unknown))}{format_2}")
    shape = row["shape"]
    require(isinstance(shape, list) and all(type(size) is int for size in shape), f"shape {shape!r} is not a list of whole numbers")
    statics = tuple(sorted(row.get("statics", {}).items()))
    layout, tensors = row.get("layout", "contiguous"), tensors_from(row.get("tensors", {}))
    return Point(tuple(shape), row.get("dtype", "float32"), layout, statics, tensors)


def _count(row: Mapping[str, Any]) -> int:
    count = row.get("count", 1)
    require(type(count) is int and count > 0, f"count {count!r} is no whole number above 0")
    return int(count)


def _told(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)


def _unusable(path: Path, problem: str) -> UsageError:
    shape = '{"name": "mine", "points": [{"op": "rmsnorm", "shape": [16, 4096], "dtype": "bf16"}]}'
    return UsageError(f"matrix file {path} can't be used: {problem}.", do=f"It must read {shape}.")
