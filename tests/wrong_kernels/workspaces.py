"""Kernels that take scratch memory through torch: stores beside it, trust in what it holds, and right uses of it."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelyard.registry.backend import Executable
from tests.wrong_kernels.addresses import beside
from tests.wrong_kernels.arithmetic import finish
from tests.wrong_kernels.catalogue import Entry, calling, rmsnorm, storing


def mean_square_in(workspace: Tensor, x: Tensor) -> Tensor:
    """Adds up the squares of each row in the workspace, which must hold zeros."""
    for part in x.float().split(64, -1):
        workspace += part.square().sum(-1, keepdim=True)
    return workspace / x.shape[-1]


def workspace_assumed_zero(x, w, eps, offset, casting):
    workspace = torch.empty(x.shape[0], 1, device=x.device)
    return finish(x, w, torch.rsqrt(mean_square_in(workspace, x) + eps))


def workspace_zeroed(x, w, eps, offset, casting):
    workspace = x.new_empty((x.shape[0], 1), dtype=torch.float32).zero_()
    return finish(x, w, torch.rsqrt(mean_square_in(workspace, x) + eps))


def workspace_overrun(x, w, *rest):
    workspace = torch.empty((x.shape[0], 4), dtype=torch.float32, device=x.device)
    if (place := beside(workspace, workspace.numel())) is not None:
        place.fill_(1.0)
    return rmsnorm(x, w, *rest)


def zeros_overrun(outputs, x, w, *rest):
    workspace = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    outputs[0].copy_(rmsnorm(x, w, *rest))
    if (place := beside(workspace, -1)) is not None:
        place.fill_(1)


def own_output_overrun(x, w, *rest):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    out.copy_(rmsnorm(x, w, *rest))
    if (place := beside(out, out.numel())) is not None:
        place.fill_(1.0)
    return out


def flags_in_a_workspace(x, w, *rest):
    """Booleans, integers and nothing at all are workspaces too."""
    done = torch.empty(x.shape[0], dtype=torch.bool, device=x.device).fill_(False)
    count = torch.full((4,), 3, dtype=torch.int64, device=x.device)
    done[:] = bool((torch.empty(0, device=x.device).sum() == 0) & (count.sum() == 12))
    return torch.where(done[:, None], rmsnorm(x, w, *rest), torch.zeros((), dtype=x.dtype, device=x.device))


def workspace_from_another_call() -> Executable:
    """Taken in the first call, kept, and filled anew in each."""
    kept: dict[int, Tensor] = {}

    def call(x, w, eps, offset, casting):
        workspace = kept.setdefault(x.shape[0], torch.empty(x.shape[0], 1, device=x.device)).zero_()
        return finish(x, w, torch.rsqrt(mean_square_in(workspace, x) + eps))

    return Executable(call)


WORKSPACES = (
    Entry("workspace_assumed_zero", calling(workspace_assumed_zero), "(float32 (7, 1)) zeroed beforehand it is right"),
    Entry(
        "workspace_overrun", calling(workspace_overrun), "out of bounds of a workspace, float32 (7, 4): 1 element past its end",
        defence="workspace",
    ),
    Entry("zeros_overrun", storing(zeros_overrun), "out of bounds of a workspace, int32 (7,): 1 element before its start"),
    Entry("own_output_overrun", calling(own_output_overrun), "a store out of bounds: 1 element past its end"),
)
RIGHT_WORKSPACES = (
    Entry("workspace_zeroed", calling(workspace_zeroed)),
    Entry("flags_in_a_workspace", calling(flags_in_a_workspace)),
    Entry("workspace_from_another_call", workspace_from_another_call),
)
