"""The files that state what functions mean: their own, and those of the same package that these import from, in turn."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any


def stated(functions: Iterable[Callable[..., Any]]) -> Iterator[bytes]:
    """The files' contents, each once, in an order that only they decide; nothing for what has no Python file."""
    ahead, seen = [place for function in functions for place in _place(function)], set[Path]()
    while ahead:
        file, package = ahead.pop(0)
        if file not in seen:
            seen.add(file)
            content = file.read_bytes()
            yield content
            ahead += [(path, package) for name in _imported(content, package) if (path := file.with_name(f"{name}.py")).is_file()]


def _place(function: Callable[..., Any]) -> Iterator[tuple[Path, str]]:
    """The file of a function, and its package; '' where there is none."""
    function = inspect.unwrap(function)
    try:
        file = Path(inspect.getsourcefile(function) or "")
    except (OSError, TypeError):  # typed into a session, or no Python function
        return
    if file.is_file():
        yield file, getattr(sys.modules.get(function.__module__), "__package__", None) or ""


@cache
def _imported(content: bytes, package: str) -> tuple[str, ...]:
    """Names in a package that a module of it imports, wherever it does: modules, or what its `__init__` has."""
    found: list[str] = []
    for node in ast.walk(ast.parse(content)) if package else ():
        if isinstance(node, ast.ImportFrom) and (node.module == package or (node.level == 1 and node.module is None)):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 1:
            found.append(str(node.module))
        elif isinstance(node, ast.ImportFrom):
            found.append(_inside(str(node.module), package))
        elif isinstance(node, ast.Import):
            found += [_inside(alias.name, package) for alias in node.names]
    return tuple(name for name in dict.fromkeys(found) if name.isidentifier())


def _inside(module: str, package: str) -> str:
    """'rows' of 'contracts.rows' in 'contracts'; '' elsewhere."""
    return module.removeprefix(f"{package}.") if module.startswith(f"{package}.") else ""
