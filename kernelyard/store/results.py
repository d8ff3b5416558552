"""Stored results: experiments/<date-name>/results.json and note.md, the files that a quoted figure comes from."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from kernelyard.errors import StoreFailed, UsageError
from kernelyard.registry.spec import Config, DeclarationError, DeviceIdentity

SCHEMA = 1
PACKAGES = ("kernelyard", "torch", "triton", "apache-tvm-ffi", "optuna", "numpy")


@dataclass(frozen=True)
class ResultRow:
    """One kernel and config on one workload. Times in microseconds; None where a time was not taken. `matrix` is whose point it is."""

    op: str
    workload: str
    kernel: str
    config: Config
    device_time_us: float | None
    call_time_us: float | None
    low_us: float | None
    high_us: float | None
    baselines: Mapping[str, float | None] = field(default_factory=dict)
    percent_of_ceiling: float | None = None
    matrix: str = ""


def save_experiment(
    name: str,
    rows: Sequence[ResultRow | Mapping[str, Any]],
    *,
    device: DeviceIdentity,
    command: str,
    note: str = "",
    folder: Path = Path("experiments"),
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write one experiment and return its folder; a name used twice on a day gets a number. A note begins with a `heading`.

    Rows are ResultRows, or mappings for commands that measure something else (profile). `extra` keys stand beside the stable ones.
    """
    check_name(name)
    content = {
        "schema": SCHEMA,
        "device": {**asdict(device), "key": device.key()},
        "versions": versions(),
        "commit": commit(),
        "command": command,
        **(extra or {}),
        "rows": [asdict(row) if isinstance(row, ResultRow) else dict(row) for row in rows],
    }
    text = _finite_json(content)
    try:
        target = _new_folder(folder, f"{date.today().isoformat()}-{name}")
        _write(target / "results.json", text)
        _write(target / "note.md", note or heading(name, command, device))
    except OSError as error:
        raise StoreFailed(f"the experiment can't be written under {folder}: {error.strerror}.") from error
    return target


def save_of_script(name: str, rows: Sequence[Mapping[str, Any]], *, device: DeviceIdentity, text: str, about: str | None) -> Path:
    """The experiment of a script: what it printed, then what it says of itself, under the command as it was typed."""
    command = shlex.join(["python", *sys.argv])
    return save_experiment(name, rows, device=device, command=command, note=f"{heading(name, command, device)}\n{text}\n\n{about}")


def heading(name: str, command: str, device: DeviceIdentity) -> str:
    """How every note begins: what it is, the command that repeats it, and where it ran."""
    return f"# {name}\n\n`{command}`\n\nDevice: {device.name} ({device.key()}).\n"


def check_name(name: str) -> str:
    """The name, where it can be a folder's; raises UsageError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UsageError(f"experiment name '{name}' can't be a folder's.", do="Use letters, digits, '-', '_' and '.'.")
    return name


def _finite_json(content: object) -> str:
    try:
        return json.dumps(content, indent=1, allow_nan=False) + "\n"
    except ValueError as error:
        raise DeclarationError(f"a stored result must be finite: {error}") from error


def _new_folder(folder: Path, name: str) -> Path:
    """A folder that nobody else has; mkdir decides between two processes."""
    for number in range(1, 1000):
        target = folder / (name if number == 1 else f"{name}-{number}")
        try:
            target.mkdir(parents=True)
        except FileExistsError:
            continue
        return target
    raise StoreFailed(f"{folder / name} exists a thousand times.", do="Give another name.")


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Installed versions by package, from metadata alone."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit of the checkout that this package runs from, with '-dirty' where it was changed; else KERNELYARD_COMMIT or empty."""
    root, named = Path(__file__).resolve().parents[2], os.environ.get("KERNELYARD_COMMIT", "")
    if not (root / ".git").exists():
        return named
    try:
        words = [
            subprocess.run(["git", "-C", str(root), *ask], capture_output=True, text=True, timeout=10, check=True).stdout.strip()
            for ask in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no", "--", "kernelyard"))
        ]
    except (OSError, subprocess.SubprocessError):
        return named
    return words[0] + ("-dirty" if words[1] else "")
