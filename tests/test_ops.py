"""The public names: `kernelyard.ops`, `use` and `explain`, by the real registry."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

import kernelyard
from kernelyard.errors import UnknownName
from kernelyard.registry import registry


def test_the_operators_are_the_registered_ops() -> None:
    assert {"rmsnorm", "softmax", "vector_add"} <= set(dir(kernelyard.ops))
    assert dir(kernelyard.ops) == sorted(registry.current().ops)


def test_an_operator_tells_its_name_summary_and_usage() -> None:
    rmsnorm = kernelyard.ops.rmsnorm
    assert rmsnorm.__name__ == "rmsnorm" and "Usage: kernelyard.ops.rmsnorm(Tensor x" in str(rmsnorm.__doc__)
    assert repr(rmsnorm).startswith("<kernelyard op rmsnorm(Tensor x") and kernelyard.ops.rmsnorm is rmsnorm


def test_an_op_that_does_not_exist_is_told_what_does() -> None:
    with pytest.raises(AttributeError, match=r"kernelyard.ops has no 'rms'. There are: .*rmsnorm"):
        _ = kernelyard.ops.rms
    with pytest.raises(ImportError):
        from kernelyard.ops import rms  # noqa: F401
    assert not hasattr(kernelyard.ops, "__wrapped__")


def test_a_public_name_that_does_not_exist_is_told_what_does() -> None:
    public = "capture, explain, ops, profile_ops, selections, swap, unswap, use"
    with pytest.raises(AttributeError, match=rf"kernelyard has no 'tune'. Public: {public}"):
        _ = kernelyard.tune


def test_explain_of_an_unknown_op_names_those_there_are() -> None:
    with pytest.raises(UnknownName, match="no op named 'rms'"):
        kernelyard.explain("rms", torch.ones(2, 4))


def test_a_call_is_served_by_what_explain_says() -> None:
    x, w = torch.randn(4, 64), torch.rand(64)
    with kernelyard.use(rmsnorm="torch.eager"):
        assert kernelyard.explain("rmsnorm", x, w).kernel.name == "torch.eager"
        torch.testing.assert_close(kernelyard.ops.rmsnorm(x, w, eps=1e-5), torch.nn.functional.rms_norm(x, (64,), w, 1e-5))


def test_threads_that_ask_for_an_operator_at_once_get_the_same_one() -> None:
    registry.reset()
    start, found = threading.Barrier(8), list[object]()

    def ask() -> None:
        start.wait()
        found.append(kernelyard.ops.softmax)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1 and len(found) == 8


def test_importing_kernelyard_imports_no_torch() -> None:
    code = "import sys, kernelyard; print('torch' in sys.modules, 'optuna' in sys.modules, kernelyard.__version__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False False 0.1.0\n"
