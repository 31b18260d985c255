"""How features are made. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field

from difformer.app.encoders import ENCODERS
from difformer.train.settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """How features are made; encoders other than SimCLR use only `encoder` and `device`."""

    encoder: str = "simclr"
    width: int = 64
    batch_size: int = 256
    temperature: float = 0.5
    train: TrainSettings = field(
        default_factory=lambda: TrainSettings(
            epochs=100, lr=0.001, weight_decay=1e-6, schedule="cosine", warmup=5
        )
    )

    def __post_init__(self) -> None:
        if self.encoder not in ENCODERS:
            raise ValueError(f"encoder must be one of {', '.join(ENCODERS)}, got {self.encoder!r}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
