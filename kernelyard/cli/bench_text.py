"""`bench`: its rows as a table, as sentences, and as a stored experiment."""

from __future__ import annotations

from typing import Any

from kernelyard.cli.output import command_line, config_text, microseconds, table

COLUMNS = (
    "workload", "kernel", "config", "device time >", "95% interval >", "call time >", "vs eager >", "95% interval >", "of ceiling >",
)  # fmt: skip


HELD_OUT = "these points are held out: no kernel is tuned on them, and each runs in its author's default"


def show(rows: list[dict[str, Any]]) -> None:
    """The table, then what was not timed and why, what is noisy, and what a reader must know of the figures."""
    timed = [row for row in rows if row["device_time_us"] is not None]
    table("", COLUMNS, [_cells(row) for row in timed])
    for row in rows:
        if row["reason"]:
            print(f"{row['label']}: {row['kernel']} was not timed: {row['reason']}")
        elif row["noisy"]:
            print(f"{row['label']}: {row['kernel']} is noisy: {row['noisy']}")
        elif row["energy_j"] is not None:
            print(f"{row['label']}: {row['kernel']} takes {1e6 * row['energy_j']:.3g} uJ a call")
    for note in _notes(timed):
        print(f"note: {note}")


def _notes(timed: list[dict[str, Any]]) -> list[str]:
    """Each once."""
    held_out = [HELD_OUT for row in timed if row["held_out"]]
    notes = [text for row in timed for text in (row["notes"], row["no_energy"] and f"no energy: {row['no_energy']}") if text]
    above = [f"{row['label']}: {row['kernel']} is {row['ceiling_note']}" for row in timed if row["ceiling_note"]]
    return list(dict.fromkeys([*held_out, *notes, *above]))


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    speedup, share = row["speedup_vs_eager"], row["percent_of_ceiling"]
    return (
        row["label"],
        row["kernel"],
        config_text(row["config"]),
        microseconds(row["device_time_us"]),
        f"{microseconds(row['low_us'])} to {microseconds(row['high_us'])}",
        microseconds(row["call_time_us"]),
        f"{speedup['median']:.2f}x" if speedup else "n/a",
        f"{speedup['low']:.2f} to {speedup['high']:.2f}" if speedup else "",
        "n/a" if share is None else f"{share:.0f}%",
    )


def save(name: str, device: Any, rows: list[dict[str, Any]]) -> Any:
    """Writes the timed rows under experiments/ and returns the folder."""
    from kernelyard.store.results import ResultRow, heading, save_experiment

    timed = [row for row in rows if row["device_time_us"] is not None]
    by_label: dict[str, dict[str, float | None]] = {}
    for row in timed:
        by_label.setdefault(row["label"], {})[row["kernel"]] = row["device_time_us"]
    results = [ResultRow(row["op"], row["label"], row["kernel"], row["config"], row["device_time_us"], row["call_time_us"], row["low_us"],
                         row["high_us"], by_label[row["label"]], row["percent_of_ceiling"], row["matrix"]) for row in timed]  # fmt: skip
    lines = [heading(name, command_line(), device), *_matrices(timed), "",
             "| workload | kernel | us | vs eager | of ceiling |", "| --- | --- | --- | --- | --- |"]  # fmt: skip
    lines += ["| " + " | ".join((c[0], c[1], c[3], c[6], c[8])) + " |" for c in (tuple(map(str, _cells(row))) for row in timed)]
    return save_experiment(name, results, device=device, command=command_line(), note="\n".join(lines) + "\n")


def _matrices(timed: list[dict[str, Any]]) -> list[str]:
    """Whose points the rows are, and of those that are held out what that means."""
    told = {f"Matrix: {row['matrix']}" + (f"; {HELD_OUT}." if row["held_out"] else ".") for row in timed}
    return sorted(told)
