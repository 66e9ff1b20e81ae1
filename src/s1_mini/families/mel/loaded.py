"""A loaded SpeechT5 checkpoint with its vocoder."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from s1_mini.alignment.head import AlignmentHead
from s1_mini.alignment.words import Aligner
from s1_mini.codecs.hifigan.model import HifiGan
from s1_mini.codecs.hifigan.stage import Vocoder, context_of
from s1_mini.codecs.stage import rows_of
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.stage import Autoregressive, Chunks, Spec
from s1_mini.exceptions import CapacityError, VoiceError
from s1_mini.families.base import PLAIN, Placement, PromptOptions, StageChain
from s1_mini.families.mel.config import read_configs
from s1_mini.families.mel.decoder import MelDecoder
from s1_mini.families.mel.model import MelModel
from s1_mini.families.mel.settings import STAGES, MelSettings
from s1_mini.families.mel.tokenizer import CharTokenizer
from s1_mini.families.mel.voice import SPEAKER
from s1_mini.families.mel.weights import build_network
from s1_mini.types import ChunkProfile, Voice
from s1_mini.weights.directory import find_model
from s1_mini.weights.files import read_tensors
from s1_mini.weights.fit import below_prefix, fit, skeleton

# Frames of the first, second, … chunk of an utterance; all further chunks have the last size.
CHUNK_FRAMES: dict[ChunkProfile, tuple[int, ...]] = {
    "ttfa": (8, 16, 32, 64),
    "balanced": (16, 32, 64),
    "throughput": (128,),
}
MAX_FRAMES = 1024  # limit of frames in one captured call
VOCODER_SLOTS = 2  # vocoder slots per decoder slot, whose next utterance may begin before the vocoder is done
# A thread that runs both stages vocodes at most two frames per generated frame, plus these, in each turn.
SPARE_FRAMES = 64


class LoadedMel:
    """A loaded checkpoint directory."""

    def __init__(self, model: MelModel, tokenizer: CharTokenizer, vocoder: HifiGan) -> None:
        self.model, self.tokenizer, self.vocoder = model, tokenizer, vocoder
        self.networks = (model.network,)
        self.text_heads = model.config.decoder_layers, model.config.heads
        self.heads: Sequence[AlignmentHead] = model.kept_heads
        self.num_bytes, self.position_bytes = model.num_bytes, model.step_bytes
        self.max_positions = model.config.max_steps

    def prompt(self, text: str, voices: Sequence[Voice], options: PromptOptions = PLAIN) -> PromptTokens:  # noqa: ARG002
        tokens, config = self.tokenizer.encode(text), self.model.config
        if len(tokens) > config.max_text:
            raise CapacityError(
                f"a piece of the text has {len(tokens)} tokens; the model's limit is {config.max_text}. Write shorter "
                "sentences, or lower S1_MINI_CHUNK_LENGTH"
            )
        speaker = {}
        if voices:
            vector = voices[0].tensors[SPEAKER]
            if tuple(vector.shape) != (config.speaker_size,):
                raise VoiceError(
                    "voice", f"has a speaker vector of {list(vector.shape)}; the model needs [{config.speaker_size}]"
                )
            speaker = {SPEAKER: vector.float().numpy()}
        return PromptTokens(np.array(tokens, np.int64), voice=speaker)

    def own_voice(self, outputs: Sequence[np.ndarray], text: str) -> Voice:  # noqa: ARG002 - a mel has no voice of its own
        """Return a vector of zeros, which is the voice of a request without a voice."""
        return Voice({SPEAKER: torch.zeros(self.model.config.speaker_size)}, text)

    def chain(self, slots: int, positions: int) -> StageChain:
        model, vocoder, front = self.model, self.vocoder, self.model.network.speech_decoder_postnet
        steps = min(positions, model.config.max_steps)
        rate = vocoder.config.sample_rate
        frames = Spec("float32", (model.config.num_bins,), rate=rate / vocoder.config.samples_per_frame)
        around = context_of(vocoder, front)
        policies = (
            Autoregressive(
                name=STAGES[0],
                input=Spec("int64"),
                output=frames,
                slots=slots,
                not_finite="the model's frames were not finite",
            ),
            Chunks(
                name=STAGES[1],
                input=frames,
                output=Spec("float32", rate=rate),
                slots=VOCODER_SLOTS * slots,
                holds="unit",
                sizes=CHUNK_FRAMES,
                context=around,
                look_ahead=around,
                rows=rows_of(vocoder.device, VOCODER_SLOTS * slots),
                max_items=MAX_FRAMES,
                items_a_turn=SPARE_FRAMES + 2 * slots * model.config.frames_per_step,
                not_finite="the vocoder's samples were not finite; its weights may be damaged",
            ),
        )
        stages = (
            MelDecoder(model, slots=slots, steps=steps, heads=self.heads),
            Vocoder(vocoder, policies[1], number=1, front=front),
        )

        def room(prompt: PromptTokens) -> int:
            return min(steps, model.steps_for(len(prompt.items), model.settings.max_length_ratio))

        aligner = Aligner(self.heads[0], 1 / frames.rate, self.tokenizer.token_ends) if self.heads else None
        return StageChain(policies=policies, stages=stages, sample_rate=rate, room=room, aligner=aligner)

    def condition(self, wave: Tensor) -> Generator[None, None, dict[str, Tensor]]:
        raise NotImplementedError


def open_mel(directory: Path, placement: Placement, settings: MelSettings) -> LoadedMel:
    """Load model and vocoder. Only the layers of encoder and decoder are quantized. Raises `CheckpointError`."""
    config, files = read_configs(directory)
    tokenizer = CharTokenizer.from_directory(directory, config)
    path = find_model(directory)
    tensors, device = read_tensors(path), placement.of(STAGES[0])
    network = build_network(config, tensors, device, path.name)
    if device.type == "meta":  # this process runs only the vocoder; it also needs the post-net from the model's file
        front = build_network(config, tensors, torch.device("cpu"), path.name).speech_decoder_postnet
        network.speech_decoder_postnet.layers = front.layers
    model = MelModel(
        network,
        config,
        settings,
        dtype=placement.dtype,
        weights_dtype=placement.weights_dtype,
        kv_dtype=placement.kv_dtype,
    )
    sound = below_prefix(read_tensors(files.weights), files.prefix)
    device = placement.of(STAGES[1])
    vocoder = skeleton(lambda: HifiGan(files.config))
    fit(vocoder, sound, source=str(files.weights), dtype=placement.codec_dtype, device=device)
    if device.type == "cuda":
        vocoder.prepare()  # channels last
    network.speech_decoder_postnet.prepare(vocoder.device, vocoder.dtype, vocoder.axis)
    return LoadedMel(model, tokenizer, vocoder)
