"""The `cpp` backend and its kernels: C++17 with vectors and OpenMP, built on first use.

It knows how C++ kernels are declared, compiled and called. It does not know how they are checked, timed or chosen.
To see it work: `kernelyard check rmsnorm --kernel cpp.onepass --device cpu`. Read `rmsnorm.cpp` first, then `simd.h` and `rows.h`.
Importing this imports neither torch nor a compiler.
"""
