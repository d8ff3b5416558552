"""What the states of a device say together: under which conditions was measured, and did they stand still?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernelyard.measure.state import POWER_CAP, DeviceState

CLOCK_CHANGE = 0.05
"""A GPU's clock that moves by more between batches makes their times differ by as much, wherever arithmetic or L2 decides."""

STEADY_CLOCK = 0.02
STEADY_C = 1


def summary(states: Sequence[DeviceState]) -> str:
    """The ranges in words: 'SM clock 1965-1980 MHz, memory 3201 MHz, 41-44 C, 310-640 W'; empty where the device tells nothing."""
    if not states:
        return ""
    parts = _gpu(states) if states[0].device_type == "cuda" else _cpu(states)
    return ", ".join(part for part in parts if part)


def clock_change(states: Sequence[DeviceState]) -> str:
    """Empty, or a sentence: a GPU's clock did not stand still while batches were taken. A CPU's is one core's, and says little."""
    clocks = [state.mhz for state in states if state.device_type == "cuda" and state.mhz]
    if not clocks or max(clocks) <= (1 + CLOCK_CHANGE) * min(clocks):
        return ""
    return f"the SM clock moved between {min(clocks)} and {max(clocks)} MHz"


def at_power_cap(states: Iterable[DeviceState]) -> bool:
    """Whether a GPU ran as fast as its power allows, and no faster."""
    return any(POWER_CAP in state.throttle for state in states)


def moving(states: Sequence[DeviceState]) -> str:
    """Empty where a GPU's clock and temperature stand still from the first state to the last, or are not told; else what moves."""
    gpu = [state for state in states if state.device_type == "cuda"]
    if len(gpu) < 2:
        return ""
    first, last = gpu[0], gpu[-1]
    parts = []
    if first.mhz and last.mhz and abs(last.mhz - first.mhz) > STEADY_CLOCK * last.mhz:
        parts.append(f"the SM clock went from {first.mhz} to {last.mhz} MHz")
    if first.temperature_c and last.temperature_c and abs(last.temperature_c - first.temperature_c) > STEADY_C:
        parts.append(f"the temperature went from {first.temperature_c} to {last.temperature_c} C")
    return " and ".join(parts)


def _gpu(states: Sequence[DeviceState]) -> tuple[str, ...]:
    return (
        _range("SM clock ", [state.mhz for state in states], " MHz"),
        _range("memory ", [state.memory_mhz for state in states], " MHz"),
        _range("", [state.temperature_c for state in states], " C"),
        _range("", [state.power_w for state in states], " W"),
        *_each(f"held down by {reason}" for state in states for reason in state.throttle),
        *_each(f"{other} also has memory on it" for state in states for other in state.others),
    )


def _cpu(states: Sequence[DeviceState]) -> tuple[str, ...]:
    cores, governor = states[0].cores, states[0].governor
    return (
        _range("load ", [state.load for state in states], f" on {cores} cores", ".1f"),
        f"governor {governor}" if governor else "",
        _range("", [state.mhz for state in states], " MHz"),
    )


def _range(before: str, values: Iterable[float | None], after: str, form: str = ".0f") -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = format(min(known), form), format(max(known), form)
    return f"{before}{low if low == high else f'{low}-{high}'}{after}"


def _each(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
