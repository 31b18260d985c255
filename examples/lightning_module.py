"""DIFFormer inside a Lightning module: the whole dataset is one batch."""

# Lightning is not among the dependencies: the type checker may not find it.
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

import sys
import warnings

import torch
from torch.nn import functional

import difformer

try:
    import lightning
except ImportError:
    sys.exit(print("skipped: lightning is missing; pip install lightning") or 0)

warnings.filterwarnings("ignore")  # Lightning's advice about workers, of which we need none
data = difformer.load_dataset("digits")
split = data.split("random:0")


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = difformer.DIFFormer(data.num_features, 64, data.num_outputs, dropout=0.3)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch[0][0], batch[1][0]
        return functional.cross_entropy(self.model(x)[split.train], y[split.train])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        x, y = batch[0][0], batch[1][0]
        hits = self.model(x).argmax(-1) == y
        self.log("val_accuracy", hits[split.val].float().mean(), batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01, weight_decay=1e-3)


whole = torch.utils.data.TensorDataset(data.x.unsqueeze(0), data.y.unsqueeze(0))
loader = torch.utils.data.DataLoader(whole, batch_size=1)
trainer = lightning.Trainer(
    max_epochs=60,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    check_val_every_n_epoch=20,
)
trainer.fit(Classifier(), loader, loader)
accuracy = float(trainer.callback_metrics["val_accuracy"])
print(f"validation accuracy {accuracy:.3f}")
assert accuracy > 0.8
