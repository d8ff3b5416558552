"""Amdahl's law: what speeding up a part does to the whole. Pure functions of plain numbers.

Source: Amdahl, "Validity of the single processor approach to achieving large scale computing capabilities" (1967).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kernelyard.registry.spec import require


def gain(share: float, speedup: float) -> float:
    """How many times faster the whole gets when a part that takes `share` of its time runs `speedup` times faster.

    gain = 1 / ((1 - share) + share / speedup), with share in [0, 1] and speedup > 0; below 1 the whole gets slower.
    """
    return gain_of_several([(share, speedup)])


def gain_of_several(parts: Iterable[tuple[float, float]]) -> float:
    """The same for parts that don't overlap, each (share, speedup); their shares add up to 1 at most."""
    parts = tuple(parts)
    for share, speedup in parts:
        require(0 <= share <= 1, f"a share of time is between 0 and 1, not {share}")
        require(math.isfinite(speedup) and speedup > 0, f"a speed-up is finite and more than 0, not {speedup}")
    total = sum(share for share, _ in parts)
    require(total <= 1 + 1e-9, f"shares of one time add up to 1 at most, not {total}")
    return 1.0 / (max(1.0 - total, 0.0) + sum(share / speedup for share, speedup in parts))


def ceiling(share: float) -> float:
    """The most that the whole can gain, were the part free: 1 / (1 - share); infinite where it is all there is."""
    require(0 <= share <= 1, f"a share of time is between 0 and 1, not {share}")
    return math.inf if share == 1 else 1.0 / (1.0 - share)


def shares(parts_ms: Sequence[float], whole_ms: float) -> list[float]:
    """The parts' shares of the whole's time. Parts that noise made longer than their whole count as all of it, in proportion."""
    require(whole_ms > 0 and all(part >= 0 for part in parts_ms), f"times must be positive, not {list(parts_ms)} of {whole_ms} ms")
    whole = max(whole_ms, sum(parts_ms))
    return [part / whole for part in parts_ms]
