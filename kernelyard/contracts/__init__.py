"""The contracts: one op a file, each with its meaning, inputs, tolerances, costs and frozen shapes.

A contract knows no kernel and no backend. `plugin` declares them all through the same door as any other plugin.
"""

from __future__ import annotations

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.contracts.softmax import SOFTMAX
from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.registry.discovery import Plugin

plugin = Plugin(name="contracts", ops=(VECTOR_ADD, SOFTMAX, RMSNORM))
