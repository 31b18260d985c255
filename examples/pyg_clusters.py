"""Train on clusters of a graph, with PyTorch Geometric's ClusterLoader and pymetis."""

import pymetis
import torch
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData, ClusterLoader
from torch_geometric.utils import to_scipy_sparse_matrix

import difformer


class Clusters(ClusterData):  # its own parts need pyg-lib or torch-sparse
    def _metis(self, edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
        rows = to_scipy_sparse_matrix(edge_index, num_nodes=num_nodes).tocsr()
        return torch.tensor(pymetis.part_graph(self.num_parts, None, rows.indptr, rows.indices)[1])


torch.manual_seed(0)
cora, split = difformer.load_dataset("cora"), difformer.load_dataset("cora").split("public")
known = torch.isin(torch.arange(cora.num_rows), split.train)
data = Data(x=cora.x.to_dense(), y=cora.y, edge_index=cora.edge_index, known=known)
model = difformer.DIFFormer(cora.num_features, 64, cora.num_outputs, dropout=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=0.01)
loader = ClusterLoader(Clusters(data, num_parts=8, log=False), batch_size=2, shuffle=True)
for batch in (batch for _ in range(30) for batch in loader if batch.known.any()):
    out = model(batch.x, batch.edge_index)[batch.known]
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(out, batch.y[batch.known]).backward()
    optimizer.step()
assert (model.eval()(data.x, data.edge_index).argmax(-1) == data.y)[split.test].sum() > 650
