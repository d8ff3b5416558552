"""Right kernels that look odd: another order of summation, promised nothing or little, odd but allowed conduct."""

from __future__ import annotations

import itertools
import threading

import torch
from torch import Tensor

from kernelyard.registry.backend import Executable
from kernelyard.registry.spec import Determinism
from tests.wrong_kernels.arithmetic import finish
from tests.wrong_kernels.catalogue import Entry, calling, rmsnorm, vector_add


def backwards_sum(x, w, eps, offset, casting):
    total = x.float().flip(-1).square().cumsum(-1)[:, -1:] if x.shape[0] else x.float()[:, :1]
    return finish(x, w, torch.rsqrt(total / x.shape[-1] + eps))


def split_sum(x, w, eps, offset, casting):
    total = sum(part.float().square().sum(-1, keepdim=True) for part in x.split(37, -1))
    return finish(x, w, torch.rsqrt(total / x.shape[-1] + eps))


def double_precision(x, w, eps, offset, casting):
    y = x.double()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * w.double()).to(x.dtype).contiguous()


def divides_by_the_root(x, w, eps, offset, casting):
    return (x.float() / (x.float().square().mean(-1, keepdim=True) + eps).sqrt() * w.float()).to(x.dtype).contiguous()


def split_in_another_order_each_time() -> Executable:
    """As a split sum with atomics: its partial sums meet in whatever order."""
    turn = itertools.count()

    def call(x, w, eps, offset, casting):
        parts = [part.float().square().sum(-1, keepdim=True) for part in x.split(16, -1)]
        start = next(turn) % len(parts)
        total = sum(parts[start:] + parts[:start])
        return finish(x, w, torch.rsqrt(total / x.shape[-1] + eps))

    return Executable(call)


def threads_that_end_in_time(x, w, *rest):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    stream = torch.cuda.current_stream(x.device) if x.is_cuda else None

    def half(part: slice) -> None:
        with torch.cuda.stream(stream):  # a new thread begins on the default one
            out[part].copy_(rmsnorm(x[part], w, *rest))

    threads = [threading.Thread(target=half, args=(part,)) for part in (slice(0, 4), slice(4, None))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def own_workspace_kept_between_calls() -> Executable:
    workspace: dict[torch.Size, Tensor] = {}

    def call(x, w, *rest):
        square = workspace.setdefault(x.shape, torch.empty(x.shape, device=x.device))
        torch.square(x.float(), out=square)
        return finish(x, w, torch.rsqrt(square.mean(-1, keepdim=True) + rest[0]))

    return Executable(call)


def into_given_outputs() -> Executable:
    return Executable(rmsnorm, lambda outputs, *args: outputs[0].copy_(rmsnorm(*args)))


def draws_from_a_generator_of_its_own(x, w, *rest):
    torch.rand(3, device=x.device, generator=torch.Generator(x.device).manual_seed(1))
    return rmsnorm(x, w, *rest)


def returns_a_list(*args):
    return [rmsnorm(*args)]


def padded_rows(x, w, *rest):
    padded = torch.nn.functional.pad(x, (0, 0, 0, 3))
    return rmsnorm(padded, w, *rest)[: x.shape[0]].clone()


RIGHT = (
    Entry("backwards_sum", calling(backwards_sum)),
    Entry("split_sum", calling(split_sum)),
    Entry("double_precision", calling(double_precision)),
    Entry("divides_by_the_root", calling(divides_by_the_root)),
    Entry("split_in_another_order_each_time", split_in_another_order_each_time, determinism=Determinism.NONE),
    Entry("threads_that_end_in_time", calling(threads_that_end_in_time)),
    Entry("own_workspace_kept_between_calls", own_workspace_kept_between_calls),
    Entry("into_given_outputs", into_given_outputs),
    Entry("draws_from_a_generator_of_its_own", calling(draws_from_a_generator_of_its_own)),
    Entry("returns_a_list", calling(returns_a_list)),
    Entry("padded_rows", calling(padded_rows)),
    Entry("vector_add", calling(vector_add), op="vector_add"),
)
