"""Ops: binding, types, the workload that a call means, and the contract's hash."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelyard import contracts
from kernelyard.contracts import RMSNORM, SOFTMAX, VECTOR_ADD, plugin
from kernelyard.errors import InvalidInput, UnknownName, UsageError
from kernelyard.registry.matrix import LAYOUTS
from kernelyard.registry.op import Op, Point
from kernelyard.registry.sources import stated
from kernelyard.registry.spec import DeclarationError, TensorSpec, Workload
from tests.registry.fakes import SCALE, make_op


def asked(op: Op, *args: Any, **kwargs: Any) -> Workload:
    return op.workload_of(op.bind(args, kwargs))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "a b"}, "not an identifier"),
        ({"dims": ()}, "names no dims"),
        ({"dtypes": ("fp12",)}, "no dtype 'fp12'"),
        ({"statics": ("speed",)}, "'speed'. are not arguments"),
        ({"filled": ("y",)}, "'y'. are not arguments"),
        ({"matrices": {"correctness": (Point((1,), "fp32"),)}}, "matrix 'correctness'"),
    ],
)
def test_an_op_that_is_badly_declared_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        make_op(**changes)


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "argument 'x' is missing"),
        ((1, 2, 3, 4), {}, "takes at most 3 positional arguments, not 4"),
        ((1,), {"x": 1}, "argument 'x' is given twice"),
        ((1,), {"scale": 1}, "argument 'scale' is unknown"),
    ],
)
def test_arguments_that_do_not_bind_are_refused_with_the_usage(args: tuple[Any, ...], kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told) as caught:
        RMSNORM.bind(args, kwargs)
    assert "Usage: kernelyard.ops.rmsnorm(Tensor x, Tensor? w=None" in str(caught.value)


@pytest.mark.parametrize(
    ("position", "value", "told"),
    [
        (0, None, "'x' is of type NoneType, not tensor"),
        (0, [1.0], "'x' is of type list, not tensor"),
        (1, 3, "'w' is of type int, not tensor"),
        (2, "small", "'eps' is of type str, not float"),
        (2, True, "'eps' is of type bool, not float"),
        (2, torch.tensor(1.0), "'eps' is of type Tensor, not float"),
        (4, 1, "'casting' is of type int, not str"),
    ],
)
def test_an_argument_of_another_type_is_named(position: int, value: Any, told: str) -> None:
    args = [torch.ones(2, 4), None, 1e-6, 0.0, "fp32"]
    args[position] = value
    with pytest.raises(InvalidInput, match=told):
        RMSNORM.check(args)


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8), (1, 2, 3, 8), (6, 1, 8)])
def test_leading_dimensions_that_view_as_rows_are_one_workload(shape: tuple[int, ...]) -> None:
    w = torch.ones(8)
    assert asked(RMSNORM, torch.ones(shape), w) == RMSNORM.workload(Point((6, 8), "float32"))


def test_a_row_is_a_matrix_of_one_row_and_a_weight_stays_a_row() -> None:
    workload = asked(RMSNORM, torch.ones(8), torch.ones(8))
    assert workload == RMSNORM.workload(Point((1, 8), "float32"))
    assert workload["w"].shape == (8,) and dict(workload.dims) == {"rows": 1, "cols": 8}


@pytest.mark.parametrize(
    ("op", "layout"),
    [(op, layout) for op in (SOFTMAX, RMSNORM) for layout in LAYOUTS] + [(VECTOR_ADD, "contiguous"), (VECTOR_ADD, "offset")],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_call_with_a_point_s_inputs_asks_for_the_point_s_workload(op: Op, layout: str) -> None:
    """Else a tuned choice would never be found."""
    workload = op.workload(Point((33, 129)[: len(op.dims)], "float32", layout))
    args = op.inputs(workload, torch.Generator().manual_seed(0))
    assert op.workload_of(args) == workload and op.workload_of(args).key() == workload.key()


def test_leading_dimensions_that_do_not_view_as_rows_stay_and_are_counted() -> None:
    workload = asked(SOFTMAX, torch.ones(4, 3, 8).transpose(0, 1))
    assert workload["x"] == TensorSpec((3, 4, 8), "float32", (8, 24, 1))
    assert dict(workload.dims) == {"rows": 12, "cols": 8}


def test_a_gap_between_blocks_of_rows_keeps_the_dimensions() -> None:
    assert asked(SOFTMAX, torch.ones(2, 4, 8)[:, :3])["x"] == TensorSpec((2, 3, 8), "float32", (32, 8, 1))


def test_rows_repeated_by_a_stride_of_zero_collapse() -> None:
    assert asked(SOFTMAX, torch.ones(8).expand(2, 3, 8))["x"] == TensorSpec((6, 8), "float32", (0, 1))


@pytest.mark.parametrize(("shape", "dims"), [((0, 8), (0, 8)), ((4, 0), (4, 0)), ((2, 0, 8), (0, 8)), ((2, 3, 0), (6, 0))])
def test_empty_tensors_keep_their_sizes(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    assert tuple(size for _, size in asked(SOFTMAX, torch.ones(shape)).dims) == dims


def test_any_shape_of_an_elementwise_op_is_its_elements() -> None:
    for shape in [(), (1,), (2, 3), (2, 3, 4)]:
        x = torch.ones(shape)
        assert asked(VECTOR_ADD, x, x) == VECTOR_ADD.workload(Point((x.numel(),), "float32"))


def test_strides_and_misalignment_are_part_of_the_workload() -> None:
    base = torch.ones(8, 17)
    keys = {asked(SOFTMAX, x).key() for x in (base[:, :8].clone(), base[:, :8], base.t()[:8], base.flatten()[1:65].view(8, 8))}
    assert len(keys) == 4


def test_a_scalar_that_selects_code_is_part_of_the_workload_whatever_number_it_is_written_as() -> None:
    x, w = torch.ones(2, 8), torch.ones(8)
    assert asked(RMSNORM, x, w, offset=1).key() == asked(RMSNORM, x, w, offset=1.0).key() != asked(RMSNORM, x, w).key()
    assert asked(RMSNORM, x, w, casting="llama").key() != asked(RMSNORM, x, w).key() == asked(RMSNORM, x, w, 1e-3).key()


@pytest.mark.parametrize(("text", "dims"), [("16x4096", (16, 4096)), (" 1x1 ", (1, 1)), ("0x4", (0, 4))])
def test_a_shape_parses(text: str, dims: tuple[int, ...]) -> None:
    assert RMSNORM.parse_shape(text) == dims


@pytest.mark.parametrize("text", ["4x", "", "x4", "-1x4", "4", "4x4x4", "4,4", "4x4.0", "axb"])
def test_a_shape_that_does_not_parse_is_told_the_dims_and_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="rmsnorm takes rowsxcols, such as 1x4096") as caught:
        RMSNORM.parse_shape(text)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("point", "told"),
    [
        (Point((2, 4), "float64"), "scale has no dtype float64"),
        (Point((2,), "float32"), "shape 2 does not fit"),
        (Point((2, 4), "float32", statics=(("speed", 1),)), "no static speed=1"),
    ],
)
def test_a_point_that_the_op_does_not_have_is_refused(point: Point, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        SCALE.workload(point)


def test_a_static_of_another_type_is_refused() -> None:
    with pytest.raises(UsageError, match="no static casting=1"):
        RMSNORM.workload(Point((2, 4), "float32", statics=(("casting", 1),)))


def test_a_matrix_is_found_by_name_for_the_device() -> None:
    assert RMSNORM.matrix("performance", "cpu").name == "performance/cpu"
    assert RMSNORM.matrix("correctness", "cuda").name == "correctness"
    with pytest.raises(UnknownName, match="no matrix of rmsnorm on cpu named 'fast'"):
        RMSNORM.matrix("fast", "cpu")


def test_the_contract_s_hash_follows_its_file_and_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "stranger_contract.py"
    monkeypatch.syspath_prepend(tmp_path)
    hashes = []
    for text in ("x * factor", "factor * x"):
        file.write_text(f"def reference(x, factor):\n    return {text}\n")
        importlib.invalidate_caches()
        module = importlib.import_module("stranger_contract")
        hashes += [make_op(reference=module.reference).contract_hash(), make_op(reference=module.reference).contract_hash()]
    other = make_op(reference=module.reference, schema="(Tensor x, float factor=3.0) -> Tensor").contract_hash()
    assert hashes[0] == hashes[1] != hashes[2] == hashes[3] != other


@pytest.fixture
def contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """The hash of an op whose contract lies in a package of these files, imported anew."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stranger").mkdir()

    def told(**texts: str) -> str:
        for name, text in {"__init__": "", **texts}.items():
            (tmp_path / "stranger" / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        for name in [name for name in sys.modules if name.split(".")[0] == "stranger"]:
            del sys.modules[name]
        module = importlib.import_module("stranger.contract")
        return make_op(reference=module.reference, tolerance=module.tolerance).contract_hash()

    yield told
    for name in [name for name in sys.modules if name.split(".")[0] == "stranger"]:
        del sys.modules[name]


REFERENCE = "def reference(x, factor):\n    return x * factor\n\n\n"


@pytest.mark.parametrize(
    "statement",
    [
        "from stranger.parts import HALF", "from .parts import HALF", "from stranger import parts\nHALF = parts.HALF",
        "from . import parts\nHALF = parts.HALF", "import stranger.parts\nHALF = stranger.parts.HALF", "from stranger.between import HALF",
        "def late():\n    from stranger.parts import HALF",
    ],
)  # fmt: skip
def test_the_contract_s_hash_follows_the_parts_of_a_tolerance_wherever_in_its_package(statement: str, contract: Callable[..., str]) -> None:
    between = "from stranger.parts import HALF\n"
    file = f"{statement}\n\n\n{REFERENCE}def tolerance(workload):\n    return HALF\n"
    before, after = (contract(contract=file, between=between, parts=f"HALF = {half}\n", beside=f"HALF = {half}\n") for half in (0.5, 0.25))
    assert before != after
    assert after == contract(contract=file, between=between, parts="HALF = 0.25\n", beside="HALF = 1.0\n"), "what it doesn't import"


def test_a_tolerance_in_a_file_that_the_meaning_does_not_import_counts(contract: Callable[..., str]) -> None:
    file = "from stranger.meaning import reference\n\n\ndef tolerance(workload):\n    return {}\n"
    hashes = {contract(contract=file.format(half), meaning=REFERENCE) for half in (0.5, 0.25)}
    assert len(hashes) == 2


@pytest.mark.parametrize(
    ("op", "parts"),
    [("matmul", "matmul_points"), ("attention", "attention_points"), ("attention_decode", "attention"), ("linear_swiglu", "rows")],
)
def test_the_contracts_own_parts_are_in_their_hashes(op: str, parts: str) -> None:
    declared = next(one for one in plugin.ops if one.name == op)
    content = Path(contracts.__file__).with_name(f"{parts}.py").read_bytes()
    assert content in tuple(stated((declared.reference, declared.tolerance)))


def test_a_contract_without_a_file_still_has_a_hash() -> None:
    names: dict[str, Any] = {}
    exec("def reference(x, factor):\n    return x", names)
    assert make_op(reference=names["reference"]).contract_hash() == make_op(reference=torch.mul).contract_hash()
