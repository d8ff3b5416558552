"""One rmsnorm and one space a language, for three tuners: what `beside_tuners.py` has tuned by each.

`cuda.beside`, `triton.beside` and `cpp.beside` are kernels of the op rmsnorm that no distribution declares: the script names
`beside.declared:plugin` in KERNELYARD_EXTRA_PLUGINS. The arithmetic lies in `normalise.cuh`, `normalise.h` and `triton_rmsnorm.py`, which
the other tuners take as they are. It does not know what a tuner is. Read `declared.py` first.
"""
