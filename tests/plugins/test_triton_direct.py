"""The C++ launcher hands the driver what the code was compiled for: seen with a driver of the test's own, which tells what it is given."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelyard.plugins.native.tools import cxx
from kernelyard.plugins.triton_jit.probe import probe

pytestmark = pytest.mark.skipif(not probe("cpu", "check"), reason=probe("cpu", "check").reason)

DRIVER = r"""
#include <cuda.h>

#include <cstdint>
#include <cstdio>

extern "C" CUresult cuCtxGetCurrent(CUcontext* context) {
  static intptr_t asked = 0;
  *context = reinterpret_cast<CUcontext>(asked++ < 3 ? 1 : 2);  // another one from the fourth time on
  return CUDA_SUCCESS;
}
extern "C" CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "in the driver's words";
  return CUDA_SUCCESS;
}
extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t n, void* at, const cuuint64_t* extents,
                                           const cuuint64_t* steps, const cuuint32_t* block, const cuuint32_t* ones, CUtensorMapInterleave,
                                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  std::printf("map of %u at %lu extents %lu %lu step %lu block %u %u every %u %u swizzle %d type %d\n", n, reinterpret_cast<uintptr_t>(at),
              extents[0], extents[1], steps[0], block[0], block[1], ones[0], ones[1], swizzle, type);
  *reinterpret_cast<uint64_t*>(map) = 77;
  return extents[0] == 13 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
extern "C" CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** p, void**) {
  if (reinterpret_cast<intptr_t>(f) == 13) return CUDA_ERROR_INVALID_VALUE;
  if (reinterpret_cast<intptr_t>(f) == 22) {
    std::printf("map %lu sizes %d %d strides %ld %ld i %d\n", *static_cast<uint64_t*>(p[0]), *static_cast<int32_t*>(p[1]),
                *static_cast<int32_t*>(p[2]), *static_cast<int64_t*>(p[3]), *static_cast<int64_t*>(p[4]), *static_cast<int32_t*>(p[5]));
    std::fflush(stdout);
    return CUDA_SUCCESS;
  }
  std::printf("function %ld grid %u %u %u block %u shared %u ", reinterpret_cast<intptr_t>(f), c->gridDimX, c->gridDimY, c->gridDimZ,
              c->blockDimX, c->sharedMemBytes);
  std::printf("early %d ", c->numAttrs ? c->attrs[0].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION : 0);
  std::printf("at %lu %lu i %d l %ld f %g b %d hidden %p\n", *static_cast<uintptr_t*>(p[0]), *static_cast<uintptr_t*>(p[1]),
              *static_cast<int32_t*>(p[2]), *static_cast<int64_t*>(p[3]), *static_cast<float*>(p[4]), *static_cast<int8_t*>(p[5]),
              *static_cast<void**>(p[6]));
  std::fflush(stdout);
  return CUDA_SUCCESS;
}
"""
START = """
from pathlib import Path
import torch
from kernelyard.plugins.native.build import build_native
from kernelyard.plugins.triton_jit import direct

bound = build_native(direct.SOURCE, Path(direct.__file__).parent, "triton.launcher", direct.recipe())["bound"]
x = torch.zeros(8)
def make(function, early=True, device=0):
    return bound(function, [3, 2, 1], 128, 4096, early, "pm-ilfb", 1, [], 1, device)
def say(*words):
    print(*words, flush=True)

import json, os, sys, traceback
for line in sys.stdin:
    if not (child := os.fork()):  # each program meets a driver that nobody has called
        try:
            exec(json.loads(line), globals())
        except BaseException:
            say(traceback.format_exc())
        os._exit(0)
    os.waitpid(child, 0)
    say("that was all")
"""
Programs = subprocess.Popen[str]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """A process that runs programs in children of its own, with the driver of this file: it is looked up when a process starts."""
    import triton.backends.nvidia

    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    include = Path(triton.backends.nvidia.__file__).parent / "include"
    command = [*cxx(), "-shared", "-fPIC", f"-I{include}", str(folder / "driver.cpp"), "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, check=True, capture_output=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", START], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate("")


def run(driver: Programs, program: str) -> list[str]:
    """The lines that it printed."""
    assert driver.stdin is not None and driver.stdout is not None
    driver.stdin.write(json.dumps(program) + "\n")
    driver.stdin.flush()
    told = list(itertools.takewhile(lambda line: line != "that was all\n", driver.stdout))
    assert driver.poll() is None and not any("Traceback" in line for line in told), "".join(told)
    return [line.removesuffix("\n") for line in told]


def test_the_driver_gets_grid_threads_addresses_and_numbers(driver: Programs) -> None:
    at, told, launched = run(driver, "say(x.data_ptr()); say(make(21)(x, x[1:], 1, -5, 2**40, 1e-6, True))")
    address = int(at)
    assert told == (
        f"function 21 grid 3 2 1 block 128 shared 4096 early 1 at {address} {address + 4} i -5 l 1099511627776 f 1e-06 b 1 hidden (nil)"
    )
    assert launched == "True"


def test_a_tensor_that_the_code_was_not_compiled_for_is_left_to_another_way(driver: Programs) -> None:
    calls = "say(make(21)(x[1:], x, 1, 0, 0, 0.0, False)); say(make(21, device=1)(x, x, 1, 0, 0, 0.0, False))"
    assert run(driver, calls) == ["False", "False"]


def test_nor_is_it_launched_in_another_context(driver: Programs) -> None:
    *before, after = run(driver, "go = make(21, False)\nfor _ in range(3): say(go(x, x, 1, 0, 0, 0.0, False))")
    assert sum(line == "True" for line in before) == 2 and "early 0" in before[0]
    assert after == "False"


def test_what_the_driver_refuses_is_told_in_its_words(driver: Programs) -> None:
    calls = """
try: make(13)(x, x, 1, 0, 0, 0.0, False)
except RuntimeError as error: say(error)
try: make(21)(x, x)
except TypeError as error: say(error)
"""
    refused, counted = run(driver, calls)
    assert "in the driver's words" in refused
    assert "takes 7 run-time arguments, not 2" in counted


MAPPED = "go = bound(22, [1, 1, 1], 128, 0, False, '2i', 1, [[3, 4, 7, 64, 32]], 1, 0)\n"
"""A kernel with one descriptor of two dimensions: swizzle 3, elements of 4 bytes, type 7, blocks of 64 by 32."""


def test_a_descriptor_becomes_a_map_its_sizes_and_its_strides(driver: Programs) -> None:
    at, mapped, told, launched = run(driver, MAPPED + "say(x.data_ptr()); say(go(x, 100, 40, 48, 1, 9))")
    assert mapped == f"map of 2 at {at} extents 40 100 step 192 block 32 64 every 1 1 swizzle 3 type 7"
    assert told == "map 77 sizes 100 40 strides 48 1 i 9"
    assert launched == "True"


def test_a_descriptor_that_the_driver_refuses_is_told_and_a_misaligned_one_left_to_another_way(driver: Programs) -> None:
    calls = """
try: go(x, 4, 13, 16, 1, 9)
except RuntimeError as error: say(error)
say(go(x[1:], 4, 8, 16, 1, 9))
"""
    _, refused, launched = run(driver, MAPPED + calls)
    assert "a tensor map was refused: in the driver's words" in refused and launched == "False"


def test_a_number_that_outgrows_its_parameter_is_left_to_another_way(driver: Programs) -> None:
    assert run(driver, "say(make(21)(x, x, 1, 2**31, 0, 0.0, False))") == ["False"]
