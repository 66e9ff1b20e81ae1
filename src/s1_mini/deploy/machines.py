"""What is known of AWS's machines without asking it: which have a GPU, which have a disk of their own."""

from __future__ import annotations

import re

# GB of the disk that a machine brings. It cannot be chosen there: SageMaker refuses VolumeSizeInGB.
OWN_DISK_GB = {
    "ml.g4dn.xlarge": 125,
    "ml.g4dn.2xlarge": 225,
    "ml.g5.xlarge": 250,
    "ml.g5.2xlarge": 450,
    "ml.g5.4xlarge": 600,
    "ml.g5.12xlarge": 3800,
    "ml.g6.xlarge": 250,
    "ml.g6.2xlarge": 450,
    "ml.g6.4xlarge": 600,
    "ml.g6.12xlarge": 3760,
    "ml.g6e.xlarge": 250,
    "ml.g6e.2xlarge": 450,
    "ml.g6e.4xlarge": 600,
    "ml.p4d.24xlarge": 8000,
    "ml.p5.48xlarge": 30400,
}


def is_gpu(instance_type: str) -> bool:
    """Tell whether machines of this type have a GPU of NVIDIA's."""
    return re.match(r"ml\.(g\d|gr\d|p\d)", instance_type) is not None


def has_own_disk(instance_type: str) -> bool:
    """Tell whether machines of this type bring a disk, and therefore take no volume size."""
    return (
        instance_type in OWN_DISK_GB
        or re.match(r"ml\.(g4dn|g5|g6|g6e|gr6|g7|g7e|p4d|p4de|p5|p5e|p5en|\w+d)\.", instance_type) is not None
    )
