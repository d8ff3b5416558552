"""rope by quack's rotary kernel.

quack takes a row of angles for each token in order, or one offset a sequence; positions in any order need the angles looked up
first, by torch, which reads and writes tokens x dim / 2 of each. Out of place and in place are one kernel.
"""

from __future__ import annotations

from quack.rotary import _rotary_fwd_out
from torch import Tensor

from kernelyard.registry.spec import Config, Workload
from kernelyard_quack.build import Into


def rope(workload: Workload, config: Config) -> Into:
    """One sequence of all tokens."""
    tokens, heads, dim = (workload.dim(name) for name in ("tokens", "heads", "dim"))
    interleaved, inverse = workload.static("style") == "interleaved", bool(workload.static("inverse"))
    shape = (1, tokens, heads, dim)

    def into(outputs: tuple[Tensor], x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, style: str, inverse_: bool) -> None:
        at = positions.view(-1)
        c, s = cos.index_select(0, at), sin.index_select(0, at)
        _rotary_fwd_out(x.view(shape), c, s, None, None, outputs[0].view(shape), tokens, interleaved, inverse)

    return into
