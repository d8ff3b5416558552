"""What a swapped model computes, and that nothing else of it, or of any other model, is touched."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelyard
from kernelyard.errors import InvalidInput, UnknownName, UsageError
from kernelyard.registry import pins, selections

pytest.importorskip("transformers")

from tests.decoder.hugging_face import FAMILIES, continued, left_padded, logits, prompts, tiny

OPS = ("rmsnorm", "add_rmsnorm", "swiglu", "rope", "attention", "attention_decode")
PLAIN = dict.fromkeys(OPS, "torch.eager")
"""Kernels that need no compiler: these tests are about where ops are put, not about which kernel serves."""
BACKWARD = dict.fromkeys(("rmsnorm_backward", "add_rmsnorm_backward", "swiglu_backward"), "torch.eager")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The kernels of PLAIN for calls that are not pinned by the swap either."""
    with kernelyard.use(**PLAIN, **BACKWARD):
        yield


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() < 1e-5 * a.abs().max())


def calls(path: Path, run: Callable[[], object]) -> dict[str, int]:
    """How often `run` called each op."""
    selections.forget()
    with kernelyard.capture(path / "calls"):
        run()
    found: Counter[str] = Counter()
    for one in kernelyard.selections():
        found[one.op] += one.calls
    return dict(found)


ONCE = {"rmsnorm": 3, "add_rmsnorm": 2, "swiglu": 2, "rope": 4, "attention": 2}
"""Calls of a prompt through two layers: a norm before each and one after both, the sum and norm inside each, q and k apart."""


def used(model: Any) -> list[str]:
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_model_with_every_op_serving(family: str, attention: str, tmp_path: Path):
    model, tokens = tiny(family, attention), prompts()
    before = logits(model, tokens)
    with kernelyard.swap(model) as swapped:
        assert close(before, logits(model, tokens))
        assert calls(tmp_path, lambda: logits(model, tokens)) == ONCE
    assert swapped.fallbacks == {}
    assert {op for layer in swapped.swapped for op in layer.ops} == set(OPS)


@pytest.mark.parametrize("cache", [None, "static"], ids=["dynamic", "static"])
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_gives_the_same_tokens(family: str, cache: str | None):
    model, tokens = tiny(family), prompts()
    before = continued(model, tokens, cache=cache)
    with kernelyard.swap(model):
        assert continued(model, tokens, cache=cache) == before


