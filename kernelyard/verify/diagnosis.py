"""From the elements that are wrong to a sentence that names the fault: where they lie, and what the result is instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernelyard.registry.op import Op
from kernelyard.registry.spec import Tolerance
from kernelyard.verify import compare

MOST_ELEMENTS = 1 << 22
"""Guesses re-run the reference on altered inputs, and look at everything at once: not for more than this."""
SIGNED_32 = 1 << 31
"""What a signed offset of 32 bits can't reach, in elements."""

Part = Callable[[Tensor], Tensor]


def window(bad: Tensor) -> Part:
    """Cuts the part out of a large result that is looked at closely: whole rows from the first that has a wrong element."""
    if bad.numel() <= MOST_ELEMENTS:
        return lambda tensor: tensor
    flat = compare.first(bad)
    cols = bad.shape[-1] if bad.dim() > 1 and bad.shape[-1] <= MOST_ELEMENTS else 1
    start = flat // cols
    end = start + MOST_ELEMENTS // cols
    if bad.dim() > 1 and cols > 1:
        return lambda tensor: tensor.reshape(-1, cols)[start:end]
    return lambda tensor: tensor.reshape(-1)[start:end]

Guess = tuple[str, tuple[Any, ...], slice]


def sentence(bad: Tensor, got: Tensor, want: Tensor, tolerance: Tolerance) -> str:
    """How many differ, the first of them, and where they lie."""
    first = compare.first(bad)
    g, w = got.reshape(-1)[first].item(), want.reshape(-1)[first].item()
    allowed = abs(w) * tolerance.relative + tolerance.absolute
    text = f"{int(bad.sum())} of {bad.numel()} elements differ: first at {position(first, bad.shape)}: got {g:.6g}, want {w:.6g}"
    return text + (f", allowed {allowed:.2g}" if allowed == allowed and allowed != torch.inf else "") + place(bad)


def position(flat: int, shape: torch.Size) -> str:
    """A flat index as people say it: (row 2, col 4095)."""
    if len(shape) <= 1:
        return f"element {flat}"
    index = [int(i) for i in torch.unravel_index(torch.tensor(flat, device="cpu"), shape)]
    return f"(row {index[0]}, col {index[1]})" if len(shape) == 2 else str(tuple(index))


def place(mask: Tensor) -> str:
    """Where a mask is set, when that has a shape: the last columns, rows from one on; else nothing."""
    words, _ = _place(mask)
    return f"; {words}" if words else ""


def suggestion(mask: Tensor) -> str:
    """What the place alone suggests, when nothing better is known."""
    return _place(mask)[1]


def _place(mask: Tensor) -> tuple[str, str]:
    """Where, and what that suggests when nothing better is known."""
    flat, rows = mask.reshape(-1), mask.reshape(-1, mask.shape[-1]) if mask.dim() else mask.reshape(1, 1)
    if flat.numel() > SIGNED_32 and not bool(flat[:SIGNED_32].any()):
        return f"all of them past element {SIGNED_32}, the first that a signed offset of 32 bits can't reach", "offsets of 32 bits?"
    if mask.dim() == 1:
        first = compare.first(flat)
        tail = first > 0 and bool(flat[first:].all())
        return (f"all of them from element {first} on (of {flat.numel()})", "a missing tail, or offsets that wrap?") if tail else ("", "")
    by_row, by_col = rows.any(1).nonzero().flatten(), rows.any(0).nonzero().flatten()
    n_rows, n_cols = rows.shape
    if by_col.numel() < n_cols and int(by_col[0]) == n_cols - by_col.numel():
        return f"all of them in the last {_count(by_col.numel(), 'column')} (of {n_cols})", "a missing tail?"
    if by_row.numel() < n_rows and int(by_row[0]) == n_rows - by_row.numel():
        return f"all of them in the last {_count(by_row.numel(), 'row')} (from {int(by_row[0])} of {n_rows})", "rows left out?"
    if by_row.numel() < n_rows:
        return f"they lie in {by_row.numel()} of {n_rows} rows", ""
    if by_col.numel() < n_cols:
        return f"they lie in {by_col.numel()} of {n_cols} columns", ""
    return "", ""


def _count(n: int, word: str) -> str:
    return word if n == 1 else f"{n} {word}s"


def cause(op: Op, args: tuple[Any, ...], bad: Tensor, got: Tensor, want: Tensor, output: int) -> str:
    """What the result is instead of right, as a question; empty when nothing fits. `args` are the reference's."""
    wide = got.to(want.dtype)  # a window of a large result
    for look in (_swallowed, _invented):
        if words := look(bad, wide, want):
            return words
    if args and (words := _instead(op, args, wide, want, output)):
        return words
    return _factor(bad, wide, want) or _precision(bad, wide, want)


