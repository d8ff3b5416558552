"""What the plugins declare: listed without what they depend on, refused with reasons, never served by priority."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.matrix import ABSENT, GIVEN
from kernelyard.registry.op import Point
from kernelyard.registry.registry import current
from kernelyard.registry.spec import YES, Answer, Scalar, TensorSpec, Workload, no

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PACKAGES = {
    "liger": ("liger_kernel", "liger-kernel", "0.8.5"),
    "quack": ("quack", "quack-kernels", "0.6.5"),
    "fa4": ("flash_attn", "flash-attn-4", "4.0.0b36"),
}
Peers = Mapping[str, Kernel]


def test_they_are_listed_and_say_what_is_missing(home: Path):
    """`list` neither fails nor imports torch where nothing of theirs is installed."""
    folders = [str(EXAMPLES / f"kernelyard-{name}") for name in PACKAGES]
    path = os.pathsep.join(filter(None, (*folders, os.environ.get("PYTHONPATH"))))
    plugins = ",".join(f"kernelyard_{name}:plugin" for name in PACKAGES)
    environment = {**os.environ, "PYTHONPATH": path, "KERNELYARD_EXTRA_PLUGINS": plugins}
    command = [sys.executable, "-m", "kernelyard", "list", "--json", "--device", "cpu"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    listed = [kernel for kernel in json.loads(ran.stdout)["kernels"] if kernel["backend"] in PACKAGES]
    assert {kernel["name"].partition(".")[0] for kernel in listed} == set(PACKAGES)
    assert not any(kernel["available"] for kernel in listed)


def test_every_kernel_is_named_after_its_op_and_waits_to_be_chosen(peers: Peers):
    ops = {op: {name for name, kernel in peers.items() if kernel.op == op} for op in {kernel.op for kernel in peers.values()}}
    assert all(name.endswith(f".{op}") for op, names in ops.items() for name in names)
    assert set(ops) <= set(current().ops)
    assert all(kernel.priority < 0 for kernel in peers.values())
    assert ops["swiglu"] == {"liger.swiglu"}
    assert ops["rmsnorm"] == {"liger.rmsnorm", "quack.rmsnorm"}
    assert ops["matmul"] == {"quack.matmul"}
    assert ops["attention"] == {"fa4.attention"}


def workload(op: str, dims: tuple[int, ...], dtype: str, layout: str, statics: tuple[tuple[str, Scalar], ...]) -> Workload:
    return current().op(op).workload(Point(dims, dtype, layout, statics), "cuda")


CASES = (
    ("liger.rmsnorm", (7, 129), "bfloat16", "contiguous", (), ""),
    ("liger.rmsnorm", (7, 129), "bfloat16", "row_strided", (("casting", "llama"), ("offset", 1.0)), ""),
    ("liger.rmsnorm", (7, 129), "float32", "transposed", (), "last dimension of x"),
    ("liger.rmsnorm", (2, 65537), "float32", "contiguous", (), "the most is 65536"),
    ("liger.add_rmsnorm", (7, 129), "float32", "contiguous", (("w", ABSENT),), "needs w"),
    ("liger.add_rmsnorm_backward", (7, 129), "float32", "contiguous", (("dr", ABSENT),), "needs dr"),
    ("liger.add_rmsnorm_backward", (7, 129), "float32", "contiguous", (), ""),
    ("liger.softmax", (7, 129), "float32", "contiguous", (), "-inf becomes NaN"),
    ("liger.softmax_backward", (7, 129), "float32", "transposed", (), ""),
    ("liger.softmax_backward", (7, 129), "float16", "contiguous", (), "before they are summed"),
    ("liger.swiglu", (7, 129), "float32", "contiguous", (), ""),
    ("liger.swiglu", (7, 129), "bfloat16", "contiguous", (("b", ABSENT),), "rounds once"),
    ("liger.swiglu_backward", (7, 129), "bfloat16", "contiguous", (("b", ABSENT),), ""),
    ("liger.swiglu_backward", (7, 129), "bfloat16", "row_strided", (), "must be contiguous"),
    ("liger.rope", (7, 3, 64), "bfloat16", "contiguous", (("inverse", True),), ""),
    ("liger.rope", (7, 3, 64), "bfloat16", "contiguous", (("style", "interleaved"),), "style is 'interleaved'"),
    ("quack.rmsnorm", (1000, 4096), "bfloat16", "contiguous", (("offset", 1.0),), ""),
    ("quack.rmsnorm", (7, 1002), "bfloat16", "contiguous", (), ""),
    ("quack.rmsnorm", (1000, 4095), "bfloat16", "contiguous", (), "8190 bytes"),
    ("quack.rmsnorm", (7, 129), "float32", "offset", (), ""),
    ("quack.rmsnorm", (7, 1024), "float32", "offset", (), "x must start at a multiple of 16 bytes"),
    ("quack.rmsnorm", (7, 1024), "float32", "row_strided", (), ""),
    ("quack.rmsnorm", (7, 1024), "float32", "contiguous", (("casting", "llama"),), "no casting 'llama'"),
    ("quack.rmsnorm_backward", (7, 1024), "float32", "contiguous", (("casting", "llama"),), ""),
    ("quack.add_rmsnorm", (7, 1024), "bfloat16", "contiguous", (("w", ABSENT),), ""),
    ("quack.softmax", (7, 1024), "bfloat16", "contiguous", (), "-inf becomes NaN"),
    ("quack.softmax_backward", (7, 1024), "bfloat16", "contiguous", (), ""),
    ("quack.softmax_backward", (7, 1002), "bfloat16", "contiguous", (), "multiple of 16"),
    ("quack.rope", (7, 3, 64), "bfloat16", "contiguous", (("style", "interleaved"),), ""),
    ("quack.rope", (7, 3, 130), "bfloat16", "contiguous", (), "multiple of 8"),
    ("quack.matmul", (1, 4096, 4096, 4096), "bfloat16", "contiguous", (), ""),
    ("quack.matmul", (1, 1, 4096, 4096), "bfloat16", "linear", (), ""),
    ("quack.matmul", (1, 127, 4096, 4096), "float16", "contiguous", (("bias", GIVEN), ("residual", GIVEN)), ""),
    ("quack.matmul", (3, 16, 128, 64), "bfloat16", "both_transposed", (), ""),
    ("quack.matmul", (1, 17, 128, 64), "bfloat16", "a_transposed", (), "the strides of a are (1, 17)"),
    ("quack.matmul", (1, 16, 128, 64), "bfloat16", "gapped", (), "the strides of a are (67, 1)"),
    ("quack.matmul", (1, 16, 128, 64), "bfloat16", "offset", (), "a must start at a multiple of 16 bytes"),
    ("quack.matmul", (1, 4097, 4095, 4096), "bfloat16", "contiguous", (), "n is 4095"),
    ("quack.matmul", (1, 4096, 4096, 4095), "bfloat16", "linear", (), "the strides of a are (4095, 1)"),
    ("quack.matmul", (1, 16, 64, 0), "bfloat16", "contiguous", (), "k is 0, the least is 1"),
    ("quack.matmul", (1, 16, 64, 64), "float32", "contiguous", (("precision", "tf32"),), "not float32"),
    ("quack.matmul", (1, 16, 64, 64), "bfloat16", "contiguous", (("activation", "gelu"), ("bias", GIVEN)), ""),
    ("quack.matmul", (1, 16, 64, 64), "bfloat16", "contiguous", (("activation", "silu"), ("residual", GIVEN)), "adds it before"),
    ("quack.matmul", (1, 16, 64, 64), "bfloat16", "contiguous", (("activation", "relu"),), "relu of NaN is 0"),
    ("quack.matmul", (1, 16, 64, 64), "bfloat16", "contiguous", (("activation", "gelu_tanh"),), "tanh.approx.f32"),
    ("fa4.attention", (2, 32, 8, 4096, 4096, 128), "bfloat16", "contiguous", (("causal", True),), ""),
    ("fa4.attention", (2, 5, 1, 17, 70, 72), "float16", "bshd", (("return_lse", True),), ""),
    ("fa4.attention", (1, 2, 1, 300, 7, 64), "bfloat16", "contiguous", (), ""),
    ("fa4.attention", (1, 2, 1, 300, 7, 64), "bfloat16", "contiguous", (("causal", True),), "300 queries and 7 keys"),
    ("fa4.attention", (1, 2, 1, 65, 65, 64), "float32", "contiguous", (), "not float32"),
    ("fa4.attention", (1, 2, 1, 65, 65, 68), "bfloat16", "contiguous", (), "head_dim is 68"),
    ("fa4.attention", (1, 2, 1, 65, 65, 264), "bfloat16", "contiguous", (), "the most is 256"),
    ("fa4.attention", (1, 2, 1, 65, 65, 64), "bfloat16", "offset", (), "q must start at a multiple of 16 bytes"),
    ("fa4.attention", (2, 2, 1, 65, 0, 64), "bfloat16", "contiguous", (), "kv_len is 0, the least is 1"),
    ("fa4.attention_decode", (16, 32, 8, 1, 4096, 128, 0), "bfloat16", "contiguous", (), "a NaN past a length"),
    ("fa4.attention_decode", (16, 32, 8, 1, 4096, 128, 64), "bfloat16", "contiguous", (), "a paged cache"),
    ("fa4.attention_decode", (16, 32, 8, 1, 4096, 132, 0), "bfloat16", "contiguous", (), "head_dim is 132"),
)


@pytest.mark.parametrize(("name", "dims", "dtype", "layout", "statics", "reason"), CASES)
def test_what_fits_and_why_the_rest_does_not(
    peers: Peers, name: str, dims: tuple[int, ...], dtype: str, layout: str, statics: tuple[tuple[str, Scalar], ...], reason: str
):
    answer = peers[name].support.fits(workload(peers[name].op, dims, dtype, layout, statics))
    assert bool(answer) == (not reason), answer.reason
    assert reason in answer.reason


def test_rows_that_leading_dimensions_do_not_share_are_refused(peers: Peers):
    x, w = TensorSpec((2, 3, 64), "float32", (1000, 64, 1)), TensorSpec((64,), "float32")
    apart = Workload("rmsnorm", (("x", x), ("w", w)), (("offset", 0.0), ("casting", "fp32")), "cuda", (("rows", 6), ("cols", 64)))
    for name in ("liger.rmsnorm", "quack.rmsnorm"):
        assert "can't be viewed as (rows, cols)" in peers[name].support.fits(apart).reason


def test_a_weight_that_quack_would_want_at_32_bytes_is_refused(peers: Peers):
    rows, w = TensorSpec((7, 64), "bfloat16"), TensorSpec((64,), "float32")
    statics, dims = (("offset", 0.0), ("casting", "fp32")), (("rows", 7), ("cols", 64))
    backward = Workload("rmsnorm_backward", (("dy", rows), ("x", rows), ("w", w)), statics, "cuda", dims)
    assert "32 bytes" in peers["quack.rmsnorm_backward"].support.fits(backward).reason
    assert peers["quack.rmsnorm"].support.fits(Workload("rmsnorm", (("x", rows), ("w", w)), statics, "cuda", dims))


def test_a_bias_or_residual_that_starts_anywhere_is_refused(peers: Peers):
    half = {"a": TensorSpec((16, 64), "bfloat16"), "b": TensorSpec((64, 64), "bfloat16")}
    given = {"bias": TensorSpec((64,), "bfloat16"), "residual": TensorSpec((16, 64), "bfloat16")}
    statics, dims = (("activation", "none"), ("precision", "ieee")), (("batch", 1), ("m", 16), ("n", 64), ("k", 64))

    def answer(**changed: TensorSpec) -> Answer:
        return peers["quack.matmul"].support.fits(Workload("matmul", (*half.items(), *{**given, **changed}.items()), statics, "cuda", dims))

    assert answer()
    assert "bias must start" in answer(bias=TensorSpec((64,), "bfloat16", aligned=False)).reason
    assert "strides of bias are (2,)" in answer(bias=TensorSpec((64,), "bfloat16", (2,))).reason
    assert "strides of residual are (0, 1)" in answer(residual=TensorSpec((16, 64), "bfloat16", (0, 1))).reason
    assert "residual has 3" in answer(residual=TensorSpec((2, 8, 64), "bfloat16", (1024, 64, 1))).reason


def test_heads_that_are_repeated_or_start_anywhere_are_not_fa4s(peers: Peers):
    q = TensorSpec((1, 2, 65, 64), "bfloat16")
    statics = (("causal", False), ("return_lse", False))
    dims = (("batch", 1), ("q_heads", 2), ("kv_heads", 2), ("q_len", 65), ("kv_len", 65), ("head_dim", 64))

    def answer(k: TensorSpec) -> Answer:
        return peers["fa4.attention"].support.fits(Workload("attention", (("q", q), ("k", k), ("v", q)), statics, "cuda", dims))

    assert answer(TensorSpec((1, 2, 65, 64), "bfloat16", (1, 72, 144, 1)))
    assert "strides of k" in answer(TensorSpec((1, 2, 65, 64), "bfloat16", (9999, 0, 64, 1))).reason
    assert "strides of k" in answer(TensorSpec((1, 2, 65, 64), "bfloat16", (9999, 68, 136, 1))).reason


def test_only_tiles_that_quack_itself_tries_are_tuned(peers: Peers):
    space, product = peers["quack.matmul"].space, workload("matmul", (1, 64, 64, 64), "bfloat16", "contiguous", ())
    assert space.allows(space.default_for(product), product)
    assert len(list(space.configs(product))) == 4 * (6 + 5)
    assert not space.allows({**space.default_for(product), "tile_n": 256}, product)


def test_angles_in_16_bits_are_not_ligers(peers: Peers):
    table = TensorSpec((1, 32), "bfloat16")
    tensors = (("x", TensorSpec((7, 3, 64), "bfloat16")), ("cos", table), ("sin", table), ("positions", TensorSpec((7,), "int64")))
    narrow = Workload("rope", tensors, (("style", "half"), ("inverse", False)), "cuda", (("tokens", 7), ("heads", 3), ("dim", 64)))
    assert "in the dtype of cos" in peers["liger.rope"].support.fits(narrow).reason
    assert peers["quack.rope"].support.fits(narrow)


# Whether they can run here ----------------------------------------------------------------------------

Installed = Callable[[str, str], None]


@pytest.fixture
def probed(peers: Peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """`probed(plugin, version, gpu=..., device=...)` asks a probe on a machine with that version, or with nothing of it, installed."""

    def ask(plugin: str, version: str | None, gpu: Answer = YES, device: str = "cuda", metadata: bool = True) -> Answer:
        module, distribution, _ = PACKAGES[plugin]
        probe: Any = load(f"kernelyard_{plugin}.probe:probe")
        there = {module, "triton", "quack", "cutlass", "tvm_ffi"} if version else set()
        monkeypatch.setattr(f"kernelyard_{plugin}.probe.installed", lambda name: name in there)
        monkeypatch.setattr(f"kernelyard_{plugin}.probe.cuda_ready", lambda: gpu)
        if version and metadata:
            info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
            monkeypatch.syspath_prepend(tmp_path)
        answer = probe(device, "run")
        assert isinstance(answer, Answer)
        return answer

    return ask


@pytest.mark.parametrize("plugin", PACKAGES)
def test_without_the_package_the_reason_is_how_to_install_it(probed: Callable[..., Answer], plugin: str):
    _, distribution, version = PACKAGES[plugin]
    reason = probed(plugin, None).reason
    assert "is not installed: pip install" in reason and distribution in reason and version in reason


@pytest.mark.parametrize("plugin", PACKAGES)
def test_another_version_is_refused_with_both_named(probed: Callable[..., Answer], plugin: str):
    reason = probed(plugin, "0.1.2").reason
    assert "0.1.2" in reason and PACKAGES[plugin][2] in reason


@pytest.mark.parametrize("plugin", PACKAGES)
def test_a_package_without_metadata_is_no_version_at_all(probed: Callable[..., Answer], plugin: str):
    assert "metadata" in probed(plugin, "0.0.0", metadata=False).reason


@pytest.mark.parametrize("plugin", PACKAGES)
def test_without_a_gpu_the_reason_is_the_drivers(probed: Callable[..., Answer], plugin: str):
    assert probed(plugin, PACKAGES[plugin][2], gpu=no("no NVIDIA GPU: none")).reason == "no NVIDIA GPU: none"


@pytest.mark.parametrize("plugin", PACKAGES)
def test_a_cpu_is_refused_where_there_is_a_gpu(probed: Callable[..., Answer], plugin: str):
    assert "not on cpu" in probed(plugin, PACKAGES[plugin][2], device="cpu").reason


def test_liger_serves_with_its_version_and_a_gpu(probed: Callable[..., Answer]):
    assert probed("liger", "0.8.5")


@pytest.mark.parametrize(("capability", "can"), [("sm_80", False), ("sm_90", True), ("sm_100", True)])
def test_quack_serves_from_hopper_on(probed: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, capability: str, can: bool):
    load("kernelyard_quack.probe:probe")
    device = type("Device", (), {"capability": capability})
    monkeypatch.setattr("kernelyard_quack.probe.identity", lambda kind: device)
    answer = probed("quack", "0.6.5")
    assert bool(answer) is can
    assert can or "sm_80" in answer.reason


@pytest.mark.parametrize(("capability", "can"), [("sm_89", False), ("sm_90", True), ("sm_100", False)])
def test_fa4_serves_on_hopper(probed: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, capability: str, can: bool):
    load("kernelyard_fa4.probe:probe")
    device = type("Device", (), {"capability": capability})
    monkeypatch.setattr("kernelyard_fa4.probe.identity", lambda kind: device)
    answer = probed("fa4", "4.0.0b36")
    assert bool(answer) is can
    assert can or capability in answer.reason


@pytest.mark.parametrize("plugin", PACKAGES)
def test_they_know_only_the_registry(plugin: str):
    lines = [
        line
        for path in (EXAMPLES / f"kernelyard-{plugin}" / f"kernelyard_{plugin}").glob("*.py")
        for line in path.read_text().splitlines()
        if line.startswith(("from kernelyard.", "import kernelyard."))
    ]
    assert lines
    assert [line for line in lines if not line.startswith("from kernelyard.registry.")] == []
