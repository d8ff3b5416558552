"""Listing: strangers are imported in a child process, once, and whatever they do harms nothing here."""

from __future__ import annotations

import importlib
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelyard.registry import description, listing
from kernelyard.registry.description import Description, describe
from kernelyard.registry.discovery import EntryPoint, Problem
from kernelyard.registry.listing import Listing

Stranger = Callable[[str], EntryPoint]
PLUGIN = """
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
support = Support(("cpu",), ("float32",))
plugin = Plugin("demo", kernels=(Kernel("torch.demo", "rmsnorm", "torch", "a demo", "ky_demo:run", support),))
"""
KERNEL = ("torch.demo", "rmsnorm", "torch", ("cpu",))


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Stranger:
    """`stranger(source)` writes the module of a plugin `demo` of the distribution `ky-demo`, installed on sys.path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    info = site / "ky_demo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ky-demo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kernelyard.plugins]\ndemo = ky_demo:plugin\n")

    def write(source: str) -> EntryPoint:
        (site / "ky_demo.py").write_text(source)
        importlib.invalidate_caches()
        return EntryPoint("demo", "ky_demo:plugin", "ky-demo", "1.0")

    return write


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points that were imported in a child since."""
    asked: list[EntryPoint] = []
    really = description._in_child

    def counted(point: EntryPoint) -> Description | Problem:
        asked.append(point)
        return really(point)

    monkeypatch.setattr(description, "_in_child", counted)
    return asked


def problem(described: Description | Problem) -> str:
    assert isinstance(described, Problem) and (described.plugin, described.distribution) == ("demo", "ky-demo")
    return described.reason


def ended(pid: int) -> bool:
    """Whether a process that was killed is gone, waiting for the kernel to see to it."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(handle):
        return bool(select.select([handle], [], [], 30)[0])


def of_demo(table: Listing) -> list[str]:
    return [kernel.name for kernel in table.kernels if kernel.plugin == "demo"]


def test_a_stranger_is_listed_without_being_imported_here(stranger: Stranger) -> None:
    stranger(PLUGIN)
    table = listing.listing("cpu")
    assert of_demo(table) == ["torch.demo"] and table.problems == () and "ky_demo" not in sys.modules


def test_listing_imports_neither_torch_nor_a_compiler(stranger: Stranger) -> None:
    stranger(PLUGIN + "import torch\n")
    code = (
        "import sys; from kernelyard.registry.listing import listing; listing('cpu'); "
        "print([name for name in ('torch', 'triton', 'jax', 'optuna', 'ky_demo') if name in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "its import ended the process by SIGINT"),
        ("import os; os._exit(7)", "its import ended the process with code 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "its import ended the process by SIGSEGV"),
        ("plugin = 3", "gave int, not a Plugin"),
    ],
)
def test_whatever_an_import_does_is_a_problem_with_the_reason(stranger: Stranger, source: str, reason: str) -> None:
    assert reason in problem(describe(stranger(source)))


def test_an_import_that_hangs_is_ended_with_all_that_it_started(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(description, "IMPORT_LIMIT_S", 2.0)
    pid = tmp_path / "pid"
    source = f"""
