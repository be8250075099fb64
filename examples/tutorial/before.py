"""A classifier with DistributedDataParallel: torchrun --nproc-per-node N before.py"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
made = torch.Generator().manual_seed(1)
inputs = torch.randn(600, 8, generator=made)
train = TensorDataset(inputs, inputs.abs().argmax(1))
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 8)
)
replica = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=32, sampler=sampler)

for epoch in range(10):
    sampler.set_epoch(epoch)
    losses = []
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(replica(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        print(epoch, round(sum(losses) / len(losses), 4))
dist.barrier()
dist.destroy_process_group()
