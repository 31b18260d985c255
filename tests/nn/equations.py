"""A plain transcription of appendix E, with every pair of rows."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from difformer.core.diffusivity import FLOOR


def transcription(model, x, graph=None):
    """The model line by line, with dense n × n matrices; `graph` is Ã."""
    c = model.config
    norm = model.input_norm or nn.Identity()
    first = z = (model.input_activation or nn.Identity())(norm(model.input(x)))
    for layer in model.layers:
        seen = {"state": z, "first": first, "input": x}[c.compare]
        average = 0
        for h in range(c.num_heads):
            v = of_head(layer.value, z, h, c.num_heads)
            p = weights(model, layer, seen, h) @ v
            if graph is not None:
                w = c.graph_weight
                p = p + graph @ v if w is None else (1 - w) * p + w * graph @ v
            average = average + p / c.num_heads
        average = (1 - c.source) * average + c.source * first
        tau = torch.sigmoid(layer.logit_tau) if c.learn_tau else c.tau
        own = z @ layer.own.weight.T + layer.own.bias if c.self_weight else z
        u = tau * average + (1 - tau) * own
        if c.center:
            u = u - u.mean(0)
        if layer.norm is not None:
            u = layer.norm(u)
        u = layer.activation(u) if layer.activation is not None else u
        z = z + u if c.residual else u
    return model.output(z)


def of_head(linear, x, h, heads):
    """One head's part of a linear map; x itself without one."""
    if linear is None:
        return x
    return x @ linear.weight.chunk(heads)[h].T + linear.bias.chunk(heads)[h]


def weights(model, layer, seen, h):
    """Ŝ (n, n) of one head, for what rows are compared by."""
    c, kernel = model.config, layer.kernel
    q, k = (of_head(linear, seen, h, c.num_heads) for linear in (layer.query, layer.key))
    cosine = F.normalize(q, dim=1) @ F.normalize(k, dim=1).T
    if c.qk_norm == "tensor":
        s = 1 + FLOOR + (q / layer.query(seen).norm()) @ (k / layer.key(seen).norm()).T
    elif c.kernel == "simple":
        s = 1 + FLOOR + cosine
    elif c.kernel == "sigmoid":
        s = torch.sigmoid(q @ k.T)
    elif c.kernel == "sharp":
        tuning, t = layer.tuning or model.tuning, sharp_offsets(cosine, kernel)
        scale, shift = (1.0, 0.0) if tuning is None else (tuning.log_scale.exp(), tuning.shift)
        s = torch.sigmoid(kernel.sharpness * scale * (cosine - (t + t.T) / 2 - shift))
    elif c.kernel == "softmax":
        s = torch.exp(q @ k.T / math.sqrt(q.shape[1]))
    elif c.kernel == "gaussian" and c.reach is None:
        s = torch.exp(-torch.cdist(q, k).square() / 2)
    elif c.kernel == "constant":
        s = torch.ones_like(cosine)
    elif c.kernel == "identity":
        s = torch.eye(len(cosine), dtype=cosine.dtype)
    else:  # what these are has tests of its own
        known = None
        if c.kernel == "landmarks":
            known = model.landmarks[: model.num_landmarks]
            known = known if c.compare == "input" else model.embed(known).detach()
            known = of_head(layer.key, known, h, c.num_heads)
        s = kernel.weights(*kernel.prepare(q, k, known))
    return s / s.sum(1, keepdim=True)


@torch.no_grad()
def sharp_offsets(cosine, kernel):
    """Offsets (n, 1) that give each row a mass of `reach`, by plain bisection; n rows at most."""
    reach = min(kernel.reach, (1 - 1e-9) * len(cosine))
    low, high = (torch.full_like(cosine[:, :1], bound) for bound in (-9.0, 9.0))
    for _ in range(100):
        middle = (low + high) / 2
        mass = torch.sigmoid(kernel.sharpness * (cosine - middle)).sum(1, keepdim=True)
        over = mass > reach
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    return low
