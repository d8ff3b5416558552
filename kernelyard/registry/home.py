"""Where kernelyard keeps its store, builds and locks: KERNELYARD_HOME, else the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

from kernelyard.errors import StoreFailed


def home_path() -> Path:
    """The folder, whether or not it exists."""
    named = os.environ.get("KERNELYARD_HOME")
    if named:
        try:
            return Path(named).expanduser().absolute()
        except RuntimeError as error:
            raise StoreFailed(f"KERNELYARD_HOME='{named}' names no folder: {error}.", do="Set it to a folder you can write.") from error
    from platformdirs import user_cache_path

    return user_cache_path("kernelyard")


def home() -> Path:
    """The folder, created if need be; raises StoreFailed where it can't be written."""
    path = home_path()
    try:
        path.mkdir(parents=True, exist_ok=True)  # FileExistsError: it is a file
        writable = os.access(path, os.W_OK | os.X_OK)
    except OSError as error:
        raise StoreFailed(f"{path} can't be made: {error.strerror}.", do="Set KERNELYARD_HOME to a folder you can write.") from error
    if not writable:
        raise StoreFailed(f"{path} can't be written.", do="Set KERNELYARD_HOME to a folder you can write.")
    return path
