"""The comparison that every plugin's tests share; see agreement.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def agreement() -> ModuleType:
    """The module beside this file, which is also a script."""
    if "kernelyard_plugin_agreement" not in sys.modules:
        spec = importlib.util.spec_from_file_location("kernelyard_plugin_agreement", Path(__file__).with_name("agreement.py"))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return sys.modules["kernelyard_plugin_agreement"]
