"""JSON that somebody else wrote, read so that what is wrong with it is said: a file, and values of an object by their names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelyard.errors import InvalidInput

Object = Mapping[str, Any]


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object; raises InvalidInput for anything else."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{path} can't be read.", exists=f"{error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is not JSON.", exists=f"{error}.", do="Download it again.") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} holds a JSON {type(found).__name__}, not an object.", do="Download it again.")
    return found


def whole(config: Object, name: str, default: int | None = None, *, least: int = 1) -> int:
    """A whole number of config.json; null is as good as absent. Raises InvalidInput for anything else, as its neighbours do."""
    found = default if config.get(name) is None else config[name]
    if isinstance(found, int) and not isinstance(found, bool) and found >= least:
        return found
    raise InvalidInput(f"config.json has {name} {json.dumps(found)}.", do=f"It must be a whole number from {least} up.")


def number(config: Object, name: str, default: float | None = None) -> float:
    """A number above 0."""
    found = default if config.get(name) is None else config[name]
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 < found < float("inf"):
        return float(found)
    raise InvalidInput(f"config.json has {name} {json.dumps(found)}.", do="It must be a number above 0.")


def flag(config: Object, name: str) -> bool:
    """True or false; false where it is absent."""
    found = config.get(name) or False
    if not isinstance(found, bool):
        raise InvalidInput(f"config.json has {name} {json.dumps(found)}.", do="It must be true or false.")
    return found
