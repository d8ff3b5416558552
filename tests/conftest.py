"""What every test can rely on: a home of its own, no pins from the user's environment, GPU tests only where there is a GPU."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kernelyard.registry import misses
from kernelyard.registry.machine import nvidia_present

_isolated = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """A home for this session alone; set before anything is imported, so that no test meets the user's choices or builds."""
    for name in [name for name in os.environ if name.startswith("KERNELYARD_")]:
        del os.environ[name]
    home = Path(tempfile.mkdtemp(prefix="kernelyard-tests-"))
    config.stash[_isolated] = home
    os.environ["KERNELYARD_HOME"] = str(home)
    if hasattr(config, "workerinput"):
        (home / "builds").symlink_to(config.workerinput["builds"])
    else:
        (home / "builds").mkdir()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Processes side by side build into one folder, their controller's: a C++ library takes 4 s and more, none is built twice."""
    node.workerinput["builds"] = str((node.config.stash[_isolated] / "builds").resolve())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind, and keep no miss of a test in a home that is gone when the process ends."""
    misses.connect(None)
    shutil.rmtree(config.stash[_isolated], ignore_errors=True)


def pytest_report_header() -> str:
    """Versions that a failure report needs."""
    versions = [f"{name} {_version(name)}" for name in ("torch", "triton", "apache-tvm-ffi", "optuna")]
    return f"kernelyard: python {platform.python_version()}, {', '.join(versions)}, compiler {_compiler()}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files first where several processes share the work; what needs a GPU is skipped without one, with the driver's own reason."""
    if hasattr(config, "workerinput"):
        _long_files_first(items)
    answer = nvidia_present()
    if answer:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=answer.reason))


@pytest.fixture(autouse=True)
def same_values() -> None:
    """Random tensors of a test are the same whichever tests ran before it in its process."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def builds(pytestconfig: pytest.Config) -> Path:
    """What this run has built so far. A home that a fixture makes may link to it, where builds themselves are not the subject."""
    return (pytestconfig.stash[_isolated] / "builds").resolve()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A KERNELYARD_HOME for one test: empty, and not yet made."""
    path = tmp_path / "home"
    monkeypatch.setenv("KERNELYARD_HOME", str(path))
    return path


@pytest.fixture
def stocked_home(home: Path, builds: Path) -> Path:
    """The same, made, with what this run has built so far: for tests that call C++ kernels and are not about building them."""
    home.mkdir()
    (home / "builds").symlink_to(builds)
    return home


@pytest.fixture
def measured_home(stocked_home: Path) -> Path:
    """The same, with ceilings of a device that no kernel here comes near: measuring the real ones takes all cores 5 s."""
    from kernelyard.measure import ceiling_file
    from kernelyard.registry.machine import identity

    key = identity("cpu").key()
    rates = {"device_key": key, "measured_at": "", "copy_gbps": 1e4, "read_gbps": 1e4, "peak_gbps": 1e4, "matrix_tflops": {"float32": 1.0}}
    ceiling_file.update(key, {"rates": rates})
    return stocked_home


def _long_files_first(items: list[pytest.Item]) -> None:
    """By the time limits that tests set for themselves, then by how many they are: few long ones that come last are a process's alone.

    pytest-xdist's own order is by number, so that the few tests with a Ray cluster came near the end.
    """
    limit_s, count = Counter[Path](), Counter(item.path for item in items)
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit_s[item.path] = max(limit_s[item.path], int(marker.args[0]) if marker and not item.get_closest_marker("gpu") else 0)
    items.sort(key=lambda item: (-limit_s[item.path], -count[item.path], str(item.path)))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _compiler() -> str:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "c++", "g++", "clang++"))), None)
    if compiler is None:
        return "absent"
    told = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    return told.partition("\n")[0] or compiler
