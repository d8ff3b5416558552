from __future__ import annotations

import pytest
import torch

import kernelyard
from kernelyard.decoder.cache import KVCache
from kernelyard.decoder.engines import Engine, compiled, eager, graphed
from kernelyard.decoder.generate import generate
from kernelyard.decoder.model import Decoder
from kernelyard.decoder.ops import NAMES, PLAIN
from kernelyard.decoder.presets import Preset
from kernelyard.errors import InvalidInput

# A kernel that does not build here is passed over with a warning; the next serves, and must agree too.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

PROMPT, NEW = [1, 2, 3, 4, 50, 96], 9


@pytest.fixture(scope="module")
def reference(model: Decoder) -> Engine:
    return eager("reference", model)


def assert_agree(engine: Engine, reference: Engine, caches: tuple[KVCache, KVCache], tokens: list[int]) -> None:
    """Logits agree within rounding along the reference's own greedy path, so the tokens do where the top two are apart."""
    batch = torch.tensor([tokens])
    for _ in range(NEW):
        ours, theirs = engine(batch, caches[0]), reference(batch, caches[1])
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        top = theirs.topk(2).values[0]
        if top[0] - top[1] > 1e-3:
            assert ours.argmax() == theirs.argmax()
        batch = theirs.argmax(-1, keepdim=True)


def test_swapped_agrees_with_the_reference(model: Decoder, preset: Preset, reference: Engine) -> None:
    assert_agree(eager("swapped", model, NAMES), reference, (KVCache(preset, 16), KVCache(preset, 16)), PROMPT)


@pytest.mark.parametrize("op", NAMES)
def test_each_op_swapped_alone_agrees_with_the_reference(model: Decoder, preset: Preset, reference: Engine, op: str) -> None:
    alone = eager(op, model, (op,))
    assert_agree(alone, reference, (KVCache(preset, 16), KVCache(preset, 16)), PROMPT)


def test_compiled_agrees_also_on_a_cache_that_was_reset(model: Decoder, preset: Preset, reference: Engine) -> None:
    """aot_eager traces, guards and functionalises as inductor does, and generates no code, which takes a minute."""
    engine, cache = compiled("compiled", model, backend="aot_eager"), KVCache(preset, 16)
    for prompt in (PROMPT, [9, 8, 7]):
        cache.reset()
        assert_agree(engine, reference, (cache, KVCache(preset, 16)), prompt)


def test_all_variants_generate_the_same_tokens(model: Decoder, preset: Preset, reference: Engine) -> None:
    expected = generate(reference, PROMPT, NEW, KVCache(preset, 16))
    assert len(expected) == NEW
    assert generate(eager("swapped", model, NAMES), PROMPT, NEW, KVCache(preset, 16)) == expected
    assert generate(model, PROMPT, NEW, KVCache(preset, 16)) == expected


def test_the_reference_pays_no_dispatch_and_swapped_goes_through_it(model: Decoder, reference: Engine) -> None:
    ops = eager("swapped", model, ("rmsnorm",)).ops
    assert reference.ops == PLAIN
    assert ops.rmsnorm is kernelyard.ops.rmsnorm
    assert ops.softmax is PLAIN.softmax


def test_generation_under_a_pin_equals_the_reference(model: Decoder, preset: Preset, reference: Engine) -> None:
    with kernelyard.use(rmsnorm="torch.eager", softmax="torch.eager", vector_add="torch.eager"):
        pinned = generate(eager("swapped", model, NAMES), PROMPT, NEW, KVCache(preset, 16))
    assert pinned == generate(reference, PROMPT, NEW, KVCache(preset, 16))


def test_generation_goes_on_where_it_stopped(model: Decoder, preset: Preset) -> None:
    whole = generate(model, PROMPT, 6, KVCache(preset, 16))
    cache = KVCache(preset, 16)
    first = generate(model, PROMPT, 3, cache)
    assert first + generate(model, first[-1:], 3, cache) == whole


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [
        ([], 1, "a prompt of 0 tokens"),
        ([1], 0, "0 new ones"),
        ([97], 1, "token 97 is not in the vocabulary"),
        ([1, -1], 1, "token -1 is not"),
    ],
)
def test_a_prompt_without_meaning_is_refused(model: Decoder, cache: KVCache, prompt: list[int], new: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        generate(model, prompt, new, cache, vocab=97)
    assert cache.length == 0


def test_generation_continues_one_sequence_only(model: Decoder, preset: Preset) -> None:
    with pytest.raises(InvalidInput, match="the cache has 2"):
        generate(model, [1], 1, KVCache(preset, 8, batch=2))


@pytest.mark.gpu
def test_a_graph_is_right_at_every_length_and_after_a_reset(preset: Preset) -> None:
    model = Decoder(preset, device="cuda")
    reference = eager("reference", model)
    cache = KVCache(preset, 64, device="cuda")
    engine = graphed("graph", eager("swapped", model, NAMES), cache)
    for prompt in ([1, 2, 3, 4], [9, 8, 7]):
        cache.reset()
        assert generate(engine, prompt, 40, cache) == generate(reference, prompt, 40, KVCache(preset, 64, device="cuda"))


@pytest.mark.gpu
def test_a_graph_refuses_another_cache(preset: Preset) -> None:
    model = Decoder(preset, device="cuda")
    engine = graphed("graph", eager("swapped", model, NAMES), KVCache(preset, 8, device="cuda"))
    other = KVCache(preset, 8, device="cuda")
    other.rewind(1)
    with pytest.raises(InvalidInput, match="captured over another cache"):
        engine(torch.ones(1, 1, dtype=torch.int64, device="cuda"), other)
