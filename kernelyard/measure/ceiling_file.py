"""Measured ceilings kept in the home folder, one JSON file for each kind of device. A file that can't be read is measured anew."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelyard.errors import StoreFailed
from kernelyard.measure.measured import PROTOCOL
from kernelyard.registry.home import home, home_path
from kernelyard.registry.spec import digest

VERSION = 2
"""Of what is written here; a file of another version is measured anew."""


def read(device_key: str) -> dict[str, Any]:
    """What was written for this kind of device under this version of the protocol; empty where nothing was, or nothing readable."""
    try:
        content = json.loads(_path(home_path(), device_key).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and _identity(device_key).items() <= content.items() else {}


def update(device_key: str, values: Mapping[str, Any]) -> None:
    """Add to the file or replace values in it; a reader sees the old or the new file, never half of one."""
    path = _path(home(), device_key)
    content = {**read(device_key), **values, **_identity(device_key)}
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(exist_ok=True)
        partial.write_text(json.dumps(content, indent=1))
        partial.replace(path)
    except OSError as error:
        raise StoreFailed(f"{path} can't be written: {error.strerror}.", do="Set KERNELYARD_HOME to a folder you can write.") from error


def _identity(device_key: str) -> dict[str, Any]:
    return {"device_key": device_key, "protocol": PROTOCOL, "version": VERSION}


def _path(folder: Path, device_key: str) -> Path:
    return folder / "ceilings" / f"{digest(device_key)}.json"
