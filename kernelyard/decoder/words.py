"""What a profile found, in sentences: gains, losses and no effect alike."""

from __future__ import annotations

from kernelyard.decoder.report import OpShare
from kernelyard.measure.stats import Interval


def sentence(label: str, ops: tuple[OpShare, ...], predicted: Interval, observed: Interval) -> str:
    """One case in words: what was swapped, what that should give, what it gave, and where the difference went."""
    if not ops:
        return f"{label}: none of the swapped ops takes time here."
    swapped = ", ".join(f"{op.op} by {' and '.join(op.kernels)} ({op.share.median:.1%} of it, {op.speedup.median:.2f}x)" for op in ops)
    verdict = {"faster": "slower", "slower": "faster"}.get(observed.verdict(), "neither faster nor slower, within noise")
    text = f"{label}: {swapped}: predicted {_x(predicted)}, observed {_x(observed)}: the model is {verdict}"
    if predicted.low <= observed.high and observed.low <= predicted.high:
        return f"{text}; the intervals of prediction and observation meet."
    change = rest_change(ops, observed)
    more = "more" if change > 0 else "less"
    return f"{text}; the intervals don't meet: beside the swapped ops, the model takes {abs(change):.1%} {more} time."


def rest_change(ops: tuple[OpShare, ...], observed: Interval) -> float:
    """How much more time, as a share, everything but the swapped ops takes in the swapped run than in the reference."""
    before = 1 - sum(op.share.median for op in ops)
    after = (1 - sum(op.share_after.median for op in ops)) / observed.median
    return after / before - 1 if before > 0 else 0.0


def _x(gain: Interval) -> str:
    return f"{gain.median:.2f}x [{gain.low:.2f}, {gain.high:.2f}]"
