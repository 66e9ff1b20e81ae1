"""How a codec begins, and what trains it fast."""

from __future__ import annotations

import math

import torch
from torch import nn


def initialise(module: nn.Module) -> None:
    """Set what the codec's layers leave empty."""
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith("gamma"):
            nn.init.constant_(parameter, 0.1)
        elif parameter.dim() <= 1 or name.endswith("alpha"):
            nn.init.ones_(parameter)
        elif name.endswith("codebook.weight"):
            nn.init.normal_(parameter)
        else:
            nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))


def use_fast_kernels() -> torch.device:
    """Allow what is fast and exact enough for training; give the best device there is."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
