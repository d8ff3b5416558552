"""Is a bench found again? Two runs of it compared row by row: by op, workload and kernel, device time within 3%.

    python benchmarks/twice.py --first experiments/A/results.json ... --second experiments/B/results.json ... [--save NAME]

Exit code 1 where fewer than 95% of the rows are found again. A row that only one run has counts as not found again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelyard.measure.series import Outside, share_within
from kernelyard.registry.spec import DeviceIdentity
from kernelyard.store.results import heading, save_experiment

TOLERANCE = 0.03
ENOUGH = 0.95


def main() -> int:
    """Compare the files named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=Path, nargs="+", required=True)
    parser.add_argument("--second", type=Path, nargs="+", required=True)
    parser.add_argument("--save", metavar="NAME", help="write experiments/<date>-NAME")
    asked = parser.parse_args()
    first, second = ([row for path in paths for row in read(path)["rows"]] for paths in (asked.first, asked.second))
    share, outside = share_within(first, second, TOLERANCE)
    text = report(len(first), len(second), share, outside)
    print(text)
    if asked.save:
        folder = save(asked.save, read(asked.first[0])["device"], share, outside, text)
        print(f"saved {folder}", file=sys.stderr)
    return 0 if share >= ENOUGH else 1


def read(path: Path) -> dict[str, Any]:
    """A stored experiment."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def report(first: int, second: int, share: float, outside: list[Outside]) -> str:
    """The share, and every row that was not found again."""
    lines = [f"{share:.1%} of the rows ({first} in the first run, {second} in the second) were found again within {TOLERANCE:.0%}."]
    lines += [f"{one.op} {one.workload} {one.kernel}: {_us(one.first_us)} then {_us(one.second_us)}: {one.reason}" for one in outside]
    return "\n".join(lines)


def _us(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g} us"


def save(name: str, device: dict[str, Any], share: float, outside: list[Outside], text: str) -> Path:
    """As an experiment of its own: its rows are those that were not found again."""
    where = DeviceIdentity(*(device[part] for part in ("type", "name", "capability", "driver", "uuid")))
    command = shlex.join(["python", *sys.argv])
    listed = "\n".join(f"- {line}" for line in text.splitlines())
    note = f"{heading(name, command, where)}\n{listed}\n"
    rows = [asdict(one) for one in outside]
    return save_experiment(name, rows, device=where, command=command, note=note, extra={"share_within": share, "tolerance": TOLERANCE})


if __name__ == "__main__":
    sys.exit(main())
