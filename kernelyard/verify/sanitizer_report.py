"""What compute-sanitizer printed, as findings: which kernel, what, where. Lines of ours begin with nine '='.

The format is that of the user manual ("Understanding Memcheck Errors", "Understanding Racecheck Analysis Reports", examples of
initcheck), which differs a little from version to version; what is not understood is kept as words, never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

PREFIX = "========="

_ACCESS = re.compile(r"Invalid (?P<space>__\w+__) (?P<access>read|write|atomic)(?: of size (?P<size>[\d,]+)(?: bytes)?)?")
_UNINITIALISED = re.compile(r"Uninitialized (?P<space>__\w+__) memory (?P<access>read)(?: of size (?P<size>[\d,]+)(?: bytes)?)?")
_RACE = re.compile(r"(?:\w+: ?)?(?:\([^)]*\) ?)?Race reported between (?P<access>Read|Write) access at (?P<at>.+)")
_AND = re.compile(r"and (?P<access>Read|Write) access at (?P<at>.+?)(?: \[(?P<hazards>[\d,]+) hazards?\])?$")
_AT = re.compile(r"at (?P<at>.+)")
_BY = re.compile(r"by thread (?P<thread>\([\d, ]+\)) in block (?P<block>\([\d, ]+\))")
_ADDRESS = re.compile(r"Address (?P<address>0x[0-9a-fA-F]+)(?P<how>.*)")
_SUMMARY = re.compile(r"(?P<kind>ERROR|RACECHECK) SUMMARY: (?P<count>[\d,]+) (?:errors?|hazards?)")
_QUIET = ("COMPUTE-SANITIZER", "Saved host backtrace", "Host Frame", "Device Frame", "in ", "LEAK SUMMARY", "This tool is")


@dataclass(frozen=True)
class Finding:
    """One report. `kind` is 'write' or 'read' out of bounds or misaligned, 'uninitialised read', 'race', or 'other'.

    `function` is the CUDA kernel or device function; `line` is 'file.cu:31' where line information was built in. `size` in bytes.
    """

    kind: str
    words: str
    function: str = ""
    line: str = ""
    size: int | None = None
    address: str = ""
    count: int = 1


@dataclass(frozen=True)
class Parsed:
    """The findings of one run, equal ones counted once, and the tool's own count of errors; None where its summary is missing."""

    findings: tuple[Finding, ...]
    errors: int | None


def parse(text: str) -> Parsed:
    """Reads the output of memcheck, racecheck or initcheck."""
    counted: dict[tuple[str, str, str], Finding] = {}
    for block in _blocks(text):
        found = _finding(block)
        key = (found.kind, found.function, found.line)
        before = counted.get(key)
        counted[key] = found if before is None else _again(before)
    summaries = [_number(match["count"]) for line in _ours(text) if (match := _SUMMARY.match(line))]
    return Parsed(tuple(counted.values()), sum(summaries) if summaries else None)


def _again(found: Finding) -> Finding:
    return replace(found, count=found.count + 1)


def _ours(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith(PREFIX):
            yield line[len(PREFIX) :].strip()


def _blocks(text: str) -> Iterator[list[str]]:
    """Reports: a first line that is no detail of another, and what belongs to it."""
    block: list[str] = []
    for line in _ours(text):
        if _SUMMARY.match(line) or line.startswith(_QUIET):
            continue
        if block and (not line or not _detail(line)):
            yield block
            block = []
        if line:
            block.append(line)
    if block:
        yield block


def _detail(line: str) -> bool:
    return line.startswith(("at ", "by ", "Address ", "and ", "Access ", "Current Value", "[", "Write Thread", "Read Thread"))


def _finding(block: list[str]) -> Finding:
    first, words = block[0], "; ".join(block)
    if race := _RACE.match(first):
        function, line = _place(race["at"])
        hazards = sum(_number(match["hazards"]) for one in block[1:] if (match := _AND.match(one)) and match["hazards"])
        return Finding("race", words, function, line, count=max(hazards, 1))
    at = next((match["at"] for one in block[1:] if (match := _AT.match(one))), "")
    function, line = _place(at)
    address = next((match["address"] for one in block[1:] if (match := _ADDRESS.match(one))), "")
    if access := _ACCESS.match(first) or _UNINITIALISED.match(first):
        kind = "uninitialised read" if first.startswith("Uninitialized") else access["access"]
        return Finding(kind, words, function, line, _number(access["size"]) if access["size"] else None, address)
    return Finding("race" if "hazard detected" in first else "other", words, function, line, None, address)


def _place(at: str) -> tuple[str, str]:
    """Function and source line from any of the forms that versions print:

    'kernel(float *)+0x90 in /a/file.cu:41', '0x90 in /a/file.cu:41:kernel(float *)', '0x90 in kernel(float *)'.
    """
    at = re.sub(r" \[[\d,]+ hazards?\]$", "", at)
    before, _, after = at.partition(" in ")
    if re.fullmatch(r"0x[0-9a-fA-F]+", before):
        if match := re.fullmatch(r"(?P<line>.+?:\d+):(?P<function>.+)", after):
            return match["function"], match["line"]
        return ("", after) if re.fullmatch(r"[^()]+:\d+", after) else (after, "")
    return re.sub(r"(\+|:)0x[0-9a-fA-F]+$", "", before), after if re.search(r":\d+$", after) else ""


def _number(text: str) -> int:
    return int(text.replace(",", ""))
