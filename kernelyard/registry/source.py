"""Where stored things come from, which the registry asks without knowing a store: a function that somebody connects, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from kernelyard.registry.lazy import load

F = TypeVar("F", bound=Callable[..., Any])


class Source(Generic[F]):
    """A function, or 'module:function' that is imported when it is first asked for: `import kernelyard` must cost nothing."""

    def __init__(self, function: F | str | None = None) -> None:
        self._function = function

    def connect(self, function: F | str | None) -> None:
        """This one from now on, or nowhere."""
        self._function = function

    @property
    def connected(self) -> bool:
        """Whether there is anywhere to look."""
        return self._function is not None

    def function(self) -> F | None:
        """What to ask; None where nothing is connected."""
        if isinstance(self._function, str):
            self._function = load(self._function)
        return self._function  # type: ignore[return-value]  # what a name was loaded as is what the caller said it is

    @contextmanager
    def none(self) -> Iterator[None]:
        """Nothing is connected meanwhile."""
        before, self._function = self._function, None
        try:
            yield
        finally:
            self._function = before
