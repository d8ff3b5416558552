"""torch, imported on first use: a module that declares ops must cost nothing to list."""

from __future__ import annotations

import importlib
from functools import reduce
from typing import TYPE_CHECKING, Any


class LazyModule:
    """Stands for a module until an attribute of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


if TYPE_CHECKING:
    import torch as torch
else:
    torch = LazyModule("torch")


def load(reference: str) -> Any:
    """The object that 'package.module:attribute' names; the attribute may have dots."""
    module, _, attribute = reference.partition(":")
    return reduce(getattr, attribute.split("."), importlib.import_module(module))
