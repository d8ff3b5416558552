"""Figures, lists and tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def us(value: float) -> str:
    """Microseconds, or milliseconds from 1000 on."""
    return f"{value:.3g} us" if value < 999.5 else f"{value / 1e3:.3g} ms"


def joined(words: Iterable[str]) -> str:
    """a, b and c."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def span(values: Iterable[float], form: str = "{:.2f}x") -> str:
    """One value, or the least and the most."""
    some = list(values)
    least, most = form.format(min(some)), form.format(max(some))
    return least if least == most else f"{least} to {most}"


def missing(op: str) -> str:
    """In place of what no stored experiment tells."""
    return f"Not measured yet: `kernelyard bench {op} --save bench-{op}-gpu` on a Hopper GPU, then `python -m benchmarks.hopper_page`."
