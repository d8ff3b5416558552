"""Capture: what a model asks for becomes a matrix file, counted only while it is open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import kernelyard
from kernelyard.errors import StoreFailed, UsageError
from kernelyard.registry import registry, selections
from kernelyard.registry.matrix import Matrix, Point
from kernelyard.registry.matrix_file import read_matrix
from kernelyard.registry.registry import Registry
from tests.registry.fakes import make_kernel

X, WIDE = torch.ones(2, 4), torch.ones(3, 8)


@pytest.fixture(autouse=True)
def one_op(install: Callable[..., Registry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    install(make_kernel("fake.best", "honest", priority=1), make_kernel("fake.last", 3))
    selections.forget()


def scale(x: torch.Tensor = X) -> torch.Tensor:
    result: torch.Tensor = kernelyard.ops.scale(x)
    return result


def read(path: Path) -> Matrix:
    (matrix,) = read_matrix(path, registry.current().op)
    return matrix


def counts(path: Path) -> dict[Point, int]:
    matrix = read(path)
    return dict(zip(matrix.points, matrix.counts, strict=True))


def test_a_name_is_a_file_in_the_current_folder_with_every_workload_and_its_calls(tmp_path: Path) -> None:
    with kernelyard.capture("my-model-1.5") as path:
        for x in (X, WIDE, X, X):
            scale(x)
    assert path == tmp_path / "my-model-1.5.json" and read(path).name == "my-model-1.5"
    assert counts(path) == {Point((2, 4), "float32"): 3, Point((3, 8), "float32"): 1}


def test_calls_before_and_after_are_not_counted() -> None:
    scale()
    with kernelyard.capture("model") as path:
        scale()
    scale()
    assert counts(path) == {Point((2, 4), "float32"): 1}


def test_after_a_capture_the_kernel_s_own_function_is_bound_again() -> None:
    with kernelyard.capture("model"):
        scale()
    scale()
    (served,) = kernelyard.selections()
    assert served.calls == 1


@pytest.mark.parametrize("call", ["out", "gradient", "compiled", "pinned"])
def test_a_call_counts_once_whichever_way_it_takes(call: str) -> None:
    needing = X.clone().requires_grad_()
    compiled = torch.compile(lambda x: kernelyard.ops.scale(x), backend="aot_eager")
    with kernelyard.capture("model") as path, kernelyard.use(**({"scale": "fake.last"} if call == "pinned" else {})):
        for _ in range(3):
            if call == "out":
                kernelyard.ops.scale(X, out=torch.empty(2, 4))
            else:
                compiled(X) if call == "compiled" else scale(needing if call == "gradient" else X)
    assert counts(path) == {Point((2, 4), "float32"): 3}


def test_all_threads_count_and_none_of_their_calls_is_lost() -> None:
    def work() -> None:
        for _ in range(200):
            scale()

    with kernelyard.capture("model") as path:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts(path) == {Point((2, 4), "float32"): 800}


def test_a_view_with_gaps_keeps_its_strides() -> None:
    view = torch.ones(5, 24)[:, 4:12]
    with kernelyard.capture("model") as path:
        scale(view)
    op, (point,) = registry.current().op("scale"), read(path).points
    assert op.workload(point).key() == op.workload_of((view, 2.0)).key() and op.workload(point)["x"].strides == (24, 1)


def test_the_same_shapes_have_the_same_hash_in_whatever_order_and_number() -> None:
    with kernelyard.capture("one") as one:
        scale(), scale(WIDE)
    with kernelyard.capture("two") as two:
        scale(WIDE), scale(), scale()
    assert read(one).hash == read(two).hash and read(one).points == read(two).points


def test_a_file_that_exists_is_refused_before_the_model_runs(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("mine")
    told = r"model.json exists, and a captured matrix is frozen. Capture to another name"
    with pytest.raises(UsageError, match=told), kernelyard.capture("model"):
        raise AssertionError("ran")
    assert (tmp_path / "model.json").read_text() == "mine"


def test_a_folder_that_is_not_there_is_refused_before_the_model_runs() -> None:
    with pytest.raises(StoreFailed, match="nowhere is no folder"), kernelyard.capture("nowhere/model"):
        raise AssertionError("ran")


def test_a_capture_inside_another_is_refused_and_the_outer_one_goes_on() -> None:
    with kernelyard.capture("outer") as path:
        with pytest.raises(UsageError, match=r"a capture to .*outer.json is open"), kernelyard.capture("inner"):
            raise AssertionError("ran")
        scale()
    assert counts(path) == {Point((2, 4), "float32"): 1}


def test_a_capture_that_recorded_nothing_says_so_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"recorded nothing. No op of kernelyard.ops was called"), kernelyard.capture("model"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_exception_goes_on_and_what_was_recorded_is_written(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as caught, kernelyard.capture("model"):
        scale()
        raise KeyboardInterrupt
    assert counts(tmp_path / "model.json") == {Point((2, 4), "float32"): 1} and "model.json" in caught.value.__notes__[0]
    with kernelyard.capture("next"):
        scale()


def test_an_exception_before_any_call_is_the_one_that_is_seen(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), kernelyard.capture("model"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_process_meanwhile_is_kept_and_so_is_what_was_captured(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="written by another process meanwhile") as caught, kernelyard.capture("model") as path:
        scale()
        path.write_text("theirs")
    assert path.read_text() == "theirs"
    (spare,) = (p for p in tmp_path.iterdir() if p != path)
    assert str(spare) in str(caught.value) and counts(spare) == {Point((2, 4), "float32"): 1}
