"""Fine-tuning: a new head first, then everything, in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

made = torch.Generator().manual_seed(1)
inputs = torch.randn(300, 8, generator=made)
train = TensorDataset(inputs[:250], inputs[:250].abs().argmax(1))
valid = inputs[250:], inputs[250:].abs().argmax(1)
pretrained = {"0.weight": torch.randn(32, 8, generator=made) / 3, "0.bias": torch.zeros(32)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.head = nn.Linear(32, 8)
        self.body.load_state_dict(pretrained)
        self.body.requires_grad_(False)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def loss(model, batch):
    inputs, labels = batch
    scores = model(inputs)
    accuracy = (scores.argmax(1) == labels).double().mean()
    return F.cross_entropy(scores, labels), {"accuracy": accuracy}


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.01)
loader = DataLoader(train, batch_size=50, shuffle=True)

for epoch in range(5):
    for batch in loader:
        optimizer.zero_grad()
        loss(model, batch)[0].backward()
        optimizer.step()
    if epoch == 1:
        model.body.requires_grad_(True)
        optimizer.add_param_group({"params": list(model.body.parameters()), "lr": 0.001})
    with torch.no_grad():
        print(epoch, loss(model, valid))
