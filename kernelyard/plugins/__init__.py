"""The built-in plugins: a folder is a backend and its kernels, one file for each op.

They know the registry's declarations and nothing of contracts, tuning or storage, and a folder does not know another
(`native` is what the two compiled backends share). Nothing imports them by name: they are found as entry points.
See them with `kernelyard plugins list`.
"""
