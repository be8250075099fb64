"""stub until merged"""

import platform

import torch


def describe_cpu() -> str:
    return f"{platform.processor()} {torch.backends.cpu.get_cpu_capability()}"
