"""Classify graphs with DIFFormerConv and layers of PyTorch Geometric."""

import torch
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool
from torch_geometric.utils import to_undirected

from difformer import DIFFormerConv

torch.manual_seed(0)
ring = to_undirected(torch.stack([torch.arange(8), torch.arange(1, 9) % 8]))
star = to_undirected(torch.stack([torch.zeros(7, dtype=torch.long), torch.arange(1, 8)]))
kinds = [(ring, 0), (star, 1)] * 32
graphs = [Data(x=1 + 0.1 * torch.rand(8, 4), edge_index=edges, y=label) for edges, label in kinds]

local, everyone, head = GCNConv(4, 32), DIFFormerConv(32, 32), torch.nn.Linear(32, 2)
optimizer = torch.optim.Adam([*local.parameters(), *everyone.parameters(), *head.parameters()])
hits: list[float] = []
for _ in range(15):
    for data in DataLoader(graphs, batch_size=16, shuffle=True):
        # `batch` keeps the graphs apart, in pooling and in the diffusion.
        x = everyone(F.relu(local(data.x, data.edge_index)), data.edge_index, batch=data.batch)
        out = head(global_mean_pool(x, data.batch))
        optimizer.zero_grad()
        F.cross_entropy(out, data.y).backward()
        optimizer.step()
        hits.append(float((out.argmax(-1) == data.y).float().mean()))
assert min(hits[-4:]) > 0.9, hits
