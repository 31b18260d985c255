"""Use a Data object of PyTorch Geometric with an estimator, and as a file on the command line."""

import subprocess
import sys

import numpy as np
import torch
from torch_geometric.data import Data

import difformer

cora = difformer.load_dataset("cora")
data = Data(x=cora.x.to_dense(), y=cora.y, edge_index=cora.edge_index)
for part in ("train", "val", "test"):
    rows = getattr(cora.split("public"), part)
    data[f"{part}_mask"] = torch.isin(torch.arange(cora.num_rows), rows)

few = np.where(data.train_mask, cora.y, -1)
model = difformer.DIFFormerClassifier(recipe="stable", epochs=60, random_state=0)
model.fit(data.x, few, graph=data.edge_index)
accuracy = (model.transduction_ == cora.y.numpy())[data.test_mask].mean()
print(f"test accuracy {accuracy:.3f}")
assert accuracy > 0.75

torch.save(data, "graph.pt")  # difformer reads it without executing anything in it
words = ["train", "graph.pt", "--split", "given", "--epochs", "20", "--quiet", "--no-report"]
subprocess.run([sys.executable, "-m", "difformer", *words], check=True)
