"""The project as a whole keeps its word: arrows, light commands, no traces of one machine, documents that match the code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def readme_commands(program: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for block in blocks("bash") for line in block.splitlines())
    return sorted({line for line in lines if line.split()[:1] == [program]})


def test_import_arrows_hold():
    pytest.importorskip("importlinter")
    lint = python("-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))")
    assert lint.returncode == 0, lint.stdout + lint.stderr


HEAVY = ("torch", "triton", "jax", "optuna", "tvm_ffi", "transformers", "sqlite_utils", "numpy")
LOOK = f"""
import sys
from kernelyard.cli import main
sys.argv = ["kernelyard", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    print("\\nexit", stop.code or 0, "heavy", [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["--help", "--version", "list", "list --json", "tune --help", "profile --help"])
def test_looking_around_imports_nothing_heavy(command: str):
    looked = python("-c", LOOK, *command.split())
    assert looked.stderr.strip().splitlines()[-1] == "exit 0 heavy []", looked.stderr


@pytest.mark.parametrize("module", ["kernelyard", "kernelyard.cli"])
def test_it_runs_as_a_module(module: str):
    assert python("-m", module, "--version").returncode == 0


def project_files() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


# written in pieces, so that this file does not find itself
TRACES = {
    "a path of one machine": r"(?<![\w.~$}])/(?:" + "|".join(("work", "home", "root", "Users")) + r")/\w",
    "a mark of a merge left half done": r"(?m)^(?:<{7}|={7}|>{7}|\|{7})(?= |$)",
    "a package registry's host": "|".join(rf"{name}\.org" for name in ("pypi", "pythonhosted", r"download\.pytorch", "anaconda", "debian")),
}


@pytest.mark.parametrize("kind", TRACES)
def test_no_file_names(kind: str):
    pattern, found = re.compile(TRACES[kind]), []
    for path in project_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in pattern.finditer(text)]
    assert not found


def test_each_dependency_has_its_reason_in_the_design():
    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[\[<>=;! ]", requirement)[0] for requirement in requirements}

    section = (ROOT / "DESIGN.md").read_text().partition("## Dependencies")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    reasons = {re.findall(r"`([^`]+)`", row[1])[0]: row for row in rows}
    extras = PROJECT["optional-dependencies"]
    assert names(PROJECT["dependencies"]) | set(extras) == set(reasons)
    for extra, requirements in extras.items():
        assert set(re.findall(r"`([^`]+)`", reasons[extra][2])) == names(requirements), extra
    assert all(len(row[-2].strip()) > 10 for row in rows)


def test_the_version_is_one():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    told = python("-c", "import kernelyard; print(kernelyard.__version__)").stdout.strip()
    assert newest is not None
    assert newest[1] == told == PROJECT["version"]


def test_each_command_in_the_readme_exists_with_its_options():
    commands = readme_commands("kernelyard")
    assert any(command.startswith("kernelyard tune ") for command in commands)
    for command in commands:
        words = command.split()
        helped = python("-m", "kernelyard", words[1], "--help")
        if "COMMAND [ARGS]" in helped.stdout:  # a group, whose commands have the options
            helped = python("-m", "kernelyard", *words[1:3], "--help")
        assert helped.returncode == 0, command + helped.stderr
        missing = [word for word in words if word.startswith("--") and word not in helped.stdout]
        assert not missing, f"{command}: no {missing}"


def test_each_make_target_in_the_readme_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {command.split()[1] for command in readme_commands("make")}
    assert named
    assert named <= targets


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.splitlines()[0].strip("# ")[:32])
def test_the_python_in_the_readme_runs(block: str, tmp_path: Path):
    elsewhere = f"import os, kernelyard; os.chdir({str(tmp_path)!r})\n"  # what a capture writes
    untuned = "ignore:kernelyard:RuntimeWarning"  # here nothing is tuned, and that is said
    ran = python("-W", "error", "-W", untuned, "-c", elsewhere + block)
    assert ran.returncode == 0, ran.stderr
