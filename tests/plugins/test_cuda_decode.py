"""The CUDA kernels of a decode step: what they refuse and choose, what is built, and, on a GPU, whether they keep the contracts."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernelyard.plugins.cuda import probe
from kernelyard.plugins.cuda.build import recipe
from kernelyard.plugins.cuda.plugin import plugin
from kernelyard.plugins.native.build import artefact
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Workload

KERNELS = {kernel.op: kernel for kernel in plugin.kernels if kernel.op == "attention_decode"}
builds = pytest.mark.skipif(not probe.can_build(), reason=probe.can_build().reason)
each = pytest.mark.parametrize("kernel", KERNELS.values(), ids=list(KERNELS))


def op_of(kernel: Kernel) -> Op:
    return registry.current().op(kernel.op)


def workload(op: str, *dims: int, dtype: str = "bfloat16", layout: str = "contiguous", **statics: Any) -> Workload:
    return registry.current().op(op).workload(Point(dims, dtype, layout, tuple(statics.items())), "cuda")


@each
def test_the_authors_config_is_in_the_space_of_every_point(kernel: Kernel, agreement: ModuleType) -> None:
    assert agreement.outside_of_space(kernel) == []


@pytest.mark.parametrize(
    ("batch", "capacity", "cluster"), [(1, 32768, 16), (1, 256, 16), (1, 64, 4), (16, 4096, 2), (64, 4096, 1)]
)
def test_a_cluster_makes_two_ctas_a_multiprocessor_and_none_is_without_tokens(batch: int, capacity: int, cluster: int) -> None:
    work = workload("attention_decode", batch, 32, 8, 1, capacity, 128, 0)
    assert KERNELS["attention_decode"].space.default_for(work)["cluster"] == cluster


def machine_code(work: Workload) -> str:
    """Of the author's config, by the cuobjdump that comes with Triton; the test is skipped where there is none."""
    found = find_spec("triton")
    tool = Path(str(found.origin)).parent / "backends/nvidia/bin/cuobjdump" if found else Path("/nonexistent")
    if not tool.exists():
        pytest.skip("no cuobjdump beside triton")
    kernel = KERNELS[work.op]
    library = artefact(load(kernel.entry)(work, kernel.space.default_for(work)), kernel.folder, kernel.name, recipe("9.0a"))
    return subprocess.run([str(tool), "-sass", str(library)], capture_output=True, text=True, check=True, timeout=60).stdout


@builds
@pytest.mark.timeout(300)
def test_a_paged_cache_is_copied_by_16_bytes_without_spills(home: Path) -> None:
    code = machine_code(workload("attention_decode", 16, 32, 8, 1, 4096, 128, 64))
    assert re.search(r"\bLDGSTS\.E\.BYPASS\.128\b", code)
    assert not re.search(r"\b(STL|LDL)\b", code)


@pytest.mark.gpu
@builds
@pytest.mark.timeout(900)
@each
def test_keeps_the_contract_on_a_gpu(kernel: Kernel, agreement: ModuleType) -> None:
    assert agreement.faults(kernel, "correctness", "cuda")["faults"] == {}
