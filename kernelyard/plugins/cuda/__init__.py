"""The `cuda` backend: CUDA C++ through nvcc and tvm_ffi, built for the GPU that is here.

`toolkit` finds nvcc and what belongs to it, `probe` says what is missing, `build` compiles by the native room. It does not know how
kernels are timed or chosen. Try it: `kernelyard check vector_add --kernel cuda.stream`.
"""