import pathlib, signal, subprocess
child = subprocess.Popen(["sleep", "300"])
pathlib.Path({str(pid)!r}).write_text(str(child.pid))
signal.pause()
"""
    assert problem(describe(stranger(source))) == "its import did not end within 2 s"
    assert ended(int(pid.read_text()))


def test_a_thread_that_lives_on_does_not_hold_the_listing(stranger: Stranger) -> None:
    source = PLUGIN + "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    described = describe(stranger(source))
    assert isinstance(described, Description) and described.kernels == (KERNEL,)


def test_what_a_plugin_prints_is_kept_apart(stranger: Stranger, capfd: pytest.CaptureFixture[str]) -> None:
    described = describe(stranger(PLUGIN + "print('hello')\n"))
    assert isinstance(described, Description) and described.printed == "hello\n" and capfd.readouterr().out == ""


def test_a_stranger_is_imported_once(stranger: Stranger, children: list[EntryPoint]) -> None:
    point, said = stranger(PLUGIN), list[str]()
    assert describe(point, said.append) == describe(point, said.append)
    assert len(children) == 1 and said == ["importing plugin demo of ky-demo to see what it declares"]


def test_a_change_of_its_files_imports_it_again(stranger: Stranger, children: list[EntryPoint]) -> None:
    describe(stranger(PLUGIN))
    described = describe(stranger(PLUGIN.replace("torch.demo", "torch.other")))
    assert isinstance(described, Description) and described.kernels[0][0] == "torch.other" and len(children) == 2


def test_an_older_file_put_back_is_a_change_too(stranger: Stranger, tmp_path: Path, children: list[EntryPoint]) -> None:
    point = stranger(PLUGIN)
    describe(point)
    os.utime(tmp_path / "site" / "ky_demo.py", (1, 1))
    describe(point)
    assert len(children) == 2


def test_anything_installed_or_removed_imports_it_again(stranger: Stranger, tmp_path: Path, children: list[EntryPoint]) -> None:
    point = stranger(PLUGIN)
    describe(point)
    (tmp_path / "site" / "other-1.0.dist-info").mkdir()
    describe(point)
    (tmp_path / "site" / "a_file_that_is_no_package.txt").write_text("")
    describe(point)
    assert len(children) == 2


def test_a_removed_plugin_is_gone_from_the_listing(stranger: Stranger, tmp_path: Path) -> None:
    stranger(PLUGIN)
    assert of_demo(listing.listing("cpu")) == ["torch.demo"]
    shutil.rmtree(tmp_path / "site" / "ky_demo-1.0.dist-info")
    assert of_demo(listing.listing("cpu")) == []


def test_an_entry_point_whose_folder_was_deleted_is_reported_with_its_distribution(stranger: Stranger, tmp_path: Path) -> None:
    stranger(PLUGIN)
    (tmp_path / "site" / "ky_demo.py").unlink()
    table = listing.listing("cpu")
    assert [(p.plugin, p.distribution, p.reason) for p in table.problems] == [
        ("demo", "ky-demo", "ModuleNotFoundError: No module named 'ky_demo'")
    ]
    assert any(kernel.plugin == "eager" for kernel in table.kernels), "the rest works"


def test_a_failure_is_kept_only_for_a_while(stranger: Stranger, monkeypatch: pytest.MonkeyPatch, children: list[EntryPoint]) -> None:
    point = stranger("raise RuntimeError('no driver')")
    describe(point)
    describe(point)
    assert len(children) == 1
    monkeypatch.setattr(description.time, "time", lambda: 1e11)
    describe(point)
    assert len(children) == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": 1}', "null"])
def test_a_damaged_note_is_written_anew(stranger: Stranger, home: Path, damage: str, children: list[EntryPoint]) -> None:
    point = stranger(PLUGIN)
    describe(point)
    (note,) = (home / "plugins").iterdir()
    note.write_text(damage)
    assert isinstance(describe(point), Description) and json.loads(note.read_text())["content"]["plugin"] == "demo"
    assert len(children) == 2


def test_a_home_that_cannot_be_written_still_lists(stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("KERNELYARD_HOME", str(tmp_path / "a file" / "home"))
    stranger(PLUGIN)
    assert of_demo(listing.listing("cpu")) == ["torch.demo"]


def test_the_child_does_not_import_what_lies_in_the_current_folder(
    stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert isinstance(describe(stranger(PLUGIN)), Description)


def test_names_that_clash_are_reported_with_both_plugins_and_the_first_stays(stranger: Stranger) -> None:
    more = """
from dataclasses import replace
from kernelyard.contracts import RMSNORM
from kernelyard.registry.backend import Backend
plugin = replace(plugin, ops=(RMSNORM,), backends=(Backend("torch", "", ("cpu",), "a:b", "a:b"),))
"""
    stranger(PLUGIN.replace("torch.demo", "torch.eager") + more)
    table = listing.listing("cpu")
    assert [problem.reason for problem in table.problems] == [
        "op 'rmsnorm' was left out: kernelyard (contracts) has that name already",
        "backend 'torch' was left out: kernelyard (eager) has that name already",
        "kernel of rmsnorm 'torch.eager' was left out: kernelyard (eager) has that name already",
    ]
    assert of_demo(table) == []


def test_a_kernel_for_another_device_is_listed_with_the_reason(stranger: Stranger) -> None:
    stranger(PLUGIN.replace('("cpu",)', '("cuda",)'))
    (kernel,) = (kernel for kernel in listing.listing("cpu").kernels if kernel.plugin == "demo")
    assert not kernel.available and kernel.reason == "it runs on cuda, not on cpu"
