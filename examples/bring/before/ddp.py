"""A classifier with DistributedDataParallel: torchrun --nproc-per-node N ddp.py"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
made = torch.Generator().manual_seed(1)
inputs = torch.randn(256, 8, generator=made)
train = TensorDataset(inputs, inputs.abs().argmax(1))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
replica = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def loss(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=64 // dist.get_world_size(), sampler=sampler)

for epoch in range(3):
    sampler.set_epoch(epoch)
    total = torch.zeros(())
    for batch in loader:
        optimizer.zero_grad()
        batch_loss = loss(replica, batch)
        batch_loss.backward()
        optimizer.step()
    dist.all_reduce(total.copy_(batch_loss.detach() / dist.get_world_size()))
    if dist.get_rank() == 0:
        print(epoch, total.item())
dist.destroy_process_group()
