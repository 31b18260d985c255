"""Train DIFFormer in a Lightning module. The whole dataset is one batch."""

import lightning
import torch
from torch.nn import functional as F

import difformer

lightning.seed_everything(0, verbose=False)
data, split = difformer.load_dataset("digits"), difformer.load_dataset("digits").split("random:0")


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = difformer.DIFFormer(data.num_features, 64, data.num_outputs, dropout=0.3)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(self.model(batch[0][0])[split.train], batch[1][0, split.train])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01, weight_decay=1e-3)


whole = [(data.x, data.y)]  # one item; the loader adds a first dimension of one
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(max_epochs=60, accelerator="cpu", **quiet)  # type: ignore[arg-type]
trainer.fit(module := Classifier(), torch.utils.data.DataLoader(whole))  # type: ignore[arg-type]
hits = module.eval().model(data.x).argmax(-1) == data.y
assert hits[split.test].float().mean() > 0.8
