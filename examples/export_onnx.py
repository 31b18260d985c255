"""Take a fitted model out of Python: torch.export and ONNX, with any number of rows.

The frozen predictor needs none of the training data, so what is exported is small and stands
alone. Checked against ONNX Runtime.
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits

import difformer

X, y = load_digits(return_X_y=True)
few = np.where(np.arange(len(y)) < 200, y, -1)
model = difformer.DIFFormerClassifier(epochs=30, random_state=0).fit(X / 16, few)


class Predictor(torch.nn.Module):
    """From raw features to probabilities: the columns' scaling and the frozen model."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, fitted: difformer.DIFFormerClassifier) -> None:
        super().__init__()
        mean, scale = fitted.scaling_
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float32))
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32))
        self.frozen = fitted.frozen_.float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen((x - self.mean) / self.scale).softmax(dim=-1)


wanted = model.predict_proba(X / 16)
x = torch.tensor(X / 16, dtype=torch.float32)
predictor = Predictor(model).eval()
rows = {"x": {0: torch.export.Dim("rows", min=2)}}
exported = torch.export.export(predictor, (x[:7],), dynamic_shapes=rows)
for m in (2, 64, 500):
    difference = (exported.module()(x[:m]) - torch.from_numpy(wanted[:m])).abs().max()
    assert difference < 1e-4, difference
print("torch.export: agrees for 2, 64 and 500 rows")

try:
    import onnxruntime
    import onnxscript  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    sys.exit(print(f"skipped ONNX: {error.name} is missing; pip install 'difformer[onnx]'") or 0)

program = torch.onnx.export(exported, (x[:7],), dynamo=True, verbose=False)
assert program is not None
program.save("model.onnx")
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
for m in (2, 64, 500):
    found = session.run(None, {name: x[:m].numpy()})[0]
    assert np.abs(found - wanted[:m]).max() < 1e-4
print("ONNX Runtime: agrees for 2, 64 and 500 rows")
