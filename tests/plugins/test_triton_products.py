"""The Triton kernels of products and attention: right through the interpreter, compiled for Hopper without spills, and right on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernelyard.contracts import ATTENTION, ATTENTION_DECODE, LINEAR_SWIGLU, MATMUL
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Point

OPS = {op.name: op for op in (MATMUL, LINEAR_SWIGLU, ATTENTION, ATTENTION_DECODE)}
ON_GPU = tuple(kernel for op in OPS for kernel in registry.current().kernels(op) if kernel.backend in ("triton", "cuda", "gluon"))
KERNELS = tuple(kernel for kernel in ON_GPU if kernel.backend == "triton")
SPARSE = {
    "attention/triton.twoloop": 6, "attention_decode/triton.split": 5, "matmul/triton.split": 4, "matmul/triton.padded": 1,
    "matmul/triton.gemv": 2, "matmul/triton.persistent": 1, "matmul/triton.repacked": 1,
}  # fmt: skip
"""Every so many points of the smoke matrix: the interpreter takes a second for many of them. Of others every third."""

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
each = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel.op}/{kernel.name}")
SHARED = 227 * 1024


def key(kernel: Kernel) -> str:
    return f"{kernel.op}/{kernel.name}"


@pytest.fixture(scope="session")
def interpreted() -> dict[str, Any]:
    """Faults by kernel, from a process for each density: Triton chooses its mode at import."""
    found: dict[str, Any] = {}
    for stride in sorted({*SPARSE.values(), 3}):
        names = [key(kernel) for kernel in KERNELS if SPARSE.get(key(kernel), 3) == stride]
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("agreement.py")), "cpu", "smoke", str(stride), *names],
            env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found |= json.loads(done.stdout)
    return found


@needs_triton
@pytest.mark.timeout(300)
@each
def test_the_interpreter_finds_no_fault(kernel: Kernel, interpreted: dict[str, Any]) -> None:
    assert interpreted[key(kernel)]["faults"] == {}
    assert interpreted[key(kernel)]["cases"] > 2


@each
def test_the_author_s_config_is_in_the_space_of_every_point(kernel: Kernel) -> None:
    op = OPS[kernel.op]
    works = [op.workload(point, "cuda") for name in ("correctness", "performance", "held_out") for point in op.matrix(name, "cuda").points]
    served = [work for work in works if kernel.support.fits(work)]
    assert served
    told = [(work.label(), kernel.space.allows(kernel.space.default_for(work), work)) for work in served]
    assert [(label, answer.reason) for label, answer in told if not answer] == []


LARGE = {
    "matmul/triton.tile": Point((1, 4096, 4096, 4096), "bfloat16"),
    "matmul/triton.padded": Point((1, 4097, 4095, 4097), "bfloat16"),
    "matmul/triton.gemv": Point((1, 1, 14336, 4096), "bfloat16", "linear"),
    "linear_swiglu/triton.gemv": Point((1, 14336, 4096), "bfloat16"),
    "attention/triton.twoloop": Point((2, 32, 8, 4096, 4096, 128), "bfloat16", statics=(("causal", True),)),
}


@needs_triton
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", LARGE)
def test_the_author_s_config_compiles_for_hopper_without_spills(name: str) -> None:
    from kernelyard.plugins.triton_jit.offline import compile_only

    kernel = next(kernel for kernel in KERNELS if key(kernel) == name)
    work = OPS[kernel.op].workload(LARGE[name], "cuda")
    told = compile_only(OPS[kernel.op], kernel, work, kernel.space.default_for(work))
    assert told.local_bytes == 0 and told.shared_bytes <= SHARED
    if "gemv" in name:
        assert told.load_bytes == 16
    else:
        assert "wgmma.mma_async" in told.ptx and "cp.async.cg" in told.ptx


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kernel", ON_GPU, ids=key)
def test_keeps_the_contract_on_a_gpu(kernel: Kernel, agreement: ModuleType) -> None:
    told = agreement.faults(kernel, "smoke", "cuda")
    assert told["faults"] == {} and told["cases"]
