"""Building and loading native code: what the cpp and the cuda backend share.

It knows sources, flags and one shared object a content hash. It does not know which flags a machine wants (that is
each backend's toolchain), nor what a kernel computes. Read `build`, then `sources`, `tools`, `launch`.
"""
