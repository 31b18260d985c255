"""Export a fitted model to ONNX, for any number of rows. It needs no training data."""

import numpy as np
import onnxruntime
import torch
from sklearn.datasets import load_digits

import difformer

digits, y = load_digits(return_X_y=True)
X = digits.astype(np.float32)
few = np.where(np.arange(len(y)) < 200, y, -1)
model = difformer.DIFFormerClassifier(recipe="alone", epochs=30, random_state=0).fit(X, few)
wanted = model.predict_proba(X)
mean, scale = (torch.as_tensor(part, dtype=torch.float32) for part in model.scaling_)


class Predictor(torch.nn.Module):
    frozen = model.frozen_.float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen((x - mean) / scale).softmax(dim=-1)


rows = {"x": {0: torch.export.Dim("rows", min=2)}}
exported = torch.export.export(Predictor(), (torch.tensor(X[:7]),), dynamic_shapes=rows)
torch.onnx.export(exported, (), "model.onnx", dynamo=True, verbose=False)
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
for m in (2, 64, 500):
    assert np.abs(session.run(None, {"x": X[:m]})[0] - wanted[:m]).max() < 1e-4
