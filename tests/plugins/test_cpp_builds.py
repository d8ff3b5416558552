"""Native builds: made once for each content, by one process, whole or not at all, and never a reason to hang."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import filelock
import pytest
import torch

from kernelyard.errors import BuildFailed
from kernelyard.plugins.cpp.probe import available
from kernelyard.plugins.native.build import Recipe, artefact, build_native
from kernelyard.plugins.native.tools import compiler_version, cxx
from kernelyard.registry.backend import NativeSource

pytestmark = pytest.mark.skipif(not available("cpu"), reason=available("cpu").reason)

# The C interface alone: tvm_ffi's C++ headers take a second and more to compile, and these tests are not about them.
SOURCE = """
#include <tvm/ffi/c_api.h>
#include "amount.h"
#ifndef TIMES
#define TIMES 1
#endif
extern "C" __attribute__((visibility("default"))) int __tvm_ffi_add(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = args[0].v_int64 + AMOUNT * TIMES;
  return 0;
}
"""


def source(**defines: str | int) -> NativeSource:
    return NativeSource(("add.cpp",), "add", lambda outputs, *args: args, defines)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "a kernel's folder"
    path.mkdir()
    (path / "add.cpp").write_text(SOURCE)
    (path / "amount.h").write_text("#define AMOUNT 1\n")
    return path


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that leaves a line in this file each time it is started."""
    calls = tmp_path / "calls"
    calls.write_text("")
    monkeypatch.setenv("CXX", str(script(tmp_path / "counting-c++", f'echo x >> "{calls}"; exec c++ "$@"')))
    return calls


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def count(calls: Path) -> int:
    return len(calls.read_text().splitlines())


PLAIN = Recipe()


def add(folder: Path, value: int = 1, name: str = "cpp.add", recipe: Recipe = PLAIN, **defines: str | int) -> int:
    return int(build_native(source(**defines), folder, name, recipe).add(value))


FRESH = """
import sys
from pathlib import Path
from kernelyard.plugins.native.build import Recipe, artefact
from kernelyard.registry.backend import NativeSource
print(artefact(NativeSource(("add.cpp",), "add", print), Path(sys.argv[1]), "cpp.add", Recipe()))
"""


