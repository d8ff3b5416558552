"""The decoder: a Llama-style model whose hot ops go through the registry, and what a swapped kernel does to it.

It knows the registry's ops by name and nothing of the kernels behind them; it does not tune, verify or store.
Read `presets`, `model` (the whole model in one file), `cache`, `ops` (who serves the model's ops), `engines`
(eager, compiled, CUDA graph), `generate`, then `profile`, `inside` and `amdahl`; `checkpoint` for weights that are not random.

Models of transformers instead: `swap` (what people call), `swap_layers` (which op fits which layer), `swap_forwards`, `swap_attention`
and `swap_masks`; transformers itself is never imported.

    from kernelyard.decoder.profile import profile
    print(profile("tiny", "cpu").to_json())

Nothing here imports torch until a module that computes is imported; `presets` and `amdahl` never do.
"""
