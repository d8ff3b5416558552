"""What is wrong with a checkpoint is said by name, with what exists and what to do, before anything is allocated."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelyard.decoder import memory
from kernelyard.decoder.checkpoint import find
from kernelyard.decoder.presets import RopeScaling
from kernelyard.errors import InvalidInput, KernelyardError, Unsupported
from tests.decoder.checkpoints import edit_config, edit_tensors, llama, mistral, qwen2

Copy = Callable[[str], Path]
"""Of one of these checkpoints, by its name, to spoil."""

WRITERS: dict[str, Callable[[Path], Any]] = {
    "llama": lambda folder: llama().save_pretrained(folder),
    "tied": lambda folder: llama(tie_word_embeddings=True).save_pretrained(folder),
    "shards": lambda folder: llama().save_pretrained(folder, max_shard_size="60KB"),
    "qwen2": lambda folder: qwen2().save_pretrained(folder),
    "mistral": lambda folder: mistral().save_pretrained(folder),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in WRITERS}
    for name, write in WRITERS.items():
        write(folders[name])
    return folders


@pytest.fixture
def copy(written: dict[str, Path], tmp_path: Path) -> Copy:
    return lambda name: shutil.copytree(written[name], tmp_path / name)


@pytest.fixture(autouse=True)
def nothing_is_allocated(monkeypatch: pytest.MonkeyPatch, written: dict[str, Path]) -> None:
    def allocate(*args: object, **kwargs: object) -> None:
        raise AssertionError("allocated")

    monkeypatch.setattr(torch, "empty", allocate)


def refused(folder: Path, kind: type[KernelyardError], *texts: str) -> None:
    with pytest.raises(kind) as caught:
        find(folder)
    for text in texts:
        assert text in str(caught.value)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    refused(tmp_path / "none", InvalidInput, "none is no folder", "Give the folder of a Hugging Face checkpoint")


def test_no_config(copy: Copy) -> None:
    folder = copy("llama")
    (folder / "config.json").unlink()
    refused(folder, InvalidInput, "has no config.json", "It has: generation_config.json, model.safetensors", "save_pretrained")


@pytest.mark.parametrize(
    ("text", "said"), [("{", "is not JSON"), ("[1]", "holds a JSON list"), ("[" * 100_000, "is not JSON"), ("\xff", "is not JSON")]
)
def test_a_config_that_is_no_json_object(copy: Copy, text: str, said: str) -> None:
    folder = copy("llama")
    (folder / "config.json").write_text(text, "latin-1")
    refused(folder, InvalidInput, "config.json", said, "Download it again")


@pytest.mark.parametrize("architectures", [["GPT2LMHeadModel"], ["MixtralForCausalLM"], None, []])
def test_an_unknown_architecture(copy: Copy, architectures: list[str] | None) -> None:
    folder = copy("llama")
    edit_config(folder, architectures=architectures)
    asked = str(architectures[0] if architectures else architectures)
    refused(folder, InvalidInput, asked, "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM")


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("llama", {"quantization_config": {"quant_method": "fp8"}}, "quantized"),
        ("llama", {"num_local_experts": 8}, "a mixture of experts (num_local_experts is 8)"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act gelu"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"attention_bias": True}, "attention_bias also gives its output projection a bias"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "of type yarn. There are: default, llama3."),
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "type linear"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "for each kind of layer"),
        ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ("llama", {"dtype": "float8_e4m3fn"}, "dtype float8_e4m3fn. The decoder has: float32, bfloat16, float16."),
        ("mistral", {"sliding_window": 100}, "a sliding window of 100 tokens"),
        ("mistral", {"sliding_window": None, "max_position_embeddings": 8192}, "a sliding window of 4096 tokens"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 100, "layer_types": ["sliding_attention"] * 2}, "a sliding window of 100"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 100, "layer_types": None, "max_window_layers": 1},
            "a sliding window of 100",
        ),
    ],
)
def test_a_feature_that_the_decoder_lacks(copy: Copy, name: str, changes: dict[str, Any], said: str) -> None:
    folder = copy(name)
    edit_config(folder, **changes)
    refused(folder, Unsupported, said)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mistral", {"sliding_window": 256}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 100}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 100, "layer_types": None, "max_window_layers": 2}),
    ],
)
def test_a_window_that_no_layer_or_no_position_meets_is_no_hindrance(copy: Copy, name: str, changes: dict[str, Any]) -> None:
    folder = copy(name)
    edit_config(folder, **changes)
    assert find(folder).preset.context == 256


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": None}, "hidden_size null. It must be a whole number from 1 up."),
        ({"num_hidden_layers": "2"}, 'num_hidden_layers "2"'),
        ({"vocab_size": 0}, "vocab_size 0"),
        ({"num_attention_heads": True}, "num_attention_heads true"),
        ({"rms_norm_eps": -1}, "rms_norm_eps -1. It must be a number above 0."),
        ({"tie_word_embeddings": "no"}, 'tie_word_embeddings "no". It must be true or false.'),
        ({"num_key_value_heads": 3}, "4 heads can't share 3 kv_heads evenly"),
        ({"head_dim": 31}, "head_dim is 31, rotary embedding needs an even one"),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 4}},
            "must be above 0 and below",
        ),
        ({"rope_parameters": {"rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4}}, "factor null"),
    ],
)
def test_a_value_that_cannot_be_meant(copy: Copy, changes: dict[str, Any], said: str) -> None:
    folder = copy("llama")
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, InvalidInput, "config.json", said)


def test_a_pickle_is_never_read(copy: Copy) -> None:
    folder = copy("llama")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"whatever")
    refused(
        folder, InvalidInput, "has no safetensors", "pytorch_model.bin: a pickle can run any code", "save_pretrained writes safetensors"
    )


def test_no_weights(copy: Copy) -> None:
    folder = copy("llama")
    (folder / "model.safetensors").unlink()
    refused(folder, InvalidInput, "has neither model.safetensors nor model.safetensors.index.json", "config.json", "Download")


def test_shards_without_their_index(copy: Copy) -> None:
    folder = copy("shards")
    (folder / "model.safetensors.index.json").unlink()
    refused(folder, InvalidInput, "model-00001-of-0", "and no index")


def test_a_missing_shard(copy: Copy) -> None:
    folder = copy("shards")
    shards = sorted(folder.glob("*.safetensors"))
    shards[1].unlink()
    refused(
        folder,
        InvalidInput,
        f"index.json names {shards[1].name}, which",
        f"{len(shards) - 1} of its {len(shards)} files are there",
        "Download",
    )


def index(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    edit(content["weight_map"])
    path.write_text(json.dumps(content))


def test_an_index_that_names_a_tensor_which_no_file_has(copy: Copy) -> None:
    folder = copy("shards")
    index(folder, lambda placed: placed.update({"model.more.weight": placed["model.norm.weight"]}))
    refused(folder, InvalidInput, "index.json places model.more.weight in model-0", "which doesn't have it")


def test_a_shard_with_a_tensor_that_the_index_does_not_place_there(copy: Copy) -> None:
    folder = copy("shards")
    index(folder, lambda placed: placed.pop("model.norm.weight"))
    refused(folder, InvalidInput, "has model.norm.weight, which model.safetensors.index.json doesn't place there")


@pytest.mark.parametrize("file", ["../other/model.safetensors", "/etc/passwd", "model.bin"])
def test_an_index_that_points_out_of_the_folder_or_to_a_pickle(copy: Copy, file: str) -> None:
    folder = copy("shards")
    index(folder, lambda placed: placed.update({"model.norm.weight": file}))
    refused(folder, InvalidInput, f"names {file}", "must be a .safetensors file of the same folder")


def test_an_index_without_a_map(copy: Copy) -> None:
    folder = copy("shards")
    (folder / "model.safetensors.index.json").write_text("{}")
    refused(folder, InvalidInput, "has no weight_map")


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_file_cut_short(copy: Copy, kept: int) -> None:
    path = copy("llama") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    refused(path.parent, InvalidInput, "model.safetensors is no whole safetensors file", "It may be cut short: download it again")


def test_a_pointer_of_git_lfs(copy: Copy) -> None:
    path = copy("llama") / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refused(path.parent, InvalidInput, "git lfs pull")


def test_an_untied_head_that_is_missing(copy: Copy) -> None:
    folder = copy("tied")
    edit_config(folder, tie_word_embeddings=False)
    refused(folder, InvalidInput, "have no lm_head.weight", "doesn't tie the head", "set tie_word_embeddings to true")


def test_missing_tensors_are_named_three_of_them(copy: Copy) -> None:
    folder = copy("llama")
    edit_config(folder, num_hidden_layers=3)
    refused(folder, InvalidInput, "lack model.layers.2.input_layernorm.weight, ", " and 6 more", "They have 21 tensors")


def test_an_unexpected_tensor(copy: Copy) -> None:
    folder = copy("qwen2")
    edit_config(folder, architectures=["LlamaForCausalLM"])
    refused(folder, InvalidInput, "self_attn.k_proj.bias", "and 3 more, which its config.json has no place for", "2 layers, no bias")


def test_a_shape_that_does_not_match(copy: Copy) -> None:
    folder = copy("llama")
    edit_config(folder, num_key_value_heads=4)
    refused(folder, InvalidInput, "k_proj.weight in ", "has shape (64, 64)", "asks for (128, 64)")


def test_a_tied_head_of_another_shape(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy("tied")
    monkeypatch.undo()
    edit_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": torch.ones(130, 64)}))
    refused(folder, InvalidInput, "lm_head.weight in ", "has shape (130, 64)", "asks for (131, 64)")


def test_a_dtype_that_is_no_float(copy: Copy) -> None:
    folder = copy("llama")
    edit_tensors(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}))
    refused(folder, Unsupported, "model.norm.weight in ", "has dtype I8", "F32, BF16, F16")


def test_a_model_that_does_not_fit_in_memory(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device_type: 1 << 10)
    with pytest.raises(Unsupported, match=r"the weights of preset llama in float32 need 0\.00 GiB, which doesn't fit on cpu"):
        find(copy("llama")).load()


def test_without_safetensors_the_extra_is_named(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy("llama")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    refused(folder, Unsupported, "pip install 'kernelyard[hf]'")


def test_transformers_4_and_5_say_the_same_in_different_places(copy: Copy) -> None:
    folder = copy("llama")
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    edit_config(folder, rope_parameters={**rope, "rope_theta": 777.0}, dtype="bfloat16")
    five = find(folder)
    assert five.preset.rope_theta == 777.0 and five.preset.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 64) and five.dtype == "bfloat16"
    edit_config(folder, rope_parameters=None, rope_scaling=rope, rope_theta=777.0, dtype=None, torch_dtype="bfloat16")
    four = find(folder)
    assert four.preset == five.preset and four.dtype == "bfloat16"
