"""Which layers are left alone, and that each has its reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import kernelyard

pytest.importorskip("transformers")

from kernelyard.decoder.swap_attention import rebound
from tests.decoder.hugging_face import prompts, tiny


def reasons(model: nn.Module, **asked: Any) -> dict[tuple[str, str], str]:
    with kernelyard.swap(model, **asked) as swapped:
        return {(one.op, one.name): one.reason for one in swapped.left}


def test_every_layer_of_a_known_family_is_swapped():
    assert reasons(tiny("Qwen2")) == {}


def test_a_subclass_is_left_alone():
    model = tiny("Llama")
    norm = type(model.model.norm)
    model.model.norm.__class__ = type("ScaledNorm", (norm,), {"forward": lambda self, x: 2 * norm.forward(self, x)})
    assert reasons(model) == {("rmsnorm", "model.norm"): "it is a subclass of LlamaRMSNorm and may mean something else"}


def test_a_norm_of_another_family_is_left_alone():
    model = nn.Sequential(nn.LayerNorm(8), tiny("Llama").model.norm)
    assert reasons(model) == {("rmsnorm", "0"): "it is of none of the families Llama, Qwen2, Mistral"}


def test_a_layer_whose_forward_was_replaced_is_left_alone_as_is_the_sum_before_it():
    model = tiny("Llama")
    norm = model.model.layers[0].post_attention_layernorm
    norm.forward = lambda x: x
    assert reasons(model) == {
        ("rmsnorm", "model.layers.0.post_attention_layernorm"): "its forward was replaced on the instance",
        ("add_rmsnorm", "model.layers.0"): "of its post_attention_layernorm: its forward was replaced on the instance",
    }
    assert "forward" in vars(norm), "it stays replaced"


def test_an_mlp_with_another_activation_is_left_alone():
    left = reasons(tiny("Llama", hidden_act="gelu"))
    assert left == {("swiglu", f"model.layers.{i}.mlp"): "its activation is GELUActivation, not SiLU" for i in range(2)}


def test_a_forward_that_does_more_than_is_known_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    model = tiny("Llama")
    mlp = model.model.layers[0].mlp
    monkeypatch.setattr(type(mlp), "forward", lambda self, x: self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) * self.scale))
    assert "they differ in scale" in reasons(model, ops=("swiglu",))["swiglu", "model.layers.0.mlp"]


def test_an_attention_that_does_not_ask_for_its_function_is_left_alone_for_attention_alone(monkeypatch: pytest.MonkeyPatch):
    model = tiny("Llama")
    attention = type(model.model.layers[0].self_attn)
    source = {"apply_rotary_pos_emb": None}
    exec("def forward(self, x): return apply_rotary_pos_emb(x)", source)
    monkeypatch.setattr(attention, "forward", source["forward"])
    left = reasons(model, ops=("rope", "attention"))
    assert {op for op, _ in left} == {"attention"}
    assert "does not use ALL_ATTENTION_FUNCTIONS" in left["attention", "model.layers.0.self_attn"]


def test_a_model_of_no_known_layer_is_left_alone_and_says_so():
    swapped = kernelyard.swap(nn.Linear(2, 2))
    assert swapped.swapped == ()
    assert repr(swapped) == "<Swap of Linear: nothing; 0 left alone>"


def test_ops_that_are_not_asked_for_are_neither_swapped_nor_listed():
    model = nn.Sequential(nn.LayerNorm(8), tiny("Llama").model.layers[0].mlp)
    with kernelyard.swap(model, ops=("swiglu",)) as swapped:
        assert [(layer.name, layer.ops) for layer in swapped.swapped] == [("1", ("swiglu",))]
    assert swapped.left == ()


def test_the_table_counts_layers_by_kind():
    with kernelyard.swap(tiny("Llama", hidden_act="gelu"), ops=("rmsnorm", "swiglu")) as swapped:
        assert [line.split() for line in str(swapped).splitlines()] == [
            ["op", "layers", "what", "because"],
            ["rmsnorm", "5", "LlamaRMSNorm", "swapped"],
            ["swiglu", "2", "LlamaMLP", "left", "alone", *["its", "activation", "is", "GELUActivation,", "not", "SiLU"]],
        ]
    assert repr(swapped) == "<Swap of LlamaForCausalLM: rmsnorm in 5; 2 left alone>"


def test_attention_on_a_device_that_has_plain_torch_alone_stays_the_models_own():
    """As on a CPU, where the registry has nothing else for a prompt."""
    model = tiny("Llama")
    with torch.no_grad(), kernelyard.swap(model, ops=("attention",)) as swapped:
        model(prompts(), use_cache=False)
    assert swapped.fallbacks == {("attention", "on cpu no kernel is there for it but plain torch"): 2}


LEVEL = 1


def test_a_rebound_function_keeps_its_decorators_and_defaults():
    import functools

    def doubled(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return 2 * function(*args, **kwargs)

        return wrapper

    @doubled
    def counted(a: int, b: int = 10, *, c: int = 100) -> int:
        return a + b + c + LEVEL

    assert counted(1) == 2 * 112
    assert rebound(counted, {"LEVEL": 5})(1) == 2 * 116
    assert counted(1) == 2 * 112, "the original looks up what it did"


def test_a_decorator_that_hides_its_function_is_refused():
    def hiding(*args: Any) -> None: ...

    hiding.__wrapped__ = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="decorator"):
        rebound(hiding, {})
