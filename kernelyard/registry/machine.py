"""What this machine is and has, found without torch: device identities and the tools that backends need."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kernelyard.errors import UsageError
from kernelyard.registry.answer import YES, Answer, no

if TYPE_CHECKING:
    from kernelyard.registry.spec import DeviceIdentity

DEVICE_TYPES = ("cpu", "cuda")


def installed(package: str) -> bool:
    """Whether a top-level package can be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


@cache
def nvidia_present() -> Answer:
    """Whether an NVIDIA GPU and its driver are here, by the driver library's own count."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return no("no NVIDIA GPU: CUDA_VISIBLE_DEVICES hides them all")
    try:
        return YES if _driver_devices() else no("no NVIDIA GPU: the driver sees none")
    except OSError:
        return no("no NVIDIA GPU: the driver library libcuda.so.1 is not here")


@cache
def cuda_ready() -> Answer:
    """Whether there is an NVIDIA GPU and the installed torch was built for one; read off torch's version file."""
    if not (answer := nvidia_present()):
        return answer
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return no("torch is not installed")
    version = (Path(spec.origin).parent / "version.py").read_text()
    return YES if re.search(r"^cuda\b[^=]*=\s*['\"]", version, re.MULTILINE) else no("the installed torch was built without CUDA")


def _driver_devices() -> int:
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def default_device() -> str:
    """'cuda' where torch can use an NVIDIA GPU, else 'cpu'."""
    return "cuda" if cuda_ready() else "cpu"


def check_device(name: str | None) -> str:
    """A device type from what the user gave, or this machine's own; raises UsageError."""
    if name is None:
        return default_device()
    if name not in DEVICE_TYPES:
        raise UsageError(f"no device '{name}'.", exists=f"There are: {', '.join(DEVICE_TYPES)}.")
    if name == "cuda" and not (answer := cuda_ready()):
        raise UsageError(f"device 'cuda' can't be used: {answer.reason}.", do="Use --device cpu.")
    return name


@cache
def identity(device_type: str) -> DeviceIdentity:
    """The device of this type that calls run on: the current GPU, or the host CPU."""
    makers: dict[str, Callable[[], DeviceIdentity]] = {"cpu": _cpu_identity, "cuda": _cuda_identity}
    return makers[device_type]()


def _cpu_identity() -> DeviceIdentity:
    name, flags = _cpu_model()
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    instructions = hashlib.sha256(flags.encode()).hexdigest()[:8]
    from kernelyard.registry.spec import DeviceIdentity

    return DeviceIdentity("cpu", name, f"{platform.machine()}-{instructions}-{threads}t", platform.system(), f"cpu-{platform.node()}")


def _cpu_model() -> tuple[str, str]:
    """Model name and instruction-set flags."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return _sysctl_model(), platform.machine()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = fields.get("model name") or fields.get("Model") or platform.processor() or platform.machine()
    return name, fields.get("flags") or fields.get("Features") or platform.machine()


def _sysctl_model() -> str:
    try:
        out = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return platform.processor() or platform.machine()
    return out.stdout.strip()


def _cuda_identity() -> DeviceIdentity:
    """Asked of the driver, so that CUDA_VISIBLE_DEVICES is respected and no context is made."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuInit(0)
    device, major, minor, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name, uuid = ctypes.create_string_buffer(128), ctypes.create_string_buffer(16)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetName(name, 128, device)
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)  # ..._MINOR
    driver.cuDeviceGetUuid(uuid, device)
    driver.cuDriverGetVersion(ctypes.byref(version))
    capability, installed_driver = f"sm_{major.value}{minor.value}", _driver_version(version.value)
    from kernelyard.registry.spec import DeviceIdentity

    return DeviceIdentity("cuda", name.value.decode(), capability, installed_driver, f"cuda-{uuid.raw.hex()}")


def _driver_version(cuda_version: int) -> str:
    """The driver's own version where the kernel tells it, else the CUDA version it serves."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return f"cuda-{cuda_version // 1000}.{cuda_version % 1000 // 10}"
    return next((word for word in words if word[0].isdigit() and "." in word), f"cuda-{cuda_version}")