def test_an_unchanged_source_is_compiled_once(folder: Path, home: Path, compilations: Path) -> None:
    assert add(folder) == 2
    started = count(compilations)
    assert started > 0
    assert add(folder) == 2
    told = subprocess.run([sys.executable, "-c", FRESH, str(folder)], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str(artefact(source(), folder, "cpp.add", PLAIN))
    assert count(compilations) == started


def test_a_changed_header_define_flag_or_source_is_another_build(folder: Path, home: Path) -> None:
    assert add(folder) == 2
    (folder / "amount.h").write_text("#define AMOUNT 10\n")
    assert add(folder) == 11
    assert add(folder, TIMES="(1 + 2)") == 31
    assert add(folder, recipe=Recipe(cxx_flags=("-DTIMES=5",))) == 51
    (folder / "add.cpp").write_text(SOURCE.replace("args[0].v_int64 +", "args[0].v_int64 -"))
    assert add(folder) == -9


def test_what_a_build_depends_on_is_part_of_its_name(folder: Path, home: Path) -> None:
    one, other = Recipe(depends={"c++": "12.2"}), Recipe(depends={"c++": "13.1"})
    assert artefact(source(), folder, "cpp.add", one) != artefact(source(), folder, "cpp.add", other)


def test_two_plugins_may_name_a_module_alike(folder: Path, tmp_path: Path, home: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "add.cpp").write_text(SOURCE)
    (other / "amount.h").write_text("#define AMOUNT 100\n")
    assert (add(folder, name="kernels"), add(other, name="kernels")) == (2, 101)


def test_spaces_and_dollars_in_paths_and_defines_survive(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_HOME", str(tmp_path / "my $home dir"))
    assert add(folder, TIMES="( 1 + 1 )") == 3
    assert add(folder, UNUSED="\"$x 'y'\"") == 2


def test_tvm_ffi_itself_may_be_installed_under_a_path_with_spaces(
    folder: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvm_ffi.cpp import extension
    from tvm_ffi.libinfo import find_libtvm_ffi

    for index, name in enumerate(("find_include_path", "find_dlpack_include_path")):
        link = tmp_path / f"an $odd (place) {index}"
        link.symlink_to(getattr(extension, name)())
        monkeypatch.setattr(extension, name, lambda link=link: str(link))
    libraries = tmp_path / "it's lib"
    libraries.symlink_to(Path(find_libtvm_ffi()).parent)
    monkeypatch.setattr(extension, "find_libtvm_ffi", lambda: str(libraries / "libtvm_ffi.so"))
    assert add(folder) == 2


def test_an_artefact_is_noted_beside_it_and_nothing_else_is_left(folder: Path, home: Path) -> None:
    path = artefact(source(TIMES=2), folder, "cpp.add", Recipe(cxx_flags=("-O1",)))
    note = json.loads((path.parent / "build.json").read_text())
    assert note["kernel"] == "cpp.add" and note["defines"] == {"TIMES": 2} and note["cxx"] == ["-O1"]
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(["build.json", path.name])
    assert [p.name for p in path.parent.parent.iterdir() if p.is_dir()] == [path.parent.name]


def test_a_failed_build_has_the_compilers_words_and_leaves_nothing(folder: Path, home: Path) -> None:
    (folder / "amount.h").write_text("#define AMOUNT no_such_variable\n")
    with pytest.raises(BuildFailed, match=r"add\.cpp does not compile.*no_such_variable") as caught:
        add(folder)
    assert "error" in caught.value.log
    assert [p.name for p in (home / "builds").iterdir() if p.is_dir()] == []
    (folder / "amount.h").write_text("#define AMOUNT 1\n")
    assert add(folder) == 2


def test_a_missing_source_or_function_says_which(folder: Path, home: Path) -> None:
    with pytest.raises(BuildFailed, match=r"absent\.cpp can't be read"):
        build_native(NativeSource(("absent.cpp",), "add", lambda *a: a), folder, "cpp.add", PLAIN)
    with pytest.raises(BuildFailed, match="no translation unit"):
        build_native(NativeSource(("amount.h",), "add", lambda *a: a), folder, "cpp.add", PLAIN)


def test_an_old_lock_file_and_a_half_made_folder_are_no_obstacle(folder: Path, home: Path) -> None:
    path = artefact(source(), folder, "cpp.add", PLAIN)
    path.unlink()
    (path.parent / "lock").touch()
    (path.parent.parent / f"{path.parent.name}.lock").touch()
    (path.parent.parent / "lock").touch()
    assert artefact(source(), folder, "cpp.add", PLAIN) == path
    assert path.is_file() and not (path.parent / "lock").exists()


def test_waiting_for_another_builder_ends_by_naming_its_lock(folder: Path, home: Path) -> None:
    path = artefact(source(), folder, "cpp.add", PLAIN)
    path.unlink()
    lock = path.parent.parent / f"{path.parent.name}.lock"
    with filelock.FileLock(lock), pytest.raises(BuildFailed, match=str(lock)):
        artefact(source(), folder, "cpp.add", PLAIN, lock_timeout_s=0.05)


def test_a_build_killed_in_the_middle_does_not_hang_the_next(
    folder: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = tmp_path / "reached"
    os.mkfifo(reached)
    never = tmp_path / "never"
    os.mkfifo(never)
    with monkeypatch.context() as patch:
        patch.setenv("CXX", str(script(tmp_path / "stuck-c++", f'echo here > "{reached}"; read line < "{never}"')))
        child = multiprocessing.get_context("fork").Process(target=_build_in_its_own_group, args=(folder,))
        child.start()
        assert reached.read_text() == "here\n"
    assert child.pid is not None
    os.killpg(child.pid, signal.SIGKILL)
    child.join()
    assert [p for p in (home / "builds").iterdir() if p.name.startswith("building-")]
    assert add(folder) == 2
    assert not [p for p in (home / "builds").iterdir() if p.name.startswith("building-")]


def _build_in_its_own_group(folder: Path) -> None:
    os.setpgid(0, 0)
    artefact(source(), folder, "cpp.add", PLAIN)


def test_eight_processes_at_once_make_one_artefact(folder: Path, home: Path, compilations: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(8)
    children = [context.Process(target=_build_together, args=(folder, barrier)) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 8
    assert count(compilations) == 2  # compile and link
    assert len([p for p in (home / "builds").iterdir() if p.is_dir()]) == 1


def _build_together(folder: Path, barrier: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    artefact(source(), folder, "cpp.add", PLAIN)


def test_a_home_deleted_meanwhile_is_built_again(folder: Path, home: Path) -> None:
    import shutil

    path = artefact(source(), folder, "cpp.add", PLAIN)
    shutil.rmtree(home)
    assert artefact(source(), folder, "cpp.add", PLAIN) == path
    assert path.is_file()


def test_a_library_that_does_not_load_says_what_to_delete(folder: Path, home: Path) -> None:
    path = artefact(source(), folder, "cpp.add", PLAIN)
    path.write_bytes(b"no library")
    with pytest.raises(BuildFailed, match=f"Delete {path.parent}"):
        add(folder)


def test_a_compilers_version_is_asked_once_until_the_compiler_changes(tmp_path: Path, home: Path, compilations: Path) -> None:
    assert compiler_version(cxx()) == compiler_version(cxx())
    assert count(compilations) == 1
    compiler = Path(cxx()[0])
    compiler.write_text(compiler.read_text() + "\n# an update\n")
    compiler_version(cxx())
    assert count(compilations) == 2


def test_building_leaves_path_and_environment_alone(folder: Path, home: Path) -> None:
    before = dict(os.environ)
    add(folder, recipe=Recipe(environment={"TVM_FFI_CUDA_ARCH_LIST": "9.0a"}))
    assert dict(os.environ) == before


def test_calls_on_torch_tensors_need_no_copy(folder: Path, home: Path) -> None:
    (folder / "add.cpp").write_text(
        "#include <tvm/ffi/container/tensor.h>\n#include <tvm/ffi/function.h>\n"
        "void fill(tvm::ffi::TensorView t) { static_cast<float*>(t.data_ptr())[0] = 7; }\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(fill, fill);\n"
    )
    tensor = torch.zeros(2)
    build_native(source(), folder, "cpp.fill", PLAIN).fill(tensor)
    assert tensor.tolist() == [7, 0]
