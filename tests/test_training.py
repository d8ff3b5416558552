"""Training with kernelyard's operators: a small model follows the loss of the same model in plain torch, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kernelyard

STEPS, VOCABULARY, WIDTH, HIDDEN = 50, 64, 64, 160


@dataclass(frozen=True)
class Ops:
    """What the model calls."""

    norm: Callable[..., Tensor]
    add_norm: Callable[..., tuple[Tensor, Tensor]]
    gate: Callable[..., Tensor]


def plain_add_norm(x: Tensor, residual: Tensor, w: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    r = x + residual
    return plain_norm(r, w, eps), r


def plain_norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, eps)


PLAIN = Ops(plain_norm, plain_add_norm, lambda a, b: F.silu(a) * b)
OURS = Ops(
    lambda *args: kernelyard.ops.rmsnorm(*args), lambda *args: kernelyard.ops.add_rmsnorm(*args), lambda *args: kernelyard.ops.swiglu(*args)
)


class Layer(nn.Module):
    """Mixes tokens by a causal mean, then a gated MLP; both add to the residual stream."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        self.first, self.second = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, residual: Tensor) -> Tensor:
        x = self.mix(self.ops.norm(residual, self.first, 1e-5))
        counts = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None]
        y, r = self.ops.add_norm(x.cumsum(1) / counts, residual, self.second, 1e-5)
        return r + self.down(self.ops.gate(self.gate(y), self.up(y)))


class Model(nn.Module):
    """Two layers between an embedding and a head."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(Layer(ops), Layer(ops))
        self.last, self.head = nn.Parameter(torch.ones(WIDTH)), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.ops.norm(self.layers(self.embedding(tokens)), self.last, 1e-5))


def losses(ops: Ops, device: str, order: int, compiled: bool = False) -> list[float]:
    """Of 50 steps in bf16 from one seed. `order` permutes the sequences of each batch: the same mathematics, other roundings."""
    torch.manual_seed(0)
    model: Any = Model(ops).to(device, torch.bfloat16)
    run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    data = torch.Generator().manual_seed(1)
    found = []
    for _ in range(STEPS):
        start = torch.randint(VOCABULARY, (8, 1), generator=data)
        tokens = (start + torch.arange(33) * 5) % VOCABULARY
        shuffled = tokens[torch.randperm(8, generator=torch.Generator().manual_seed(order))].to(device)
        logits = run(shuffled[:, :-1]).float()
        loss = F.cross_entropy(logits.flatten(0, 1), shuffled[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@cache
def reference(device: str) -> Tensor:
    """(4, steps): losses of plain torch, four orders."""
    return torch.tensor([losses(PLAIN, device, order) for order in range(4)])


def distance(ours: list[float], device: str) -> float:
    """The farthest that a loss is from plain torch's mean, in spreads of plain torch."""
    plain = reference(device)
    spread = float((plain.amax(0) - plain.amin(0)).max())
    assert spread > 0, "the order of summation shows"
    return float((torch.tensor(ours) - plain.mean(0)).abs().max()) / spread


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_trained_model_follows_the_loss_of_plain_torch_within_its_bf16_spread(compiled: bool) -> None:
    torch._dynamo.reset()
    ours = losses(OURS, "cpu", 0, compiled)
    assert ours[-1] < 0.1 * ours[0], "it learns"
    assert distance(ours, "cpu") <= 2


def test_a_gradient_that_is_off_would_show() -> None:
    def off(x: Tensor, w: Tensor, eps: float) -> Tensor:
        return plain_norm(x, w, eps) + 0.1 * (x - x.detach())

    assert distance(losses(Ops(off, plain_add_norm, PLAIN.gate), "cpu", 0), "cpu") > 4


@pytest.mark.gpu
def test_a_trained_model_follows_it_on_a_gpu() -> None:
    assert distance(losses(OURS, "cuda", 0), "cuda") <= 2
