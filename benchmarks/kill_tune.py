"""Does the store survive kill -9? `kernelyard tune rmsnorm` on the CPU, killed at random moments and begun again.

    python benchmarks/kill_tune.py --times 100 [--seed 0]

After every kill: the trials that the command had told of are stored, those stored before are stored unchanged, SQLite finds the file
sound and no foreign key open. Then a run that nobody kills, and the same in a fresh home: both must choose the same kernel, or times whose
95% intervals meet. Exit code 1 where anything of this is not so. The command runs on a terminal of its own, where it tells of trials
every 0.1 s: so what it told is a lower bound of what had finished.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import random
import re
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EARLY_S = (1.0, 8.0)
"""After the start, for a third of the kills: imports take 2 to 4 s, then the store is opened and the first build begins."""

LATE_S = (0.0, 2.0)
"""After the command told of its first, second, ... trial, for the others: a trial is built, checked, timed and stored in 1 to 3 s.
Counted from the start alone, kills hit no trial at all where the first build takes longer than that."""

TRIALS = 6
TUNE = ("tune", "rmsnorm", "--dtype", "fp32", "--device", "cpu", "--trials", str(TRIALS))
TOLD = re.compile(rb"\[(\d+)/\d+\]")

RESULTS = """select s.study_name, t.number, a.value_json from trial_user_attributes a join trials t on t.trial_id = a.trial_id
             join studies s on s.study_id = t.study_id where a.key = 'result'"""

Trials = Mapping[tuple[str, int], str]


@dataclass(frozen=True)
class Moment:
    """When a kill comes."""

    delay_s: float
    trials: int
    """That the command has told of before the delay begins: 0 is the start."""

    def __str__(self) -> str:
        return f"{self.delay_s:.2f} s after {f'trial {self.trials}' if self.trials else 'the start'}"


def main() -> int:
    """Kill, look, go on; then compare with a run that nobody killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=15, help="kills")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as killed, tempfile.TemporaryDirectory() as quiet:
        problems, rows, after_a_trial = _kills(Path(killed), asked.times, random.Random(asked.seed))
        _run(Path(killed), rows, None)
        _run(Path(quiet), rows, None)
        problems += _winners(_choice(Path(killed), rows), _choice(Path(quiet), rows))
    if after_a_trial < asked.times / 3:
        problems.append(f"only {after_a_trial} of {asked.times} kills found a stored trial of the tune they ended: that shows nothing")
    fine = f"{asked.times} kills, {after_a_trial} with stored trials: none lost, the store sound, the same kernel won or the intervals meet"
    print("\n".join(problems) or fine)
    return 1 if problems else 0


def _kills(home: Path, times: int, moments: random.Random) -> tuple[list[str], int, int]:
    """Problems; the rows of the workload that was being tuned last; kills that found a trial of it stored.

    A workload that got its choice is followed by the next.
    """
    problems, before, kills, rows, first, after_a_trial = list[str](), dict[tuple[str, int], str](), 0, 16, 0, 0
    while kills < times:
        early = moments.random() < 1 / 3
        moment = Moment(moments.uniform(*(EARLY_S if early else LATE_S)), 0 if early else moments.randint(1, TRIALS - 1))
        told, was_killed = _run(home, rows, moment)
        after = _finished(home)
        found = [*_damage(home), *_lost(before, after, told, first)]
        problems += [f"kill {kills + 1} {moment}: {problem}" for problem in found]
        if was_killed:
            kills += 1
            after_a_trial += len(after) > first
            print(f"kill {kills} {moment}: told of {told} trials, {len(after) - first} stored", flush=True)
        else:
            rows, first = rows + 1, len(after)
        before = after
    return problems, rows, after_a_trial


def _run(home: Path, rows: int, moment: Moment | None) -> tuple[int, bool]:
    """Trials that the command told of on its terminal, and whether it was killed before it ended."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kernelyard", *TUNE, "--shape", f"{rows}x512"]
    environment = {**os.environ, "KERNELYARD_HOME": str(home), "COLUMNS": "400"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    told, since = bytearray(), time.monotonic() if moment is not None and not moment.trials else None
    while process.poll() is None and (moment is None or since is None or time.monotonic() - since < moment.delay_s):
        _read(ours, told)
        if moment is not None and since is None and _told(told) >= moment.trials:
            since = time.monotonic()
    killed = process.poll() is None
    if killed:
        process.send_signal(signal.SIGKILL)
    code = process.wait()
    while _read(ours, told):
        pass
    os.close(ours)
    if not killed and code != 0:
        raise SystemExit(f"{' '.join(command)} ended with {code}: {told.decode(errors='replace')[-800:]}")
    return _told(told), killed


def _told(text: bytes) -> int:
    """Trials done, by the command's own count."""
    return max((int(done) for done in TOLD.findall(text)), default=0)


def _read(terminal: int, told: bytearray) -> bool:
    """Whether the terminal had something within 20 ms; a terminal whose writers are gone raises OSError."""
    if not select.select([terminal], [], [], 0.02)[0]:
        return False
    try:
        content = os.read(terminal, 65536)
    except OSError:
        return False
    told += content
    return bool(content)


def _finished(home: Path) -> dict[tuple[str, int], str]:
    """Every stored result by study and trial."""
    path = home / "kernelyard.db"
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as connection:
        made = connection.execute("select 1 from sqlite_master where name = 'trial_user_attributes'").fetchone()
        return {(study, number): result for study, number, result in connection.execute(RESULTS)} if made else {}


def _damage(home: Path) -> list[str]:
    path = home / "kernelyard.db"
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as connection:
        lines = [str(line) for (line,) in connection.execute("pragma integrity_check") if line != "ok"]
        lines += [f"a foreign key is open: {row}" for row in connection.execute("pragma foreign_key_check")]
    return [*lines, *(f"set aside: {aside.name}" for aside in home.glob("*.corrupt-*"))]


def _lost(before: Trials, after: Trials, told: int, first: int) -> list[str]:
    """What was stored and is not, or was told of and is not stored; `first` results are of earlier workloads."""
    lost = [f"lost or changed: trial {key}" for key, result in before.items() if after.get(key) != result]
    return lost + ([f"told of {told} trials, {len(after) - first} are stored"] if told > len(after) - first else [])


def _choice(home: Path, rows: int) -> tuple[str, dict[str, Any]]:
    """Kernel and evidence of the stored choice."""
    with closing(sqlite3.connect(home / "kernelyard.db")) as connection:
        sql = "select kernel, evidence from choices where title like ?"
        kernel, evidence = connection.execute(sql, (f"rmsnorm {rows}x512 %",)).fetchone()
    return kernel, json.loads(evidence)


def _winners(one: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]]) -> list[str]:
    """Nothing where the kernels are the same or their intervals meet."""
    times = [evidence["device_time_us"] for _, evidence in (one, other)]
    texts = [
        f"{kernel} {t['median']:.2f} us ({t['low']:.2f} to {t['high']:.2f})" for (kernel, _), t in zip((one, other), times, strict=True)
    ]
    print(f"after the kills: {texts[0]}; undisturbed: {texts[1]}")
    meet = times[0]["low"] <= times[1]["high"] and times[1]["low"] <= times[0]["high"]
    return [] if one[0] == other[0] or meet else [f"another winner: {texts[0]}, undisturbed {texts[1]}"]


if __name__ == "__main__":
    sys.exit(main())
