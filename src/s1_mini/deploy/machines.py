"""What is known of AWS's machines without asking it: how many GPUs they have, which have a disk of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from s1_mini.capacity.cards import MACHINES

REPLICAS, PLACEMENT = "S1_MINI_SERVER_REPLICAS", "S1_MINI_PLACEMENT"
GPUS = {machine.instance_type: machine.num_gpus for machine in MACHINES}

# GB of the disk that a machine brings. It cannot be chosen there: SageMaker refuses VolumeSizeInGB.
OWN_DISK_GB = {
    "ml.g4dn.xlarge": 125,
    "ml.g4dn.2xlarge": 225,
    "ml.g5.xlarge": 250,
    "ml.g5.2xlarge": 450,
    "ml.g5.4xlarge": 600,
    "ml.g5.12xlarge": 3800,
    "ml.g5.24xlarge": 3800,
    "ml.g5.48xlarge": 7600,
    "ml.g6.xlarge": 250,
    "ml.g6.2xlarge": 450,
    "ml.g6.4xlarge": 600,
    "ml.g6.12xlarge": 3760,
    "ml.g6.24xlarge": 3760,
    "ml.g6.48xlarge": 7520,
    "ml.g6e.xlarge": 250,
    "ml.g6e.2xlarge": 450,
    "ml.g6e.4xlarge": 600,
    "ml.g6e.12xlarge": 3800,
    "ml.g6e.24xlarge": 3800,
    "ml.g6e.48xlarge": 7600,
    "ml.p4d.24xlarge": 8000,
    "ml.p5.48xlarge": 30400,
}


def is_gpu(instance_type: str) -> bool:
    """Tell whether machines of this type have a GPU of NVIDIA's."""
    return re.match(r"ml\.(g\d|gr\d|p\d)", instance_type) is not None


def count_replicas(num_gpus: int, environment: Mapping[str, str]) -> int:
    """Count the engines of a container that sees so many GPUs: one for each, unless its variables say otherwise."""
    wanted = environment.get(REPLICAS, "auto")
    if wanted.isdecimal():
        return max(1, int(wanted))
    return 1 if environment.get(PLACEMENT) else max(1, num_gpus)


def has_own_disk(instance_type: str) -> bool:
    """Tell whether machines of this type bring a disk, and therefore take no volume size."""
    return (
        instance_type in OWN_DISK_GB
        or re.match(r"ml\.(g4dn|g5|g6|g6e|gr6|g7|g7e|p4d|p4de|p5|p5e|p5en|\w+d)\.", instance_type) is not None
    )
