"""What the cpp backend says of a machine, and how it does without what a compiler lacks."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernelyard.errors import BuildFailed
from kernelyard.plugins.cpp import toolchain
from kernelyard.plugins.cpp.plugin import CPP
from kernelyard.plugins.cpp.probe import available

needs_compiler = pytest.mark.skipif(not available("cpu"), reason=available("cpu").reason)


def fake_compiler(path: Path, refuse: str) -> str:
    """A compiler that knows none of the flags that match `refuse`."""
    path.write_text(
        f'#!/bin/sh\nfor a in "$@"; do case "$a" in {refuse}) echo "unknown option $a" >&2; exit 1;; esac; done\nexec c++ "$@"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_no_compiler_is_a_reason_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = CPP.available("cpu")
    assert not answer
    assert "'c++' was not found on PATH" in answer.reason and "install" in answer.reason and "CXX" in answer.reason


def test_a_compiler_named_by_cxx_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-c++ -m64")
    assert "'no-such-c++'" in CPP.available("cpu").reason


def test_no_ninja_and_no_tvm_ffi_are_reasons_with_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "c++", "none"))
    monkeypatch.setattr("kernelyard.plugins.native.tools.ninja_folder", lambda: None)
    assert "pip install ninja" in CPP.available("cpu").reason
    monkeypatch.setattr("kernelyard.plugins.native.tools.installed", lambda package: False)
    assert "pip install apache-tvm-ffi" in CPP.available("cpu").reason


@needs_compiler
def test_ninja_is_found_beside_python_when_path_lacks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (Path(sys.executable).parent / "ninja").exists():
        pytest.skip("ninja is not beside this Python")
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "c++", "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert CPP.available("cpu")


def test_other_devices_are_refused_by_name() -> None:
    assert "not on cuda" in CPP.available("cuda").reason


def test_declaring_and_probing_imports_neither_torch_nor_tvm_ffi() -> None:
    code = (
        "import sys; from kernelyard.plugins.cpp.plugin import plugin; plugin.backends[0].available('cpu');"
        "[k.source_hash() for k in plugin.kernels];"
        "print(sorted({'torch', 'tvm_ffi', 'optuna', 'numpy'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


@needs_compiler
def test_does_without_openmp_native_and_optional_flags_where_the_compiler_lacks_them(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "plain-c++", "-fopenmp|-march=*|-mcpu=*|-fno-gnu-unique"))
    recipe = toolchain.recipe()
    assert not {"-fopenmp", "-march=native", "-mcpu=native", "-fno-gnu-unique"} & {*recipe.cxx_flags, *recipe.link_flags}
    assert "-fno-math-errno" in recipe.cxx_flags
    assert set(recipe.depends) == {"c++"}  # nothing of the CPU's own in it, so it serves any


@needs_compiler
def test_the_cpu_is_part_of_a_native_build(monkeypatch: pytest.MonkeyPatch) -> None:
    if not toolchain.capabilities()["native"]:
        pytest.skip("this compiler has no -march=native")
    here = toolchain.recipe()
    monkeypatch.setattr(toolchain, "_instructions", lambda: "another CPU")
    assert toolchain.recipe().depends != here.depends


@needs_compiler
def test_capabilities_are_asked_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = toolchain.capabilities()
    monkeypatch.setattr("kernelyard.plugins.native.tools._memory", {})
    monkeypatch.setattr(toolchain, "_ask", lambda: pytest.fail("asked again"))
    assert toolchain.capabilities() == first


def test_a_compiler_that_builds_nothing_fails_with_its_words(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken-c++"
    broken.write_text("#!/bin/sh\necho 'no headers here' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(BuildFailed, match="no headers here"):
        toolchain.recipe()


@needs_compiler
def test_versions_name_the_compiler_and_tvm_ffi() -> None:
    versions = CPP.builder().versions()
    assert set(versions) == {"c++", "tvm_ffi"} and all(versions.values())


@needs_compiler
def test_an_unwritable_home_only_costs_asking_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERNELYARD_HOME", str(tmp_path / "file" / "home"))
    assert CPP.builder().versions()["c++"]
