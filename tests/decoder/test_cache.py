from __future__ import annotations

import pytest
import torch

from kernelyard.decoder.cache import KVCache
from kernelyard.decoder.generate import generate
from kernelyard.decoder.model import Decoder
from kernelyard.errors import InvalidInput

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def contents(cache: KVCache) -> torch.Tensor:
    return torch.stack([*cache.keys, *cache.values]).clone()


def prompt(length: int) -> list[int]:
    return [(7 * i + 3) % 97 for i in range(length)]


def test_an_exact_fit_works(model: Decoder, cache: KVCache) -> None:
    assert len(generate(model, prompt(12), 4, cache)) == 4


@pytest.mark.parametrize(("tokens", "new"), [(15, 4), (17, 1), (16, 1)])
def test_more_than_the_cache_holds_is_refused_before_any_write(model: Decoder, cache: KVCache, tokens: int, new: int) -> None:
    before = contents(cache)
    with pytest.raises(InvalidInput, match=rf"{tokens + new} more positions don't fit .* holds 16, of which 0"):
        generate(model, prompt(tokens), new, cache)
    assert cache.length == 0
    assert torch.equal(contents(cache), before)


def test_a_step_past_the_end_leaves_the_cache_as_it_was(model: Decoder, cache: KVCache) -> None:
    model(torch.tensor([prompt(16)]), cache)
    before = contents(cache)
    with pytest.raises(InvalidInput, match=r"1 more positions don't fit .* holds 16, of which 16 are taken\. .* at least 17"):
        model(torch.tensor([[1]]), cache)
    assert cache.length == 16
    assert torch.equal(contents(cache), before)


def test_after_a_reset_nothing_of_the_first_prompt_remains(model: Decoder, preset, cache: KVCache) -> None:
    generate(model, [1, 2, 3, 4], 8, cache)
    addresses = [tensor.data_ptr() for tensor in (*cache.keys, *cache.values)]
    cache.reset()
    assert cache.length == 0
    assert not contents(cache).any()
    assert [tensor.data_ptr() for tensor in (*cache.keys, *cache.values)] == addresses

    fresh = KVCache(preset, 16)
    for tokens in ([9, 8, 7], [5], [6]):
        batch = torch.tensor([tokens])
        assert torch.equal(model(batch, cache), model(batch, fresh))


def test_a_reset_clears_a_nan(model: Decoder, cache: KVCache) -> None:
    cache.values[0].fill_(torch.nan)
    cache.reset()
    model(torch.tensor([[1, 2]]), cache)
    assert model(torch.tensor([[3]]), cache).isfinite().all()


@pytest.mark.parametrize("length", [-1, 17])
def test_a_length_outside_the_cache_is_refused(cache: KVCache, length: int) -> None:
    with pytest.raises(InvalidInput, match=f"can't have the length {length}"):
        cache.rewind(length)


@pytest.mark.parametrize(("capacity", "batch"), [(0, 1), (4, 0)])
def test_a_cache_of_nothing_is_refused(preset, capacity: int, batch: int) -> None:
    with pytest.raises(InvalidInput, match="holds nothing"):
        KVCache(preset, capacity, batch=batch)
