"""Kernels that break their contract, each in one way; the checker must catch every one and name its fault, on a CPU and on a GPU.

`arithmetic`, `addresses`, `conduct` and `process` hold them; `right` has odd kernels that must pass.
"""
