"""A disk that is really full, a file system that is really read-only, another that writes: one line, and nothing finished is lost.

File systems of its own are mounted in a namespace of the test's process alone, which Linux allows to root and mostly to users.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelyard.cli import run
from kernelyard.store.choices import listed
from kernelyard.store.database import open_store
from kernelyard.store.soundness import problems
from tests.cli import stored


def mounts() -> str:
    """Why no file system can be mounted here; empty where one can."""
    if shutil.which("unshare") is None:
        return "there is no unshare here"
    tried = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False)
    return tried.stderr.strip()


REASON = mounts()
mounted = pytest.mark.skipif(bool(REASON), reason=REASON or "mounts work")

FILL = """
import json, sys
from pathlib import Path
from kernelyard.errors import StoreFailed
from kernelyard.store.database import open_store
from kernelyard.store.records import Run
from kernelyard.store.soundness import problems
from kernelyard.registry.spec import DeviceIdentity
device, saved, said = DeviceIdentity("cpu", "A CPU", "x86_64", "Linux", "here"), [], ""
path = Path(sys.argv[1]) / "kernelyard.db"
with open_store(path) as store:
    for number in range(10_000):
        try:
            store.save_run(Run(f"run-{number}", "tune", "t" * 500, "kernelyard tune", device))
        except StoreFailed as error:
            said = str(error)
            break
        saved.append(f"run-{number}")
(Path(sys.argv[1]) / "ballast").unlink()
with open_store(path) as store:
    kept = [row["id"] for row in store.runs()]
    store.save_run(Run("after", "tune", "t", "kernelyard tune", device))
print(json.dumps({"saved": saved, "kept": sorted(kept), "said": said, "problems": problems(path)}))
"""


def within(folder: Path, options: str, prepare: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command where a small file system is mounted at a folder, in a namespace that ends with it."""
    shell = f'mount -t tmpfs -o {options} none "$0" && {prepare} && exec "$@"'
    whole = ["unshare", "-rm", "sh", "-c", shell, str(folder), *command]
    return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=100)


@mounted
def test_a_disk_that_is_full_costs_only_what_was_being_written(tmp_path: Path) -> None:
    ran = within(tmp_path, "size=1m", 'head -c 400000 /dev/zero > "$0/ballast"', [sys.executable, "-c", FILL, str(tmp_path)])
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert "full" in told["said"] and "Free some space" in told["said"] and "\n" not in told["said"]
    assert told["saved"] and sorted(told["saved"]) == told["kept"] and told["problems"] == []


def kernelyard(*words: str) -> list[str]:
    return [sys.executable, "-m", "kernelyard", *words]


@mounted
def test_an_import_onto_a_full_disk_is_one_line_and_brings_nothing(home: Path, tmp_path: Path) -> None:
    for rows in range(1, 41):
        stored.save(stored.workload(rows), evidence={**stored.EVIDENCE, "note": "n" * 10_000})
    file, before, after = tmp_path / "choices.json", tmp_path / "before", tmp_path / "after"
    assert run(["cache", "export", str(file)]) == 0
    shutil.rmtree(home)
    stored.save()
    shutil.copytree(home, before)
    after.mkdir()
    look = f'"$@"; code=$?; cp "$0"/kernelyard.db* "{after}"; exit $code'
    command = ["sh", "-c", look, str(home), *kernelyard("cache", "import", str(file))]
    ran = within(home, "size=400k", f'cp "{before}"/kernelyard.db "$0"', command)
    assert ran.returncode == 1 and ran.stderr.startswith("kernelyard: the store ") and ran.stderr.count("\n") == 1, ran.stderr
    assert len(listed(path=after / "kernelyard.db")) == 1 and problems(after / "kernelyard.db") == []


@mounted
def test_a_read_only_home_serves_and_refuses_to_write_in_one_line(home: Path) -> None:
    stored.save()
    before = (home / "kernelyard.db").read_bytes()
    shell = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'

    def here(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["unshare", "-rm", "sh", "-c", shell, str(home), *kernelyard(*words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)

    served = here("cache", "why", "rmsnorm", "--shape", "3x8", "--dtype", "fp32", "--device", "cpu")
    assert (served.returncode, served.stderr) == (0, "") and "stored choice of run run-1" in served.stdout
    refused = here("cache", "prune", "--serving")
    assert refused.returncode == 1 and "KERNELYARD_HOME" in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr
    assert (home / "kernelyard.db").read_bytes() == before


def test_an_import_while_another_process_writes_is_one_line_and_brings_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored.save()
    assert run(["cache", "export", str(tmp_path / "choices.json")]) == 0
    shutil.rmtree(home)
    open_store().close()
    monkeypatch.setattr("kernelyard.store.database.BUSY_S", 0.05)
    hold = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('begin immediate'); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(home / "kernelyard.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        capsys.readouterr()
        assert run(["cache", "import", str(tmp_path / "choices.json")]) == 1
        holder.communicate("")
    assert "Another process holds it" in capsys.readouterr().err and listed() == []
