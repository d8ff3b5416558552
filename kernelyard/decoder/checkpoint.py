"""A Hugging Face checkpoint as a Decoder: a folder with config.json and safetensors, of Llama, Qwen2 or Mistral.

    checkpoint = find("Llama-3.2-1B")               # config, names, shapes and dtypes are checked, nothing is allocated
    model = checkpoint.load("cuda")                 # tensor by tensor, each into its rows of the fused parameters

What the host holds meanwhile is one tensor, whatever the model's size. No pickle is ever read, and nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from kernelyard.decoder.checkpoint_config import dtype_of, preset_of, read_config
from kernelyard.decoder.checkpoint_files import DTYPES, Stored, opened, some, stored
from kernelyard.decoder.checkpoint_names import EMBEDDING, HEAD, LEFT_OUT, Place, places
from kernelyard.decoder.model import Decoder
from kernelyard.decoder.presets import Preset
from kernelyard.errors import InvalidInput, Unsupported


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that fits the decoder: its shape, its dtype, and where each of its tensors is. Made by `find`."""

    folder: Path
    preset: Preset
    dtype: str
    tensors: Mapping[str, Stored] = field(repr=False)

    @torch.no_grad()
    def load(self, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Decoder:
        """The model on a device, in the checkpoint's dtype or another, which its weights are rounded to.

        Raises Unsupported, before allocating, where it doesn't fit in memory; InvalidInput where a file changed since `find`.
        """
        model = Decoder(self.preset, device=device, dtype=dtype or getattr(torch, self.dtype), seed=None)
        parameters = dict(model.named_parameters())
        for place, tensor in self._read(places(self.preset)):
            parameters[place.parameter].narrow(0, place.first, place.shape[0]).copy_(tensor)
        if self.preset.tied and HEAD in self.tensors:
            self._require_one_head(model.embedding)
        return model

    def _read(self, wanted: Mapping[str, Place]) -> Iterator[tuple[Place, Tensor]]:
        """Tensors file by file, in the order that they lie in: a file is read once, forwards."""
        for file in dict.fromkeys(one.file for one in self.tensors.values()):
            with opened(file) as handle:
                for name in handle.offset_keys():
                    if name in wanted:
                        yield wanted[name], handle.get_tensor(name)

    def _require_one_head(self, embedding: Tensor) -> None:
        """Old files may hold a tied head twice. Where the two differ, versions of transformers differ in which they use."""
        [(_, head)] = self._read({HEAD: Place("head", self.tensors[HEAD].shape)})
        if not torch.equal(head.to(embedding), embedding):
            raise InvalidInput(f"{self.folder} has an {HEAD} that is not the embedding, and its config.json says that they are tied.",
                               do="Set tie_word_embeddings to false there if the head is meant, or take it out of the file.")  # fmt: skip


def find(folder: str | Path) -> Checkpoint:
    """A checkpoint whose config, names, shapes and dtypes are what the decoder needs; reads headers alone, and allocates nothing.

    Raises InvalidInput for what is missing, damaged or doesn't match, Unsupported for what the decoder lacks.
    """
    folder = Path(folder)
    config = read_config(folder)
    preset = preset_of(config, _name(folder))
    tensors = stored(folder)
    wanted = places(preset)
    _check_names(preset, wanted, tensors)
    _check_shapes(preset, wanted, tensors)
    for name, one in tensors.items():
        if one.dtype not in DTYPES:
            raise Unsupported(f"{name} in {one.file} has dtype {one.dtype}.", exists=f"The decoder reads: {', '.join(DTYPES)}.")
    dtype = dtype_of(config) or DTYPES[tensors[EMBEDDING].dtype]
    if dtype not in DTYPES.values():
        raise Unsupported(f"config.json of {preset.name} has dtype {dtype}.", exists=f"The decoder has: {', '.join(DTYPES.values())}.")
    return Checkpoint(folder, preset, dtype, tensors)


def _name(folder: Path) -> str:
    """The folder's name; for a snapshot in the Hub's cache, models--ORG--NAME/snapshots/HASH, ORG/NAME."""
    folder = folder.resolve()
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.name


def _check_names(preset: Preset, wanted: Mapping[str, Place], tensors: Mapping[str, Stored]) -> None:
    missing = [name for name in wanted if name not in tensors]
    if missing == [HEAD]:
        raise InvalidInput(f"the files of {preset.name} have no {HEAD}, and its config.json doesn't tie the head.",
                           do="Download what is missing, or set tie_word_embeddings to true there if it is the embedding.")  # fmt: skip
    if missing:
        raise InvalidInput(f"the files of {preset.name} lack {some(missing)}.", exists=f"They have {len(tensors)} tensors.",
                           do="Its config.json may be another checkpoint's: download both again.")  # fmt: skip
    extra = [name for name in tensors if name not in wanted and name != HEAD and not LEFT_OUT.fullmatch(name)]
    if extra:
        raise InvalidInput(f"the files of {preset.name} have {some(extra)}, which its config.json has no place for.",
                           exists=f"It asks for {preset.layers} layers{' with a bias on q, k and v' if preset.qkv_bias else ', no bias'}.",
                           do="It may be another checkpoint's, or the architecture one that the decoder doesn't run.")  # fmt: skip


def _check_shapes(preset: Preset, wanted: Mapping[str, Place], tensors: Mapping[str, Stored]) -> None:
    needed = {name: place.shape for name, place in wanted.items()}
    for name, shape in {HEAD: needed[EMBEDDING], **needed}.items():
        if name in tensors and tensors[name].shape != shape:
            raise InvalidInput(
                f"{name} in {tensors[name].file} has shape {tensors[name].shape}.",
                exists=f"config.json of {preset.name} asks for {shape}.",
                do="They may be of two checkpoints: download both again.",
            )
