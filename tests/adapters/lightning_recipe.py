"""A LightningModule as its people write one, and its recipe."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import samepath.lightning
from samepath import Recipe

NUM_EXAMPLES, BATCH, EPOCHS = 54, 12, 3


class Classifier(lightning.LightningModule):
    """Batch norm, a layer that is not used, logs of every kind."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        layers = (nn.Linear(8, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Dropout(dropout))
        self.net = nn.Sequential(*layers, nn.Linear(24, 4))
        self.unused = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Any:
        return self.net(inputs)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        outputs = self(batch[0])
        loss = F.cross_entropy(outputs, batch[1])
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_acc", (outputs.argmax(1) == batch[1]).float().mean())
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        outputs = self(batch[0])
        accuracy = (outputs.argmax(1) == batch[1]).float().mean()
        loss = F.cross_entropy(outputs, batch[1])
        self.log_dict({"val_loss": loss, "val_acc": accuracy}, on_epoch=True)

    def on_train_epoch_end(self) -> None:
        self.log("epoch_as_logged", float(self.current_epoch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Numbers(lightning.LightningDataModule):
    def setup(self, stage: str) -> None:
        inputs = torch.randn(NUM_EXAMPLES + 20, 8, generator=torch.Generator().manual_seed(1))
        labels = inputs[:, :4].argmax(1)
        self.train = TensorDataset(inputs[:NUM_EXAMPLES], labels[:NUM_EXAMPLES])
        self.valid = TensorDataset(inputs[NUM_EXAMPLES:], labels[NUM_EXAMPLES:])

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=BATCH, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.valid, batch_size=BATCH)


def recipe() -> Recipe:
    return samepath.lightning.recipe(
        Classifier(dropout=0.2),
        Numbers(),
        max_epochs=EPOCHS,
        gradient_clip_val=0.5,
        enable_progress_bar=False,
        grain_size=3,
    )
