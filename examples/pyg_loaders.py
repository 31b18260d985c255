"""Train in mini-batches with PyTorch Geometric's loaders, and evaluate on all rows."""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader, RandomNodeLoader
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

import difformer

torch.manual_seed(0)
cora, split = difformer.load_dataset("cora"), difformer.load_dataset("cora").split("public")
train = torch.isin(torch.arange(cora.num_rows), split.train)
data = Data(x=cora.x.to_dense(), y=cora.y, edge_index=cora.edge_index, train_mask=train)
loaders: list[DataLoader[Data]] = [RandomNodeLoader(data, 4, shuffle=True)]
if WITH_PYG_LIB or WITH_TORCH_SPARSE:  # without one of them there is no NeighborLoader
    loaders.append(NeighborLoader(data, [10, 10], input_nodes=train, batch_size=70))
for loader in loaders:
    model = difformer.DIFFormer(cora.num_features, 64, cora.num_outputs, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=0.01)
    for batch in (batch for _ in range(30) for batch in loader if batch.train_mask.any()):
        out = model.train()(batch.x, batch.edge_index)
        optimizer.zero_grad()
        F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask]).backward()
        optimizer.step()
    hits = model.eval()(data.x, data.edge_index).argmax(-1) == data.y
    assert hits[split.test].float().mean() > 0.65, type(loader).__name__
