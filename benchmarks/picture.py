"""The README's picture, drawn from stored results: how much faster the choices are than eager and compiled torch.

    pip install 'kernelyard[report]'
    python benchmarks/picture.py experiments/<name>/results.json [more ...] docs/rmsnorm.svg

Each results.json is one panel. Bars beyond 1 are gains, on a logarithmic axis so that 2x and 0.5x look alike.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

COLOURS = {"eager": "#7a869a", "compiled": "#2f6feb"}


def main() -> None:
    """Draw the files named on the command line into the last one."""
    *sources, target = map(Path, sys.argv[1:])
    plt.rcParams.update({"svg.fonttype": "none", "font.size": 9, "svg.hashsalt": "kernelyard"})
    figure, axes = plt.subplots(1, len(sources), figsize=(5.2 * len(sources), 3.6), squeeze=False)
    for axis, source in zip(axes[0], sources, strict=True):
        panel(axis, json.loads(source.read_text()))
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


def panel(axis: Axes, content: dict[str, Any]) -> None:
    """One machine's workloads, the first on top."""
    rows = [workload for run in content["runs"] if run["op"] == "rmsnorm" for workload in run["workloads"]]
    names = [f"{row['workload']['label']}  {row['choice']['kernel']}" for row in rows]
    for offset, (label, key) in zip((-0.2, 0.2), (("eager", "speedup_vs_eager"), ("compiled", "speedup_vs_compile")), strict=True):
        places = [index + offset for index in range(len(rows))]
        gains = [(row[key] or 1.0) - 1.0 for row in rows]
        bars = axis.barh(places, gains, 0.38, left=1.0, color=COLOURS[label], label=f"against {label} torch")
        axis.bar_label(bars, [f" {row[key]:.2f}x" if row[key] else " n/a" for row in rows], fontsize=7)
    axis.set_xscale("log", base=2)
    axis.set_xlim(0.8, 1.45 * max([2.0, *(row["speedup_vs_eager"] or 1.0 for row in rows)]))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(rows)), names)
    axis.invert_yaxis()
    axis.set_title(f"rmsnorm, {content['device']['name']}", fontsize=9, pad=18)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 0.99), ncols=2)


if __name__ == "__main__":
    main()
