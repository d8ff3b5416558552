"""What `traffic` prints for people, from the object that --json prints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kernelyard.cli.output import config_text, table

INSTRUCTIONS = (
    "line >", "kind", "tensor", "block", "programs >", "requested >", "unique >", "masked >", "bytes a lane >", "sectors/request >",
    "ideal >", "source",
)  # fmt: skip
TENSORS = ("tensor", "role", "read, requested >", "unique >", "written, requested >", "unique >", "model >", "unique/model >")


def show(content: Mapping[str, Any]) -> None:
    """Instructions, tensors, totals, the compiled kernel, the explained request, findings."""
    programs = math.prod(content["grid"])
    print(
        f"{content['kernel']} of {content['op']}, {content['label']}, {config_text(content['config'])}: {content['function']}, "
        f"{programs} program{'s' * (programs != 1)} of {content['num_warps']} warp{'s' * (content['num_warps'] != 1)}"
    )
    table("", INSTRUCTIONS, [_instruction(row) for row in content["instructions"]])
    table("", TENSORS, [_tensor(row) for row in content["tensors"]])
    for line in (_totals(content["totals"]), _resources(content)):
        print(line)
    if content["explained"]:
        _explain(content["explained"])
    for finding in content["findings"]:
        print(f"{finding['kind']}: {finding['sentence']}")
    if not content["findings"]:
        print("No access out of bounds, no race between programs, no output read before it is written.")


def _instruction(row: Mapping[str, Any]) -> tuple[object, ...]:
    requests = max(row["requests"], 1)
    source = row["source"] if len(row["source"]) <= 60 else row["source"][:57] + "..."
    return (
        row["line"], row["kind"], row["tensor"], "x".join(map(str, row["block"])), row["programs"], _size(row["requested_bytes"]),
        _size(row["unique_bytes"]), f"{100 * row['masked_share']:.1f}%", row["access_bytes"], f"{row['sectors'] / requests:.1f}",
        f"{row['ideal_sectors'] / requests:.1f}", source,
    )  # fmt: skip


def _tensor(row: Mapping[str, Any]) -> tuple[object, ...]:
    unique, model = row["read_unique"] + row["written_unique"], row["model_bytes"]
    figures = [_size(row[name]) for name in ("read_requested", "read_unique", "written_requested", "written_unique")]
    return (row["name"], row["role"], *figures, _size(model), f"{unique / model:.3f}" if model else "n/a")


def _totals(totals: Mapping[str, Any]) -> str:
    text = f"In all {_size(totals['unique_bytes'])} are moved at least once, {_size(totals['requested_bytes'])} are requested"
    if not totals["model_bytes"]:
        return f"{text}; the op's model has no bytes here."
    return (
        f"{text}; the op's model has {_size(totals['model_bytes'])}: {totals['unique_ratio']:.3f} times that unique, "
        f"{totals['requested_ratio']:.3f} times requested."
    )


def _resources(content: Mapping[str, Any]) -> str:
    told, target = content["resources"], content["target"]
    if told is None:
        return f"Compiled for {target}: not known. {content['resources_reason']}"
    spills = f"{told['local_bytes']} bytes of local memory a thread (spills)" if told["local_bytes"] else "no spills"
    return (
        f"Compiled for {target}: {told['registers']} registers a thread, {spills}, {told['shared_bytes']} bytes of shared memory; "
        f"the widest global load takes {told['load_bytes']} bytes a lane, the widest store {told['store_bytes']}."
    )


def _explain(one: Mapping[str, Any]) -> None:
    from kernelyard.measure.explaining import coalescing

    program = ",".join(map(str, one["program"]))
    title = f"Line {one['line']}, {one['kind']} of {one['tensor']}, program {program}, warp 0, first request"
    rows = [_lane(lane, one["itemsize"]) for lane in one["lanes"]]
    half = len(rows) // 2
    table(title, 2 * ("lane >", "element >", "byte >", "sector >"), [(*rows[i], *rows[half + i]) for i in range(half)])
    print("Elements, bytes and sectors count from the tensor's start.")
    print(" ".join(coalescing(one)))


def _lane(lane: Mapping[str, Any], itemsize: int) -> tuple[object, ...]:
    offsets = lane["offsets"]
    if not offsets:
        return lane["lane"], "off", "", ""
    elements, last = (offsets[0] // itemsize, offsets[-1] // itemsize), offsets[-1] + itemsize - 1
    return lane["lane"], _span(*elements), _span(offsets[0], last), _span(lane["sectors"][0], lane["sectors"][-1])


def _span(first: int, last: int) -> str:
    """What a lane moves at once is contiguous: 7, or 0-7."""
    return str(first) if first == last else f"{first}-{last}"


def _size(count: int) -> str:
    """Bytes for people, exact where they are few."""
    return f"{count} B" if count < 10_000 else f"{count / 1e3:.1f} kB" if count < 10_000_000 else f"{count / 1e6:.1f} MB"
