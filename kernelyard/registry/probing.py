"""A backend's probe, asked: can this machine run (or check) kernels of it? Imports no backend, so that listing stays quick."""

from __future__ import annotations

from kernelyard.registry.answer import Answer, no
from kernelyard.registry.lazy import load


def probed(probe: str, device: str, purpose: str = "run") -> Answer:
    """The answer of 'module:function'; one that raises, or gives something else, is a no."""
    try:
        answer = load(probe)(device, purpose)
    except (Exception, SystemExit) as error:  # a stranger's probe may raise anything
        return no(f"its backend's probe failed: {type(error).__name__}: {error}")
    return answer if isinstance(answer, Answer) else no(f"its backend's probe returned {answer!r}, not an Answer")
