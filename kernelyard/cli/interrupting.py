"""Ctrl-C once ends a long command cleanly, twice ends it at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AT_ONCE = "\nkernelyard: ended at once; what had finished is kept.\n"


@contextmanager
def twice() -> Iterator[None]:
    """The first SIGINT is a KeyboardInterrupt, for whoever has something to keep; the second ends the process with 130.

    Without another word, as after `kill -9`: every finished trial is committed, the store survives, and workers die with their parent.
    """
    pressed = 0

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, AT_ONCE.encode())
            os._exit(130)
        raise KeyboardInterrupt

    # Elsewhere Python takes no handler; and a shell that starts a command in the background may have asked for no interruption.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
