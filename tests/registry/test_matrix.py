"""Shape matrices: their hashes, and the file of a user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelyard.contracts import RMSNORM, ROPE, SWIGLU, VECTOR_ADD, plugin
from kernelyard.errors import UnknownName, UsageError
from kernelyard.registry.matrix import ABSENT, Matrix, Point, lay_out
from kernelyard.registry.matrix_file import matrix_text, read_matrix
from kernelyard.registry.registry import assemble
from kernelyard.registry.spec import DeclarationError, TensorSpec
from tests.registry.fakes import loaded

find = assemble([loaded(plugin)]).op


def written(folder: Path, content: Any) -> Path:
    path = folder / "mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_matrix_hashes_by_its_points() -> None:
    one = Matrix("a", "rmsnorm", (Point((1, 4), "fp32"), Point((2, 4), "bf16")))
    assert one.hash == Matrix("b", "rmsnorm", (Point((1, 4), "float32"), Point((2, 4), "bfloat16"))).hash
    llama = Point((1, 4), "fp32", statics=(("casting", "llama"),))
    changed = [Point((1, 5), "fp32"), Point((1, 4), "fp16"), Point((1, 4), "fp32", "row_strided"), llama]
    assert len({one.hash, *(Matrix("a", "rmsnorm", (point, one.points[1])).hash for point in changed)}) == 5
    assert one.hash != Matrix("a", "rmsnorm", one.points[::-1]).hash != Matrix("a", "softmax", one.points[::-1]).hash


def test_the_frozen_matrices_are_frozen() -> None:
    """A change here changes what old results mean: it is made on purpose or not at all."""
    names = ("performance/cpu", "performance/cuda", "held_out/cpu", "held_out/cuda")
    hashes = {op.name: [op.matrix(name, "cpu").hash for name in names] for op in (RMSNORM, SWIGLU, ROPE)}
    assert hashes == {
        "rmsnorm": ["34805701c2c69356", "9ae71857de6b5973", "e68d3e298e4e824f", "af8e3324cd40c944"],
        "swiglu": ["2524803eea2541c6", "d97134cb466cdbcf", "07d54aa57949c2ba", "5361e9009bd46fcc"],
        "rope": ["48afbc5e9861766a", "74d9d838d4dd2408", "9c8ca4b53fe89b63", "8ae72f399d6d6c9f"],
    }


@pytest.mark.parametrize(
    ("layout", "strides"), [("row_strided", (20, 4, 1)), ("transposed", (4, 8, 1)), ("broadcast", (0, 4, 1)), ("contiguous", (12, 4, 1))]
)
def test_layouts_of_three_dimensions_move_the_first(layout: str, strides: tuple[int, ...]) -> None:
    assert lay_out(TensorSpec((2, 3, 4), "float32"), layout).strides == strides


def test_an_optional_tensor_may_be_absent_and_another_may_not() -> None:
    assert not RMSNORM.workload(Point((2, 8), "fp32", statics=(("w", ABSENT),))).has("w")
    for name in ("x", "eps", "nothing"):
        with pytest.raises(UsageError, match=f"rmsnorm has no static {name}='absent'"):
            RMSNORM.workload(Point((2, 8), "fp32", statics=((name, ABSENT),)))


@pytest.mark.parametrize(("dims", "layout", "told"), [((1, -2), "contiguous", "negative size"), ((1, 2), "one, two", "is no name")])
def test_a_point_that_cannot_be_is_refused(dims: tuple[int, ...], layout: str, told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        Point(dims, "fp32", layout)


def test_a_layout_that_an_op_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(UsageError, match=r"no layout 'diagonal'.*contiguous, row_strided"):
        RMSNORM.workload(Point((1, 2), "fp32", "diagonal"))


def test_a_user_s_file_gives_a_matrix_for_each_op_in_it(tmp_path: Path) -> None:
    points = [
        {"op": "rmsnorm", "shape": [16, 4096], "dtype": "bf16", "statics": {"casting": "llama"}},
        {"op": "vector_add", "shape": [7]},
        {"op": "rmsnorm", "shape": [2, 8], "layout": "transposed"},
    ]
    matrices = read_matrix(written(tmp_path, {"name": "ours", "points": points}), find)
    assert [(m.name, m.op) for m in matrices] == [("ours", "rmsnorm"), ("ours", "vector_add")]
    assert matrices[0].points == (Point((16, 4096), "bf16", statics=(("casting", "llama"),)), Point((2, 8), "fp32", "transposed"))
    assert matrices[1].points == (Point((7,), "float32"),) and VECTOR_ADD.workload(matrices[1].points[0])


def test_a_file_without_a_name_is_called_as_the_file_is(tmp_path: Path) -> None:
    assert read_matrix(written(tmp_path, {"points": [{"op": "vector_add", "shape": [7]}]}), find)[0].name == "mine"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "Expecting property name"),
        ("[]", "can't be used"),
        ({}, "'points' is missing"),
        ({"points": []}, "it has no points"),
        ({"points": {}}, '"points" a list'),
        ({"points": [{"shape": [1]}]}, "point 1, .* 'op' is missing"),
        ({"points": [{"op": "vector_add"}]}, "'shape' is missing"),
        ({"points": [{"op": "vector_add", "shape": "4x4"}]}, "shape '4x4' is not a list of whole numbers"),
        ({"points": [{"op": "vector_add", "shape": [1.5]}]}, "not a list of whole numbers"),
        ({"points": [{"op": "vector_add", "shape": [-1]}]}, "negative size"),
        ({"points": [{"op": "vector_add", "shape": [1], "dtype": "fp12"}]}, "no dtype 'fp12'"),
        ({"points": [{"op": "vector_add", "shape": [1], "dtype": 4}]}, "point 1"),
        ({"points": [{"op": "vector_add", "shape": [1], "layout": "transposed"}]}, "for two dimensions"),
        ({"points": [{"op": "vector_add", "shape": [1], "dtpye": "bf16"}]}, "unknown dtpye"),
        ({"points": [{"op": "vector_add", "shape": [1]}, 7]}, "point 2, 7"),
        ({"points": [{"op": "vector_add", "shape": [1, 2]}]}, "shape 1x2 does not fit. vector_add takes n"),
        ({"points": [{"op": "rmsnorm", "shape": [1, 2], "statics": {"speed": 1}}]}, "no static speed=1"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_point(tmp_path: Path, content: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_matrix(written(tmp_path, content), find)


def test_a_file_of_format_2_has_counts_and_strides_and_reads_as_it_was_written(tmp_path: Path) -> None:
    gaps = Point((5, 8), "fp32", tensors=(("x", TensorSpec((5, 8), "float32", (24, 1), aligned=False)),))
    plain = Point((2, 8), "bf16", "offset", (("w", ABSENT),))
    matrices = [Matrix("m", "rmsnorm", (gaps, plain), (3, 1)), Matrix("m", "vector_add", (Point((7,), "fp32"),), (9,))]
    read = read_matrix(written(tmp_path, matrix_text("m", matrices)), find)
    assert list(read) == matrices and [m.hash for m in read] == [m.hash for m in matrices]


def test_counts_are_no_part_of_the_hash() -> None:
    point = Point((7,), "fp32")
    assert Matrix("m", "vector_add", (point,), (9,)).hash == Matrix("m", "vector_add", (point,)).hash


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"format": 3, "points": [{}]}, r"is of format 3. This version of kernelyard reads 1 and 2"),
        ({"format": "2", "points": [{}]}, "is of format '2'"),
        ({"points": [{"op": "vector_add", "shape": [1], "count": 2}]}, 'unknown count .with "format": 2'),
        ({"format": 2, "points": [{"op": "vector_add", "shape": [1], "count": 0}]}, "count 0 is no whole number above 0"),
        ({"format": 2, "points": [{"op": "vector_add", "shape": [1], "count": True}]}, "count True is no"),
        ({"format": 2, "points": [{"op": "vector_add", "shape": [1], "tensors": {"z": {"shape": [1], "dtype": "int8"}}}]}, "no tensor z"),
        ({"format": 2, "points": [{"op": "rmsnorm", "shape": [1, 2], "tensors": {"x": {"shape": [3, 4], "dtype": "fp32"}}}]}, "are of 3x4"),
        ({"format": 2, "points": [{"op": "rmsnorm", "shape": [1, 2], "tensors": {"x": {"sizes": [1]}}}]}, "point 1"),
        ({"format": 2, "points": [{"op": "rmsnorm", "shape": [1, 2], "tensors": [1]}]}, "point 1"),
    ],
)
def test_a_file_of_format_2_that_is_wrong_is_refused_too(tmp_path: Path, content: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_matrix(written(tmp_path, content), find)


def test_a_file_with_an_unknown_op_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"no op named 'rms'. There are: .*rmsnorm, .*softmax, .*vector_add"):
        read_matrix(written(tmp_path, {"points": [{"op": "rms", "shape": [1]}]}), find)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="can't be used"):
        read_matrix(path, find)
    with pytest.raises(UsageError, match="can't be used"):
        read_matrix(tmp_path, find)
