"""Tensors in, tensors out: diffusivities, contexts, graphs, diffusion and energy."""