def _swallowed(bad: Tensor, got: Tensor, want: Tensor) -> str:
    lost = bad & want.isnan() & ~got.isnan()
    return f"NaN swallowed: {int(lost.sum())} elements should be NaN" if bool(lost.any()) else ""


def _invented(bad: Tensor, got: Tensor, want: Tensor) -> str:
    made = bad & got.isnan() & ~want.isnan()
    if bool(made.any()):
        return f"{int(made.sum())} elements are NaN that should not be"
    infinite = bad & got.isinf() & want.isfinite()
    return f"{int(infinite.sum())} elements are inf that should be finite: an overflow?" if bool(infinite.any()) else ""


def _instead(op: Op, args: tuple[Any, ...], got: Tensor, want: Tensor, output: int) -> str:
    """The altered inputs whose reference is 20 times nearer to the result than the right one."""
    nearest, words = _distance(got, want) / 20, ""
    for text, altered, columns in _guesses(op, args):
        other = op.results(altered)[output]
        if other.shape == got.shape and (far := _distance(got[..., columns], other[..., columns])) < nearest:
            nearest, words = far, text
    return words


def _distance(a: Tensor, b: Tensor) -> float:
    """Mean relative difference, each element counted for 1 at most."""
    if a.numel() == 0:
        return torch.inf
    scale = torch.maximum(a.abs(), b.abs()).clamp_(min=torch.finfo(torch.float32).tiny)
    return float(((a - b).abs() / scale).nan_to_num(0.0).clamp_(max=1.0).mean())


def _guesses(op: Op, args: tuple[Any, ...]) -> Iterator[Guess]:
    for i, argument in enumerate(op.arguments):
        value, name = args[i], argument.name
        for words, other in _other_values(name, value, first=i == 0):
            yield f"it is what {op.name} gives {words}", (*args[:i], other, *args[i + 1 :]), slice(None)
    x = args[0]
    if isinstance(x, Tensor) and x.dim() and x.shape[-1] > 1:
        for value in (0.0, -torch.inf):
            short = x.clone(memory_format=torch.contiguous_format)
            short[..., -1] = value
            words = f"it is what {op.name} gives when the last column is left out: a mask off by one, a missing tail?"
            yield words, (short, *args[1:]), slice(0, -1)


def _other_values(name: str, value: Any, first: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor) and not first:
        yield f"with {name} all ones: {name} ignored?", torch.ones_like(value)
        yield f"with {name} all zeros: {name} ignored?", torch.zeros_like(value)
        if value.dim() and value.shape[-1] > 1:
            yield f"with {name} shifted by one: an index off by one?", value.roll(1, -1)
            yield f"with {name} shifted by one: an index off by one?", value.roll(-1, -1)
    elif isinstance(value, bool):
        yield f"with {name}={not value}", not value
    elif isinstance(value, float) and value:
        yield f"with {name}=0: {name} ignored or in the wrong place?", 0.0
        yield f"with {name} squared: {name} in the wrong place?", value * value


def _factor(bad: Tensor, got: Tensor, want: Tensor) -> str:
    """One factor for all, or one for each row."""
    ratio = torch.where(want.isfinite() & (want != 0), got / want, torch.nan)
    rows = ratio.reshape(-1, ratio.shape[-1])
    usable = rows[~rows.isnan().all(1)]
    if usable.numel() < 2 or not bool(usable.isfinite().any()):
        return ""
    middle = usable.nanmedian()
    if _near(usable, middle):
        return f"every element is off by a factor of {float(middle):.4g}"
    if usable.shape[0] > 1 and usable.shape[1] > 1 and _near(usable, usable.nanmedian(1, keepdim=True).values):
        return "each row is off by a factor of its own: its reduction misses elements, or counts some twice?"
    return ""


def _near(values: Tensor, middle: Tensor) -> bool:
    """Whether all lie within 1% of it, and it is not 1 all over."""
    off = float((middle - 1).abs().max())
    return off > 1e-2 and bool(((values - middle).abs() <= 0.01 * middle.abs()).logical_or(values.isnan()).all())


def _precision(bad: Tensor, got: Tensor, want: Tensor) -> str:
    worst = float(((got - want).abs() / want.abs())[bad].max())
    if not worst <= 0.05:  # a NaN is not
        return ""
    return f"small errors, at most {worst:.1e} relative: a lower precision in the accumulation, or a rounding too many?"


