"""Mini-batches with PyTorch Geometric's RandomNodeLoader: each part of the rows is a batch.

Attention is among the rows of a part, and edges within it; evaluation takes all rows at once.
"""

import torch
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader

import difformer
from difformer.data.neighbours import nearest_neighbours

torch.manual_seed(0)
digits = difformer.load_dataset("digits")
split = digits.split("random:0")
edges = nearest_neighbours(digits.x, 7)
edges = torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1)
mask = torch.zeros(digits.num_rows, dtype=torch.bool)
mask[split.train] = True
data = Data(x=digits.x, y=digits.y, edge_index=edges, train_mask=mask)

model = difformer.DIFFormer(digits.num_features, 64, digits.num_outputs, dropout=0.3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = RandomNodeLoader(data, num_parts=3, shuffle=True)
for _ in range(20):
    model.train()
    for part in loader:
        if not part.train_mask.any():
            continue
        optimizer.zero_grad()
        out = model(part.x, part.edge_index)
        functional.cross_entropy(out[part.train_mask], part.y[part.train_mask]).backward()
        optimizer.step()

model.eval()
with torch.no_grad():
    hits = model(data.x, data.edge_index).argmax(-1) == data.y
accuracy = float(hits[split.test].float().mean())
print(f"test accuracy {accuracy:.3f}")
assert accuracy > 0.85
