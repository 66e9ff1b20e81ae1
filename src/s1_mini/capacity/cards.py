"""GPUs that AWS offers, and a selection of instance types that have them.

Bandwidth and TFLOP/s are from NVIDIA's data sheets of T4, A10G, L4, L40S, A100 (40 GB SXM), H100 (SXM5) and H200 (SXM);
TFLOP/s are dense, half of the figures "with sparsity". Memory is as the driver reports it to `nvidia-smi` (MiB) and to
the engine. Instance types are from AWS's pages of the G4, G5, G6, G6e, P4 and P5 families.
"""

from __future__ import annotations

from dataclasses import dataclass

from s1_mini.exceptions import ParameterError
from s1_mini.types import Choice

MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    title: str
    memory_mib: int
    bandwidth_gb_s: float
    half_tflops: float  # tensor cores, 16 bits
    single_tflops: float  # 32 bits, no tensor cores
    capability: tuple[int, int]
    has_bfloat16: bool
    has_fp8: bool

    @property
    def memory_bytes(self) -> int:
        """Memory as the driver reports it."""
        return self.memory_mib * MIB


@dataclass(frozen=True)
class InstanceType:
    """A type of instance and its GPUs."""

    instance_type: str
    card: str
    num_gpus: int


CARDS = {
    card.name: card
    for card in (
        Gpu("t4", "T4", 15_360, 320, 65, 8.1, (7, 5), has_bfloat16=False, has_fp8=False),
        Gpu("a10g", "A10G", 23_028, 600, 70, 35, (8, 6), has_bfloat16=True, has_fp8=False),
        Gpu("l4", "L4", 23_034, 300, 121, 30.3, (8, 9), has_bfloat16=True, has_fp8=True),
        Gpu("l40s", "L40S", 46_068, 864, 362, 91.6, (8, 9), has_bfloat16=True, has_fp8=True),
        Gpu("a100", "A100", 40_960, 1_555, 312, 19.5, (8, 0), has_bfloat16=True, has_fp8=False),
        Gpu("h100", "H100", 81_559, 3_350, 989, 67, (9, 0), has_bfloat16=True, has_fp8=True),
        Gpu("h200", "H200", 143_771, 4_800, 989, 67, (9, 0), has_bfloat16=True, has_fp8=True),
    )
}

MACHINES = tuple(
    InstanceType(f"ml.{family}.{size}", card, num_gpus)
    for family, card, sizes in (
        ("g4dn", "t4", {"xlarge": 1, "2xlarge": 1, "12xlarge": 4}),
        ("g5", "a10g", {"xlarge": 1, "2xlarge": 1, "12xlarge": 4, "24xlarge": 4, "48xlarge": 8}),
        ("g6", "l4", {"xlarge": 1, "2xlarge": 1, "12xlarge": 4, "24xlarge": 4, "48xlarge": 8}),
        ("g6e", "l40s", {"xlarge": 1, "2xlarge": 1, "12xlarge": 4, "24xlarge": 4, "48xlarge": 8}),
        ("p4d", "a100", {"24xlarge": 8}),
        ("p5", "h100", {"4xlarge": 1, "48xlarge": 8}),
        ("p5e", "h200", {"48xlarge": 8}),
        ("p5en", "h200", {"48xlarge": 8}),
    )
    for size, num_gpus in sizes.items()
)


def gpu_precision(*, has_bfloat16: bool, in_float16: bool) -> Choice:
    """Return the number format of a model on a GPU, if the settings name none.

    `in_float16`: whether the model can compute in float16 (`Family.in_float16`).
    """
    if has_bfloat16:
        return Choice("bfloat16", "the precision of the published weights; this GPU supports it")
    if in_float16:
        return Choice("float16", "this GPU does not support bfloat16")
    return Choice("float32", "this GPU does not support bfloat16, and the model overflows in float16")


def find_card(name: str) -> Gpu:
    """Return the GPU with this name, ignoring case. Raises `ParameterError` if it is unknown."""
    card = CARDS.get(name.lower())
    if card is None:
        raise ParameterError("gpu", f"{name!r} is not a known GPU; use one of {', '.join(CARDS)}")
    return card


def find_machine(instance_type: str) -> InstanceType:
    """Return an instance type, with or without `ml.`. Raises `ParameterError` if it is unknown."""
    wanted = instance_type.lower().removeprefix("ml.")
    found = next((machine for machine in MACHINES if machine.instance_type.removeprefix("ml.") == wanted), None)
    if found is None:
        known = ", ".join(machine.instance_type.removeprefix("ml.") for machine in MACHINES)
        raise ParameterError("machine", f"{instance_type!r} is not a known instance type; use one of {known}")
    return found


def card_in(device_name: str) -> Gpu | None:
    """Return the GPU for the name that its driver reports ("NVIDIA A100-SXM4-40GB"), or None."""
    words = device_name.lower().replace("-", " ").split()
    return next((card for card in CARDS.values() if card.name in words), None)


def machines_with(card: Gpu) -> list[InstanceType]:
    """Return the instance types with this GPU, the smallest first."""
    return [machine for machine in MACHINES if machine.card == card.name]
