"""From a workload back to the point, and the words, that ask for it."""

from __future__ import annotations

import pytest
import torch

from kernelyard.cli.workloads import matrices
from kernelyard.contracts import MATMUL, RMSNORM, plugin
from kernelyard.registry.matrix import Matrix, Point, point_from, point_payload
from kernelyard.registry.op import Op
from kernelyard.registry.points import command_for, point_of, shape_text
from kernelyard.registry.registry import assemble
from tests.registry.fakes import loaded

TABLE = assemble([loaded(plugin)])
GAPS = RMSNORM.workload_of(RMSNORM.bind((torch.ones(5, 24)[:, 4:12], torch.ones(8)), {}))


@pytest.mark.parametrize("op", TABLE.ops.values(), ids=lambda op: op.name)
def test_every_frozen_point_is_found_again_by_a_layout_s_name(op: Op) -> None:
    for point in {point for name, points in op.matrices.items() for point in points if name in ("smoke", "correctness")}:
        workload = op.workload(point)
        found = point_of(op, workload)
        assert found is not None and op.workload(found).key() == workload.key() and not found.tensors


@pytest.mark.parametrize("text", ["1x16x64x32:linear,activation=gelu,bias=given", "2x3x4x5"])
def test_words_ask_for_the_point_they_were_made_of(text: str) -> None:
    point = Point(MATMUL.parse_shape(text.partition(":")[0]), "bfloat16")
    (matrix,) = matrices(TABLE, ["matmul"], device="cpu", matrix=None, shapes=[text], dtype="bf16", default="")
    assert shape_text(matrix.points[0]) == text and matrix.points[0].dims == point.dims
    command = command_for(MATMUL, MATMUL.workload(matrix.points[0]))
    assert command == f"kernelyard tune matmul --shape {text} --dtype bfloat16 --device cpu"


def test_strides_that_no_layout_names_stand_in_the_point_and_no_words_say_them() -> None:
    point = point_of(RMSNORM, GAPS)
    assert point is not None and dict(point.tensors)["x"].strides == (24, 1) and RMSNORM.workload(point).key() == GAPS.key()
    assert command_for(RMSNORM, GAPS) == ""


def test_a_point_with_strides_survives_json_and_has_a_hash_of_its_own() -> None:
    point = point_of(RMSNORM, GAPS)
    assert point is not None and point_from(point_payload(point)) == point
    assert Matrix("m", "rmsnorm", (point,)).hash != Matrix("m", "rmsnorm", (Point((5, 8), "float32"),)).hash
