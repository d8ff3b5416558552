"""Kernels that store, load or return what is not theirs, or in another form."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelyard.errors import Unsupported
from kernelyard.registry.backend import Executable
from kernelyard.registry.spec import Determinism, Status
from tests.wrong_kernels.catalogue import Entry, calling, rmsnorm, rope, storing


def beside(tensor: Tensor, at: int) -> Tensor | None:
    """The element `at` places from the tensor's first one in memory, where there is memory."""
    place = tensor.storage_offset() + at
    if not 0 <= place < tensor.untyped_storage().nbytes() // tensor.element_size():
        return None
    return tensor.as_strided((1,), (1,), place)


def stores(at: Callable[[Tensor], int]) -> Callable[..., None]:
    def into(outputs, *args):
        outputs[0].copy_(rmsnorm(*args))
        if (place := beside(outputs[0], at(outputs[0]))) is not None:
            place.fill_(1.0)

    return into


def one_row_too_many(outputs, *args):
    outputs[0].copy_(rmsnorm(*args))
    cols = outputs[0].shape[-1]
    if beside(outputs[0], outputs[0].numel() + cols - 1) is not None:
        outputs[0].as_strided((cols,), (1,), outputs[0].storage_offset() + outputs[0].numel()).zero_()


def missing_tail(outputs, x, w, *rest):
    cols = x.shape[-1] // 8 * 8
    outputs[0][:, :cols].copy_(rmsnorm(x, w, *rest)[:, :cols])


def missing_rows(outputs, *args):
    rows = outputs[0].shape[0] // 4 * 4
    outputs[0][:rows].copy_(rmsnorm(*args)[:rows])


def reads_its_own_output(outputs, *args):
    outputs[0].add_(rmsnorm(*args))


def reads_its_own_output_with_one_nan_for_all(outputs, *args):
    """As a GPU's arithmetic has it: which NaN went in can't be seen of the result."""
    y = outputs[0] + rmsnorm(*args)
    outputs[0].copy_(torch.where(y.isnan(), torch.nan, y))


def turns_one_half_after_the_other(outputs, x, *rest):
    half = x.shape[-1] // 2
    for part in (slice(0, half), slice(half, None)):
        outputs[0][..., part].copy_(rope(x, *rest)[..., part])


def load_past_the_end(x, w, *rest):
    span = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
    over = beside(x, span) if x.numel() else None
    y = rmsnorm(x, w, *rest)
    return y if over is None else y + (over * 0.0)


def input_changed(x, w, *rest):
    y = rmsnorm(x, w, *rest)
    if x.numel() and x.dtype == torch.float32 and x.stride(0):
        x[0, 0] = torch.nextafter(x[0, 0], torch.full_like(x[0, 0], torch.inf))
    return y


def scratch_in_an_input(x, w, *rest):
    y = rmsnorm(x, w, *rest)
    w.mul_(2.0)
    return y


def stores_beside_an_input(x, w, *rest):
    if (place := beside(w, w.numel())) is not None:
        place.fill_(0.0)
    return rmsnorm(x, w, *rest)


def returns_its_input(x, w, *rest):
    return x if x.is_contiguous() and not x.any() else rmsnorm(x, w, *rest)


def in_place(a, b):
    return a.add_(b)


def one_buffer_for_all_calls() -> Executable:
    buffers: dict[tuple[int, ...], Tensor] = {}

    def call(x, w, *rest):
        buffer = buffers.setdefault(tuple(x.shape), torch.empty(x.shape, dtype=x.dtype, device=x.device))
        return buffer.copy_(rmsnorm(x, w, *rest))

    return Executable(call)


class Lazy(Tensor):
    """A tensor that could compute when it is looked at."""


def column_major(*args):
    return rmsnorm(*args).t().contiguous().t()


def wrong_device(x, w, *rest):
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def only_multiples_of_four(x, w, *rest):
    if x.shape[-1] % 4:
        raise RuntimeError(f"cols must be a multiple of 4, not {x.shape[-1]}")
    return rmsnorm(x, w, *rest)


def refuses_float16(x, w, *rest):
    if x.dtype == torch.float16:
        raise Unsupported("float16 is not implemented")
    return rmsnorm(x, w, *rest)


def fails_on_no_rows(x, w, *rest):
    if x.shape[0] == 0:
        raise ValueError("a grid of 0 programs")
    return rmsnorm(x, w, *rest)


ADDRESSES = (
    Entry("store_past_the_end", storing(stores(lambda out: out.numel())), "1 element past its end", defence="guards"),
    Entry("store_before_the_start", storing(stores(lambda out: -1)), "1 element before its start"),
    Entry("store_far_past_the_end", storing(stores(lambda out: out.numel() + 500)), "(the farthest is 501 past)"),
    Entry("one_row_too_many", storing(one_row_too_many), "129 elements past its end"),
    Entry("missing_tail", storing(missing_tail), "7 elements were left unwritten; all of them in the last column (of 129)"),
    Entry(
        "turns_one_half_after_the_other", storing(turns_one_half_after_the_other, rope), "written over its own arguments",
        "rope", defence="in_place",
    ),
    Entry("missing_rows", storing(missing_rows), "387 elements were left unwritten; all of them in the last 3 rows (from 4 of 7)"),
    Entry("reads_its_own_output", storing(reads_its_own_output), "it reads its own output", defence="poison"),
    Entry("reads_its_own_output_with_one_nan_for_all", storing(reads_its_own_output_with_one_nan_for_all), "it reads its own output"),
    Entry("load_past_the_end", calling(load_past_the_end), "a load out of bounds", defence="surround"),
    Entry("input_changed", calling(input_changed), "input x was changed", determinism=Determinism.NONE, defence="inputs"),
    Entry("scratch_in_an_input", calling(scratch_in_an_input), "input w was changed"),
    Entry("stores_beside_an_input", calling(stores_beside_an_input), "it hit memory beside input w"),
    Entry("returns_its_input", calling(returns_its_input), "shares memory with input x: aliased", defence="alias"),
    Entry("in_place", calling(in_place), "input a was changed", "vector_add"),
    Entry("one_buffer_for_all_calls", one_buffer_for_all_calls, "the result of an earlier call, which it overwrote"),
    Entry("wrong_dtype", calling(lambda *args: rmsnorm(*args).float()), "wrong dtype: torch.float32, not torch.bfloat16"),
    Entry("wrong_layout", calling(column_major), "wrong strides: (1, 7), not (129, 1)", defence="form"),
    Entry("wrong_shape", calling(lambda *args: rmsnorm(*args).flatten()), "wrong shape: (903,), not (7, 129)"),
    Entry("wrong_device", calling(wrong_device), "wrong device: meta, not "),
    Entry("two_outputs", calling(lambda *args: (rmsnorm(*args), rmsnorm(*args))), "returned 2 outputs, not 1"),
    Entry("no_output", calling(lambda *args: None), "returned a NoneType, not a plain Tensor"),
    Entry("lazy_tensor", calling(lambda *args: rmsnorm(*args).as_subclass(Lazy)), "returned a Lazy, not a plain Tensor"),
    Entry("only_multiples_of_four", calling(only_multiples_of_four), "raised RuntimeError: cols must be", status=Status.CRASHED),
    Entry("refuses_float16", calling(refuses_float16), "declares support for this workload, then refuses", status=Status.UNSUPPORTED),
    Entry("fails_on_no_rows", calling(fails_on_no_rows), "raised ValueError: a grid of 0 programs", status=Status.CRASHED),
)
