"""What commands share when they speak: JSON, tables, progress on stderr, common options."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kernelyard.errors import masked

if TYPE_CHECKING:
    from kernelyard.registry.spec import DeviceIdentity

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
device_option = click.option("--device", help="cpu or cuda; by default a GPU where there is one.")
dtype_option = click.option("--dtype", help="fp32, bf16 or fp16; with --shape.")
matrix_option = click.option("--matrix", help="A frozen matrix by name (correctness, performance, held_out), or a JSON file of your own.")


class Seconds(click.FloatRange):
    """A finite number of seconds; click's own range lets NaN through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or a usage error."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return number


def _experiment_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    from kernelyard.store.results import check_name

    return None if value is None else check_name(value)


save_option = click.option(
    "--save", metavar="NAME", callback=_experiment_name, help="Write experiments/<date>-NAME/results.json and note.md."
)


def shape_option(example: str) -> Callable[[F], F]:
    """--shape, possibly several times, with an example for the help."""
    text = f"Sizes such as {example}, or {example}:offset with a layout; may be given again."
    return click.option("--shape", "shapes", multiple=True, help=text)


def say(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


def show_and_save(name: str | None, rows: Sequence[Mapping[str, Any]], *, device: DeviceIdentity, text: str, about: str | None) -> None:
    """How a script ends: what it found for people, and under a name the experiment."""
    from kernelyard.store.results import save_of_script

    print(text)
    if name:
        say(f"saved {save_of_script(name, rows, device=device, text=text, about=about)}")


def command_line() -> str:
    """The command that is running, as a person would repeat it, who knows the password of a --storage URL: it is stored and shown."""
    return " ".join(["kernelyard", *(shlex.quote(masked(word)) for word in sys.argv[1:])])


def emit(content: dict[str, Any]) -> None:
    """Print the one JSON object of a --json command."""
    print(json.dumps({"schema": 1, **content}, indent=1, default=str), flush=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; columns whose name ends in ' >' are right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        drawn.add_column(column.removesuffix(" >"), justify="right" if column.endswith(" >") else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(str(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:  # a file or a pipe: never fold or cut what someone may search
        console = Console(width=240)
    console.print(drawn)


def microseconds(value: float | None) -> str:
    """A time for people: 3 significant digits, its unit chosen by size."""
    if value is None:
        return "n/a"
    if value < 1000:
        return f"{value:.3g} us" if value < 100 else f"{value:.0f} us"
    return f"{value / 1000:.3g} ms" if value < 1e6 else f"{value / 1e6:.3g} s"


def ratio(value: float | None) -> str:
    """A speed-up for people."""
    return "n/a" if value is None else f"{value:.2f}x"


def config_text(config: Any) -> str:
    """A config for people: `threads=2 unroll=4`."""
    return " ".join(f"{name}={value}" for name, value in dict(config).items()) or "-"
