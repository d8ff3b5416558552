"""`dashboard`: the trials in a browser."""

from __future__ import annotations

import signal
from types import FrameType

import click

from kernelyard.cli.output import emit, json_option, say


@click.command(epilog="Example: kernelyard dashboard --port 8080")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one.")
@click.option("--storage", metavar="URL", envvar="KERNELYARD_STORAGE", show_envvar=True, help="As for tune; by default this home's store.")
@json_option
def dashboard(port: int, storage: str | None, as_json: bool) -> int:
    """Show every search and its trials in a browser on this machine, until Ctrl-C. It follows searches that run.

    Needs the extra: pip install 'kernelyard[dashboard]'. Only this machine can reach it.
    """
    from kernelyard.tuner.dashboard import serving

    with serving(storage, port) as (address, serve):
        for ending in (signal.SIGINT, signal.SIGTERM):  # the first is ignored in what a script starts with &
            signal.signal(ending, _interrupt)
        if as_json:
            emit({"address": address})
        say(f"the dashboard is at {address}; Ctrl-C ends it")
        try:
            serve()
        except KeyboardInterrupt:
            say("the dashboard has ended")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    """However it is said."""
    raise KeyboardInterrupt
