"""Refine the codec's decoder while its codes stay as they are. Resumable by seconds (`loop.py`).

python -m training.decoder --work DIR --seconds 540

Goes on from `DIR/codec.safetensors` and replaces it. Since encoder and codebooks do not move, speech can be encoded and
the dual-AR model trained at the same time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from s1_mini.codecs.carry import NoCarry
from training.codec import MAX_WAIT_S, MIN_POOL_S, CodecTraining, arguments, use_fast_kernels
from training.graph import use_capture_stream
from training.loop import Schedule

SCHEDULE = Schedule(total_s=1330.0, rate=4e-4, warm_up=1000)
ROWS = 32
DECODING = ("decoder.", "quantizer.post_module.", "quantizer.upsample.")


class DecoderTraining(CodecTraining):
    """The decoding half learns from what the books give, the encoding half gives it."""

    name = "decoder"

    def __init__(self, work: Path, schedule: Schedule, device: torch.device, *, compiles: bool = True) -> None:
        super().__init__(work, schedule, device, compiles=compiles)
        tensors = load_file(work / "codec.safetensors")
        values = [tensors[name] for name in self.names]
        self.fill(values, values)
        for name, parameter in zip(self.names, self.parameters, strict=True):
            parameter.requires_grad_(name.startswith(DECODING))

    def step(self) -> None:
        """Decode what random speech was encoded to, and bring its spectrum nearer to the original's."""
        carry = NoCarry()
        wave = self.pool.batch(ROWS, self.samples_per_row)
        with torch.no_grad():
            codes = self.codec.quantizer.encode(self.latents(wave, carry))
            vectors = self.codec.quantizer.decode(codes)
        with self.half():
            decoded = self.synthesise(vectors, carry)
        mel = self.mel(wave, decoded.float())
        self.derive(mel)
        self.report[0].lerp_(mel.detach(), 0.02)

    def revive(self) -> None:
        """Do nothing: the books stay."""

    def save(self) -> None:
        """Write what the next call goes on from, and put the refined codec in the place of the old."""
        super().save()
        (self.work / f"{self.name}.safetensors").replace(self.work / "codec.safetensors")


def main() -> None:
    """Train for some seconds."""
    options = arguments(__doc__, SCHEDULE)
    device = use_fast_kernels()
    use_capture_stream(device)
    schedule = replace(SCHEDULE, total_s=options.total, rate=options.rate)
    training = DecoderTraining(options.work, schedule, device, compiles=not options.no_compile)
    training.resume()
    training.pool.wait(MIN_POOL_S * training.codec.sample_rate, MAX_WAIT_S)
    training.run(options.seconds)


if __name__ == "__main__":
    main()
