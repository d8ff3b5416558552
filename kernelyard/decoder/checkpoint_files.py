"""The safetensors files of a checkpoint and what their headers say: names, shapes and dtypes, without reading a weight.

One file, model.safetensors, or shards that model.safetensors.index.json lists. Nothing else is opened: a .bin is a pickle, which
can run any code when it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelyard.decoder.checkpoint_json import read_json
from kernelyard.errors import InvalidInput, Unsupported

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""By safetensors' names, what the decoder computes in."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as a file's header has it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """safetensors' handle, which reads (pread) a tensor when it is asked for; raises InvalidInput for a file that is damaged."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise Unsupported("reading a checkpoint needs safetensors, which is not installed.", do="pip install 'kernelyard[hf]'") from error
    try:
        with safe_open(file, framework="pt", device="cpu", backend="pread") as handle:
            yield handle
    except SafetensorError as error:
        do = "Run `git lfs pull`: it is a pointer to the file." if _is_pointer(file) else "It may be cut short: download it again."
        raise InvalidInput(f"{file} is no whole safetensors file.", exists=f"{error}.", do=do) from error
    except OSError as error:
        raise InvalidInput(f"{file} can't be read.", exists=f"{error}.") from error


def stored(folder: Path) -> dict[str, Stored]:
    """Every tensor of a checkpoint by its name. Raises InvalidInput for what is missing, damaged or not as the index has it."""
    if (folder / SINGLE).exists():
        return _header(folder / SINGLE)
    if not (folder / INDEX).exists():
        raise _nothing_to_read(folder)
    placed = _index(folder / INDEX)
    files = sorted(set(placed.values()))
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        exists = f"{len(files) - len(missing)} of its {len(files)} files are there."
        raise InvalidInput(f"{INDEX} names {some(missing)}, which {folder} lacks.", exists=exists, do="Download what is missing.")
    found = dict[str, Stored]()
    for file in files:
        found |= _as_listed(_header(folder / file), file, placed)
    return found


def some(names: list[str]) -> str:
    """The first three of many names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _header(file: Path) -> dict[str, Stored]:
    with opened(file) as handle:
        slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 (no mapping)
        return {name: Stored(file, tuple(one.get_shape()), one.get_dtype()) for name, one in slices.items()}


def _index(path: Path) -> Mapping[str, str]:
    """Which file has which tensor. A name with a folder in it could point anywhere, so it is refused."""
    placed = read_json(path).get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(file, str) for file in placed.values()):
        raise InvalidInput(f"{path} has no weight_map from tensors to files.", do="Download it again.")
    strange = sorted({file for file in placed.values() if Path(file).name != file or not file.endswith(".safetensors")})
    if strange:
        raise InvalidInput(f"{path} names {some(strange)}.", do="Each must be a .safetensors file of the same folder.")
    return placed


def _as_listed(header: dict[str, Stored], file: str, placed: Mapping[str, str]) -> dict[str, Stored]:
    listed = {name for name, where in placed.items() if where == file}
    absent, extra = sorted(listed - header.keys()), sorted(header.keys() - listed)
    if absent:
        raise InvalidInput(f"{INDEX} places {some(absent)} in {file}, which doesn't have it.", do="Download both again.")
    if extra:
        raise InvalidInput(f"{file} has {some(extra)}, which {INDEX} doesn't place there.", do="Download both again.")
    return header


def _nothing_to_read(folder: Path) -> InvalidInput:
    names = sorted(one.name for one in folder.iterdir())
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    if pickles:
        return InvalidInput(
            f"{folder} has no safetensors.",
            exists=f"It has {some(pickles)}: a pickle can run any code when it is loaded, and is never read.",
            do="Load the checkpoint's safetensors, or convert it where you trust it: save_pretrained writes safetensors.",
        )
    weights = [name for name in names if name.endswith(".safetensors")]
    exists = f"It has {some(weights)}, and no index." if weights else f"It has: {some(names) or 'nothing'}."
    return InvalidInput(f"{folder} has neither {SINGLE} nor {INDEX}.", exists=exists, do="Download what is missing.")


def _is_pointer(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(40).startswith(b"version https://git-lfs")
