from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernelyard.contracts import VECTOR_ADD
from kernelyard.errors import BuildFailed
from kernelyard.plugins.cuda import probe, toolkit
from kernelyard.plugins.cuda.build import architecture, recipe
from kernelyard.plugins.cuda.plugin import plugin
from kernelyard.plugins.cuda.toolkit import find_nvcc, toolkit_of
from kernelyard.plugins.cuda.vector_add import stream
from kernelyard.plugins.native.build import artefact
from kernelyard.registry.op import Point
from kernelyard.registry.spec import YES, Config, Workload

KERNEL = plugin.kernels[0]
builds = pytest.mark.skipif(not probe.can_build(), reason=probe.can_build().reason)


def workload(n: int, dtype: str = "bfloat16", layout: str = "contiguous") -> Workload:
    return VECTOR_ADD.workload(Point((n,), dtype, layout), "cuda")


# Finding the toolkit --------------------------------------------------------------------------------


def install(folder: Path) -> Path:
    """A toolkit with an nvcc that does nothing."""
    for name in ("bin/nvcc", "include/cuda_runtime.h"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine where no toolkit is found by chance."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(toolkit, "USUAL", tmp_path / "usual")
    toolkit._told_by.cache_clear()
    return tmp_path


def test_a_cuda_home_without_nvcc_is_named_and_nothing_else_is_taken(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(install(bare / "other") / "bin"))
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    assert "nvcc not found (looked in CUDA_HOME=/nonexistent)" in plugin.backends[0].available("cuda").reason


def test_without_any_nvcc_the_reason_tells_where_was_looked(bare: Path) -> None:
    assert f"nvcc not found (looked in CUDA_HOME, CUDA_PATH, PATH, {bare / 'usual'})" in plugin.backends[0].available("cuda").reason


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_a_variable_names_the_toolkit(variable: str, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, str(install(bare / "cuda-13.0")))
    nvcc = find_nvcc().nvcc
    assert nvcc is not None and toolkit_of(nvcc) == bare / "cuda-13.0"


def test_a_link_on_path_leads_to_its_toolkit(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = install(bare / "cuda-13.0")
    (bare / "links").mkdir()
    (bare / "links" / "nvcc").symlink_to(home / "bin" / "nvcc")
    monkeypatch.setenv("PATH", str(bare / "links"))
    nvcc = find_nvcc().nvcc
    assert nvcc is not None and toolkit_of(nvcc) == home


def test_a_script_on_path_is_asked_where_the_real_nvcc_stands(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = install(bare / "cuda-13.0")
    script = bare / "scripts" / "nvcc"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\necho '#$ _HERE_={home}/bin' >&2\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}/bin")
    nvcc = find_nvcc().nvcc
    assert nvcc is not None and toolkit_of(nvcc) == home


def test_an_nvcc_whose_toolkit_is_nowhere_is_a_failed_build(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lonely = bare / "bin" / "nvcc"
    lonely.parent.mkdir()
    lonely.write_text("#!/bin/sh\n")
    lonely.chmod(0o755)
    with pytest.raises(BuildFailed, match="Set CUDA_HOME"):
        toolkit_of(lonely)


def test_hopper_is_built_with_its_own_instructions() -> None:
    assert [architecture(capability) for capability in ("sm_90", "sm_80", "sm_89", "sm_100")] == ["9.0a", "8.0", "8.9", "10.0a"]


def test_no_cpu_runs_it_even_where_all_else_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "can_build", lambda: YES)
    monkeypatch.setattr(probe, "cuda_ready", lambda: YES)
    assert "not on cpu" in plugin.backends[0].available("cpu", "check").reason
    assert plugin.backends[0].available("cuda")


# Building, with or without a GPU --------------------------------------------------------------------


@builds
@pytest.mark.timeout(300)
def test_it_builds_for_hopper_without_a_gpu(home: Path) -> None:
    work = workload(1 << 24)
    library = artefact(stream(work, KERNEL.space.default_for(work)), KERNEL.folder, KERNEL.name, recipe("9.0a"))
    assert library.is_file() and b"sm_90a" in library.read_bytes()


@builds
@pytest.mark.timeout(300)
def test_a_source_that_does_not_compile_gives_nvccs_words(home: Path) -> None:
    source = stream(workload(8), KERNEL.space.default_for(workload(8)))
    with pytest.raises(BuildFailed, match="no_such_type"):
        artefact(replace(source, defines={**source.defines, "ELEMENT": "no_such_type"}), KERNEL.folder, KERNEL.name, recipe("9.0a"))


def test_the_default_is_in_the_space_of_every_point() -> None:
    for name in ("correctness", "performance", "held_out"):
        for point in VECTOR_ADD.matrix(name, "cuda").points:
            work = VECTOR_ADD.workload(point, "cuda")
            assert KERNEL.space.allows(KERNEL.space.default_for(work), work)


# On a GPU -------------------------------------------------------------------------------------------

TILE = 256 * 4 * 8
CONFIGS: tuple[Config, ...] = ({"threads": 128, "unroll": 8, "streaming": True}, {"threads": 256, "unroll": 4, "streaming": False})


@pytest.mark.gpu
@builds
@pytest.mark.timeout(300)
def test_keeps_the_contract_on_a_gpu(agreement: ModuleType) -> None:
    assert agreement.faults(KERNEL, "correctness", "cuda")["faults"] == {}


@pytest.mark.gpu
@builds
@pytest.mark.timeout(300)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("n", [1, 7, 8, 9, TILE - 1, TILE, TILE + 1, TILE + 7, 3 * TILE + 5])
def test_every_tail_is_written_and_nothing_after_it(n: int, config: Config) -> None:
    from kernelyard.plugins.cuda.build import builder

    a, b = torch.randn(n, device="cuda").bfloat16(), torch.randn(n, device="cuda").bfloat16()
    built = builder.build(VECTOR_ADD, KERNEL, VECTOR_ADD.workload_of((a, b)), config)
    for offset in (0, 1):
        whole = torch.full((n + 32,), 123.0, device="cuda").bfloat16()
        assert built.into is not None
        built.into((whole[offset : offset + n],), a, b)
        assert torch.equal(whole[offset : offset + n], a + b)
        assert whole[:offset].eq(123.0).all() and whole[offset + n :].eq(123.0).all()


@pytest.mark.gpu
@builds
@pytest.mark.timeout(300)
def test_it_runs_on_torchs_current_stream_and_is_captured() -> None:
    from kernelyard.plugins.cuda.build import builder

    a, b = torch.ones(5000, device="cuda"), torch.ones(5000, device="cuda")
    work = VECTOR_ADD.workload_of((a, b))
    built = builder.build(VECTOR_ADD, KERNEL, work, KERNEL.space.default_for(work))
    built.call(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = built.call(a, b)
    a.fill_(2.0)
    graph.replay()
    assert out.eq(3.0).all()
