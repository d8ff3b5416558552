"""A checkpoint's config.json as a Preset, or an error that names what the decoder can't do. Imports no torch.

Three architectures are one shape: LlamaForCausalLM; Qwen2ForCausalLM, which has a bias on q, k and v; MistralForCausalLM, as
long as its window is not smaller than its context. What a config leaves out has the default that transformers gives it.
transformers 5 writes `dtype` and `rope_parameters`, which holds rope_theta; 4 wrote `torch_dtype`, `rope_scaling` and `rope_theta`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelyard.decoder.checkpoint_json import Object, flag, number, read_json, whole
from kernelyard.decoder.presets import Preset, RopeScaling
from kernelyard.errors import InvalidInput, Unsupported
from kernelyard.registry.spec import DeclarationError

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
DEFAULT_WINDOW = 4096  # of Mistral and of Qwen2, which uses it only where use_sliding_window says so


def read_config(folder: Path) -> dict[str, Any]:
    """The checkpoint's config.json; raises InvalidInput where there is none."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is no folder.", do="Give the folder of a Hugging Face checkpoint: config.json and *.safetensors.")
    path = folder / "config.json"
    if not path.exists():
        names = ", ".join(sorted(one.name for one in folder.iterdir())[:8]) or "nothing"
        raise InvalidInput(f"{folder} has no config.json.", exists=f"It has: {names}.", do="Give a folder that save_pretrained wrote.")
    return read_json(path)


def preset_of(config: Object, name: str) -> Preset:
    """The shape that a config asks for. Raises InvalidInput for what can't be meant, Unsupported for what the decoder lacks."""
    architecture = _architecture(config)
    for text in _lacking(config, architecture):
        raise Unsupported(f"the decoder can't run {name}: {text}")
    heads = whole(config, "num_attention_heads")
    kv_heads = whole(config, "num_key_value_heads", 8 if architecture == "MistralForCausalLM" else heads)
    hidden, context = whole(config, "hidden_size"), whole(config, "max_position_embeddings")
    theta, scaling = _rope(config, context)
    try:
        return Preset(
            name,
            hidden=hidden,
            layers=whole(config, "num_hidden_layers"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=whole(config, "head_dim", hidden // heads),
            intermediate=whole(config, "intermediate_size"),
            vocab=whole(config, "vocab_size"),
            context=context,
            tied=flag(config, "tie_word_embeddings"),
            rope_theta=theta,
            eps=number(config, "rms_norm_eps", 1e-6),
            qkv_bias=architecture == "Qwen2ForCausalLM",
            rope_scaling=scaling,
        )
    except DeclarationError as error:
        raise InvalidInput(f"config.json of {name} asks for a model that can't be: {error}.", do="Download it again.") from error


def dtype_of(config: Object) -> str | None:
    """The name of the dtype that the weights are meant to have, as `bfloat16`; None where the config doesn't say."""
    found = config.get("dtype", config.get("torch_dtype"))
    return found.removeprefix("torch.") if isinstance(found, str) else None


def _architecture(config: Object) -> str:
    found = config.get("architectures")
    if not isinstance(found, list) or len(found) != 1:
        raise InvalidInput(f"config.json names the architectures {found}.", exists=f"The decoder runs one of: {', '.join(ARCHITECTURES)}.")
    if found[0] not in ARCHITECTURES:
        raise InvalidInput(f"the decoder doesn't know the architecture {found[0]}.", exists=f"It runs: {', '.join(ARCHITECTURES)}.")
    return str(found[0])


def _lacking(config: Object, architecture: str) -> Iterator[str]:
    """What the config switches on and the decoder doesn't have, each with what to do."""
    if config.get("quantization_config") is not None:
        yield "its weights are quantized (quantization_config). Load the checkpoint that it was made from."
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if config.get(key):
            yield f"it is a mixture of experts ({key} is {config[key]}). Load a dense checkpoint."
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        yield f"its MLP has hidden_act {config['hidden_act']}. Only silu is there."
    if flag(config, "mlp_bias"):
        yield "its MLP has biases (mlp_bias). Load a checkpoint without."
    if flag(config, "attention_bias") and architecture != "Qwen2ForCausalLM":
        yield "attention_bias also gives its output projection a bias. Only Qwen2's, on q, k and v alone, is there."
    window = _window(config, architecture)
    if window is not None and window < whole(config, "max_position_embeddings"):
        yield (f"it attends within a sliding window of {window} tokens. The first {window} positions are full attention: "
               f"with max_position_embeddings {window} in a copy of config.json, those run.")  # fmt: skip


def _window(config: Object, architecture: str) -> int | None:
    """The window that some layer attends within, or None where all attend in full."""
    if architecture == "LlamaForCausalLM" or ("sliding_window" in config and config["sliding_window"] is None):
        return None
    if architecture == "Qwen2ForCausalLM" and not (flag(config, "use_sliding_window") and _slides(config)):
        return None
    return whole(config, "sliding_window", DEFAULT_WINDOW)


def _slides(config: Object) -> bool:
    """Whether any layer of a Qwen2 that uses a window has one: those listed, or those from max_window_layers up."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return "sliding_attention" in kinds
    return whole(config, "num_hidden_layers") > whole(config, "max_window_layers", 28, least=0)


def _rope(config: Object, context: int) -> tuple[float, RopeScaling | None]:
    """theta and the scaling, from wherever they stand: transformers lets the dictionary's theta go before the config's."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        raise Unsupported("config.json has a rotary embedding for each kind of layer.", do="Load a checkpoint with one for all.")
    theta = number(rope if "rope_theta" in rope else config, "rope_theta", 10_000.0)
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if part not in (1.0, None):
        raise Unsupported(f"config.json rotates a part of each head (partial_rotary_factor is {part}).", do="Load one that rotates all.")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("default", None):
        return theta, None
    if kind != "llama3":
        raise Unsupported(f"the decoder has no rotary embedding of type {kind}.", exists="There are: default, llama3.")
    return theta, _llama3({"original_max_position_embeddings": context, **rope, **_original(config)})


def _original(config: Object) -> dict[str, Any]:
    name = "original_max_position_embeddings"
    return {name: config[name]} if name in config else {}


def _llama3(rope: Object) -> RopeScaling:
    factor, low, high = (number(rope, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    try:
        return RopeScaling(factor, low, high, whole(rope, "original_max_position_embeddings"))
    except DeclarationError as error:
        raise InvalidInput(f"config.json has a llama3 rope that can't be: {error}.", do="Download it again.") from error
