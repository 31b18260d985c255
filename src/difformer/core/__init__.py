"""Tensors in, tensors out: diffusivities, contexts, graphs, diffusion and energy."""

from difformer.core.diffusion import DescentReport, Diffusion, relu_proximal
from difformer.core.diffusivity import KERNELS, Diffusivity, make_diffusivity
from difformer.core.energy import descent_step, energy
from difformer.core.graph import Graph

__all__ = [
    "KERNELS",
    "DescentReport",
    "Diffusion",
    "Diffusivity",
    "Graph",
    "descent_step",
    "energy",
    "make_diffusivity",
    "relu_proximal",
]