@pytest.mark.parametrize("cache", [None, "static"], ids=["dynamic", "static"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_left_padded_batch_is_attended_to_by_the_models_own_function_and_that_is_told(attention: str, cache: str | None):
    model, (tokens, mask) = tiny("Llama", attention), left_padded()
    before = continued(model, tokens, mask, cache)
    with kernelyard.swap(model) as swapped:
        assert continued(model, tokens, mask, cache) == before
    assert swapped.fallbacks["attention", "padding or a sliding window"] == 2, "both layers, at the prompt"
    assert "padding or a sliding window" in str(swapped)


def test_a_sliding_window_shorter_than_the_prompt_is_the_models_own():
    model, tokens = tiny("Mistral", sliding_window=4), prompts()
    before, tokens_before = logits(model, tokens), continued(model, tokens)
    with kernelyard.swap(model) as swapped:
        assert close(before, logits(model, tokens))
        assert continued(model, tokens) == tokens_before
    assert swapped.fallbacks["attention", "padding or a sliding window"] > 0


def test_a_decode_step_over_a_static_cache_is_attended_to_by_the_op(tmp_path: Path):
    model, tokens = tiny("Llama"), prompts()
    with kernelyard.swap(model, ops=("attention_decode",)) as swapped:
        served = calls(tmp_path, lambda: continued(model, tokens, cache="static"))
    by_the_model = sum(swapped.fallbacks.values())
    assert served["attention_decode"] + by_the_model == 2 * 7, "two layers, seven steps after the prompt's own token"
    assert by_the_model <= 2, "the last token alone fills the cache"


def test_a_growing_cache_is_left_to_the_model():
    model = tiny("Llama")
    with kernelyard.swap(model, ops=("attention_decode",)) as swapped:
        continued(model, prompts())
    (told,) = swapped.fallbacks
    assert told[0] == "attention_decode"
    assert "static cache" in told[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_unswap_gives_the_original_back_bit_for_bit(family: str):
    model, tokens = tiny(family), prompts()
    before = logits(model, tokens)
    swapped = kernelyard.swap(model)
    assert used(model) == [layer.name for layer in swapped.swapped]
    kernelyard.unswap(model)
    assert used(model) == []
    assert torch.equal(before, logits(model, tokens))


def test_nothing_of_the_state_or_of_the_classes_changes():
    model, other = tiny("Llama"), tiny("Llama")
    state = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    classes = {type(module): type(module).forward for module in model.modules()}
    with kernelyard.swap(model):
        assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == state
        assert pickle.loads(pickle.dumps(model.state_dict())).keys() == state.keys()
        assert {type(module): type(module).forward for module in model.modules()} == classes
        assert used(other) == []
        assert model.config._attn_implementation == "sdpa"


def test_a_with_block_restores_when_it_raises():
    model = tiny("Llama")
    with pytest.raises(ZeroDivisionError), kernelyard.swap(model):
        raise ZeroDivisionError
    assert used(model) == []


def test_a_kernel_is_pinned_for_the_swapped_layers():
    model, tokens = tiny("Llama"), prompts()
    before = logits(model, tokens)
    selections.forget()
    with kernelyard.use(swiglu="cpp.stream"), kernelyard.swap(model, ops=("swiglu",), kernels={"swiglu": "torch.eager"}):
        pins.forget()  # what was bound before is not noted again
        assert close(before, logits(model, tokens))
    assert [(one.op, one.kernel) for one in kernelyard.selections()] == [("swiglu", "torch.eager")]


def test_a_swap_inside_a_swap_is_refused_and_leaves_the_first():
    model = tiny("Llama")
    first = kernelyard.swap(model, ops=("rmsnorm",))
    for inner in (model, model.model.layers[0], model.model.norm):
        with pytest.raises(UsageError, match="unswap"):
            kernelyard.swap(inner, ops=("swiglu",))
    assert used(model) == [layer.name for layer in first.swapped]


def test_restoring_twice_leaves_a_later_swap_alone():
    model = tiny("Llama")
    first = kernelyard.swap(model)
    first.restore()
    second = kernelyard.swap(model)
    first.restore()
    assert used(model) == [layer.name for layer in second.swapped]


def test_a_forward_put_over_a_swapped_one_is_told_when_restoring():
    model = tiny("Llama")
    swapped = kernelyard.swap(model)
    model.model.norm.forward = lambda x: x
    with pytest.raises(UsageError, match="1 of 11 swapped layers"):
        swapped.restore()
    assert used(model) == ["model.norm"], "the others are restored, and what is not ours stays"


def test_a_copy_of_a_swapped_model_is_swapped_and_restored_by_itself():
    model, tokens = tiny("Llama"), prompts()
    before = logits(model, tokens)
    swapped = kernelyard.swap(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.model.norm.weight.mul_(2)
    assert close(before, logits(model, tokens)), "the copy computes with its own weights, the original with its own"
    assert close(2 * before, logits(twin, tokens))
    kernelyard.unswap(twin)
    assert used(twin) == []
    assert used(model) == [layer.name for layer in swapped.swapped]


def test_a_swapped_model_can_be_moved_to_another_dtype():
    model, tokens = tiny("Llama"), prompts()
    before = logits(copy.deepcopy(model).bfloat16(), tokens)
    with kernelyard.swap(model) as swapped:
        after = logits(model.to(torch.bfloat16), tokens)
    assert after.dtype == torch.bfloat16
    assert (before - after).abs().max() < 0.05 * before.abs().max()
    assert swapped.fallbacks == {}


def test_mixed_dtypes_promote_as_the_model_does():
    model, tokens = tiny("Llama"), prompts()
    for layer in model.model.layers:
        layer.bfloat16()
    model.model.embed_tokens.bfloat16()
    model.lm_head.float()
    before = logits(model, tokens)
    with kernelyard.swap(model) as swapped:
        after = logits(model, tokens)
    assert after.dtype == before.dtype == torch.float32
    assert (before - after).abs().max() < 0.05 * before.abs().max()
    assert swapped.fallbacks["rmsnorm", "dtypes differ: torch.bfloat16 and torch.float32"] == 1


def test_gradients_are_those_of_the_model():
    model, tokens = tiny("Llama").train(), prompts()

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        return {name: weight.grad.clone() for name, weight in model.named_parameters()}

    before = gradients()
    with kernelyard.swap(model) as swapped:
        after = gradients()
    assert all(close(before[name], after[name]) for name in before)
    assert list(swapped.fallbacks) == [("attention", "a gradient is due, and the op has none")]


def test_gradient_checkpointing_works():
    model, tokens = tiny("Llama").train(), prompts()
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable  # renamed within 5.x
    enable()
    with kernelyard.swap(model):
        model(tokens, labels=tokens, use_cache=False).loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_compiled_swapped_model_keeps_its_logits(tmp_path: Path):
    torch._dynamo.reset()
    model, tokens = tiny("Llama"), prompts()
    before = logits(model, tokens)
    with kernelyard.swap(model):
        compiled = torch.compile(model, backend="eager")
        assert close(before, logits(compiled, tokens))
        served = calls(tmp_path, lambda: logits(compiled, tokens))
    assert served == {op: count for op, count in ONCE.items() if op != "attention"}, "its mask can't be read inside a graph"


def test_a_pin_holds_inside_a_compiled_model():
    """A compiled call chooses its kernel when it runs: a pin that was traced would be over by then."""
    torch._dynamo.reset()
    norm, x = tiny("Llama").model.norm, torch.randn(3, 64)
    with kernelyard.use(rmsnorm="cpp.onepass"), kernelyard.swap(norm, kernels={"rmsnorm": "torch.eager"}), torch.no_grad():
        pins.forget()
        selections.forget()
        torch.compile(norm, backend="eager")(x)
    assert [(one.op, one.kernel) for one in kernelyard.selections()] == [("rmsnorm", "torch.eager")]


def test_hooks_on_modules_that_an_op_takes_in_are_still_called():
    model, tokens, seen = tiny("Llama"), prompts(), []
    layer = model.model.layers[0]
    for module in (layer.post_attention_layernorm, layer.mlp.act_fn, layer.self_attn, layer):
        module.register_forward_hook(lambda module, args, out: seen.append(type(module).__name__))
    before = logits(model, tokens)
    expected = list(seen)
    seen.clear()
    with kernelyard.swap(model) as swapped:
        assert close(before, logits(model, tokens))
    assert seen == expected
    assert ("add_rmsnorm", "its post_attention_layernorm has hooks") in swapped.fallbacks


def test_attention_weights_that_are_asked_for_are_given():
    model, tokens = tiny("Llama", "eager"), prompts()
    with torch.no_grad():
        before = model(tokens, output_attentions=True).attentions
        with kernelyard.swap(model):
            after = model(tokens, output_attentions=True).attentions
    assert len(before) == len(after) == 2
    assert all(close(one, other) for one, other in zip(before, after, strict=True))


def test_the_old_name_of_the_cache_argument_still_works():
    """Attention keeps the decorators of its own forward, which rename arguments."""
    model = tiny("Llama")
    attention = model.model.layers[0].self_attn
    x, positions = torch.randn(1, 3, 64), torch.arange(3)[None]
    cos_sin = model.model.rotary_emb(x, positions)
    before = attention(x, cos_sin, past_key_values=None)[0]
    with kernelyard.swap(model):
        assert close(before, attention(x, cos_sin, past_key_values=None)[0])


@pytest.mark.parametrize(
    ("asked", "error", "match"),
    [
        ({"ops": ("softmax",)}, UnknownName, "no op that can be swapped named 'softmax'. There are: add_rmsnorm"),
        ({"ops": "rmsnorm"}, UsageError, "tuple"),
        ({"kernels": {"rmsnorm": "cpp.none"}}, UnknownName, "no kernel of rmsnorm named 'cpp.none'"),
        ({"ops": ("swiglu",), "kernels": {"rmsnorm": "torch.eager"}}, UsageError, "Add rmsnorm"),
    ],
    ids=["op", "string", "kernel", "kernel-without-op"],
)
def test_what_cannot_be_meant_is_refused_before_anything_changes(asked: dict[str, Any], error: type[Exception], match: str):
    model = tiny("Llama")
    with pytest.raises(error, match=match):
        kernelyard.swap(model, **asked)
    assert used(model) == []


def test_only_modules_can_be_swapped():
    with pytest.raises(InvalidInput, match="not str"):
        kernelyard.swap("meta-llama/Llama-3.2-1B")  # type: ignore[arg-type]


def test_swap_imports_no_transformers():
    looked = "import sys, kernelyard; kernelyard.swap; print([name for name in sys.modules if name.startswith('transformers')])"
    told = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "[]"
