"""`profile --checkpoint`: the checkpoint's shape and weights in place of a preset's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from kernelyard.cli import run
from kernelyard.decoder.model import Decoder
from kernelyard.decoder.profile import _model, profile
from kernelyard.decoder.request import request
from kernelyard.errors import UsageError
from kernelyard.measure.interleave import Plan
from tests.decoder.checkpoints import edit_config, qwen2

QUICK = Plan(batches=3, most_batches=3, budget_s=0.1, warm_up_s=0.001, sample_us=100.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "small-qwen2"
    qwen2().save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_checkpoint_is_profiled_under_its_folders_name(folder: Path) -> None:
    lengths = {"prompt_lengths": [4], "context_lengths": [3], "new_tokens": 2}
    report = profile(None, "cpu", checkpoint=folder, ops=["vector_add"], compile=False, plan=QUICK, **lengths)
    assert report.preset == "small-qwen2"
    assert [(row.phase, row.variant) for row in report.rows] == [
        (phase, one) for phase in ("prefill", "decode") for one in ("reference", "swapped")
    ]
    assert all(row.agrees for row in report.rows)


def test_the_weights_are_the_checkpoints_and_not_random_ones(folder: Path) -> None:
    model = _model(request(None, "cpu", checkpoint=folder), torch.float32)
    assert torch.equal(model.embedding, qwen2().model.embed_tokens.weight)
    assert not torch.equal(model.embedding, Decoder(model.preset).embedding)


def test_a_preset_and_a_checkpoint_exclude_each_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--preset", "tiny", "--checkpoint", str(folder)]) == 2
    captured = capsys.readouterr()
    assert "a preset and a checkpoint were given. Give one" in captured.err and captured.out == ""


def test_without_either_the_preset_is_tiny() -> None:
    assert request(None, "cpu").preset.name == "tiny"


def test_a_folder_that_is_no_checkpoint_ends_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--checkpoint", str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err


def test_lengths_beyond_the_checkpoints_context_are_left_out_unless_asked_for(folder: Path, tmp_path: Path) -> None:
    short = shutil.copytree(folder, tmp_path / "short")
    edit_config(short, max_position_embeddings=64)
    lengths = request(None, "cpu", checkpoint=short).lengths
    assert (lengths.prompts, lengths.contexts) == ((16, 64), (16,))  # of (16, 64) each; a context has 4 new tokens
    with pytest.raises(UsageError, match=r"prefill 65 takes 65 positions .* Preset short has 64"):
        request(None, "cpu", checkpoint=short, prompt_lengths=[65])
