"""A LightningModule, trained by Lightning."""

import lightning.pytorch as lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        loss = F.cross_entropy(self.net(inputs), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, labels = batch
        outputs = self.net(inputs)
        right = (outputs.argmax(1) == labels).to(outputs.dtype).mean()
        self.log_dict({"val_loss": F.cross_entropy(outputs, labels), "val_acc": right})

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.03, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Numbers(lightning.LightningDataModule):
    def setup(self, stage):
        inputs = torch.randn(300, 8, generator=torch.Generator().manual_seed(1))
        self.data = TensorDataset(inputs, inputs.abs().argmax(1))

    def train_dataloader(self):
        train = torch.utils.data.Subset(self.data, range(250))
        return DataLoader(train, batch_size=64, shuffle=True)

    def val_dataloader(self):
        return DataLoader(torch.utils.data.Subset(self.data, range(250, 300)), batch_size=64)


torch.manual_seed(0)
model = Classifier()
trainer = lightning.Trainer(
    max_epochs=4,
    gradient_clip_val=1.0,
    accelerator="cpu",
    num_sanity_val_steps=0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(model, Numbers())
