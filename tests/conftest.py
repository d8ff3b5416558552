"""What every test can rely on: a home of its own, no pins from the user's environment, GPU tests only where there is a GPU."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

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


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind, and keep no miss of a test in a home that is gone when the process ends."""
    misses.connect(None)
    shutil.rmtree(config.stash[_isolated], ignore_errors=True)


def pytest_report_header() -> str:
    """Versions that a failure report needs."""
    versions = [f"{name} {_version(name)}" for name in ("torch", "triton", "apache-tvm-ffi", "optuna")]
    return f"kernelyard: python {platform.python_version()}, {', '.join(versions)}, compiler {_compiler()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, with the driver's own reason."""
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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A KERNELYARD_HOME for one test: empty, and not yet made."""
    path = tmp_path / "home"
    monkeypatch.setenv("KERNELYARD_HOME", str(path))
    return path


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
