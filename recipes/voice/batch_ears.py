"""The metrics of `ears.py` for many recordings at once, on a GPU, and the pitch range.

Whisper base runs in transformers, with the weights of the package that `packages.py` downloads and without beams or
timestamps. Its figures differ a little from those of `ears.py`, which are the ones to report.
Shapes: N recordings, B rows of a batch, T samples at 16 kHz.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from recipes.voice.ears import EAR_RATE, open_distillmos, whisper_folder
from s1_mini.text import spoken

MOS_SAMPLES, MOS_HOP = 122_880, 16_000  # length of DistillMOS's input, largest distance of two inputs
HEARD_S, MAX_WORD_TOKENS = 30, 120  # Whisper's input; no recording has more tokens
# Resemblyzer 0.1.4: an utterance is the mean of windows of 1.6 s, 1.3 a second, of which the last is three quarters
# full. Its removal of long silences is left out.
SPEAKER_FRAMES, SPEAKER_STEP, SPEAKER_COVERAGE, SPEAKER_MELS, SPEAKER_UNITS = 160, 77, 0.75, 40, 256
WINDOW, HOP = 400, 160  # samples of the spectra of Whisper and Resemblyzer
PITCH_WINDOW, PITCH_HOP, PITCHES_HZ = 1024, 320, (60, 400)
VOICED = 0.6  # least autocorrelation of a voiced frame
SILENT = 1e-3  # energy, relative to the loudest frame, below which a frame is not voiced
OCTAVE = 0.9  # the shortest period with this share of the highest autocorrelation is the period


class BatchEars:
    """All metrics on one device. Recordings are lists of float32 tensors [T] on this device."""

    def __init__(self, packages: Path, device: torch.device) -> None:
        self._device, self._rows = device, 128 if device.type == "cuda" else 8
        self._whisper = Whisper(whisper_folder(packages), device)
        # After transformers, which does not accept the substitute for torchaudio that this call may install.
        self._distillmos = open_distillmos(segmenting_in_forward=False).to(device)
        self._speaker = SpeakerNetwork.read().to(device)

    @torch.inference_mode()
    def naturalness(self, waves: Sequence[Tensor]) -> Tensor:
        """DistillMOS [N], from 1 to 5; the mean of the windows that its own code cuts."""
        crops, owners = [], []
        for index, wave in enumerate(waves):
            beyond = max(0, len(wave) - MOS_SAMPLES)
            for start in np.linspace(0, beyond, math.ceil(beyond / MOS_HOP) + 1).astype(int):
                crops.append(wave[start : start + MOS_SAMPLES])
                owners.append(index)
        scores = [
            self._distillmos(torch.stack([F.pad(crop, (0, MOS_SAMPLES - len(crop))) for crop in part])).flatten()
            for part in _parts(crops, self._rows)
        ]
        of = torch.tensor(owners, device=self._device)
        total = torch.zeros(len(waves), device=self._device).index_add(0, of, torch.cat(scores).float())
        return (total / torch.bincount(of)).cpu()

    def words(self, waves: Sequence[Tensor]) -> list[tuple[str, float]]:
        """Return the transcript of each recording, numbers in words, and the mean log-probability of its tokens."""
        order = sorted(range(len(waves)), key=lambda index: len(waves[index]))
        heard: dict[int, tuple[str, float]] = {}
        for part in _parts(order, 2 * self._rows):
            for index, each in zip(part, self._whisper([waves[index] for index in part]), strict=True):
                heard[index] = each
        return [heard[index] for index in range(len(waves))]

    @torch.inference_mode()
    def voices(self, waves: Sequence[Tensor]) -> Tensor:
        """Resemblyzer's embeddings [N, 256] of the speakers, of length 1."""
        return torch.cat([self._speaker(part) for part in _parts(waves, self._rows)]).cpu()

    @torch.inference_mode()
    def pitch_ranges(self, waves: Sequence[Tensor]) -> Tensor:
        """Standard deviations [N] of the natural logarithm of the fundamental frequency; NaN without voiced frames."""
        return torch.stack([_pitch_range(wave) for wave in waves]).cpu()


def _parts(every: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(every), size):
        yield every[begin : begin + size]


def _pitch_range(wave: Tensor) -> Tensor:
    frames = F.pad(wave, (0, PITCH_WINDOW)).unfold(0, PITCH_WINDOW, PITCH_HOP)
    frames = frames - frames.mean(-1, keepdim=True)
    energy = frames.square().sum(-1)
    power = torch.fft.rfft(frames, n=2 * PITCH_WINDOW).abs().square()
    products = torch.fft.irfft(power)[:, : EAR_RATE // PITCHES_HZ[0] + 1]
    overlap = 1 - torch.arange(products.shape[1], device=wave.device) / PITCH_WINDOW
    alike = (products / (energy.unsqueeze(1) * overlap).clamp_min(1e-9))[:, EAR_RATE // PITCHES_HZ[1] :]
    highest = alike.amax(-1)
    lag = (alike >= OCTAVE * highest.unsqueeze(1)).float().argmax(-1) + EAR_RATE // PITCHES_HZ[1]
    pitch = -torch.log(lag.float())
    pitch = torch.where((highest > VOICED) & (energy > SILENT * energy.amax()), pitch, math.nan)
    # Frames beyond half an octave from the median are mostly errors of an octave.
    pitch = torch.where((pitch - pitch.nanmedian()).abs() < 0.5 * math.log(2), pitch, math.nan)
    return (pitch - pitch.nanmean()).square().nanmean().sqrt()


def _mel_filters(bands: int, device: torch.device) -> Tensor:
    from transformers.audio_utils import mel_filter_bank

    filters = mel_filter_bank(WINDOW // 2 + 1, bands, 0.0, EAR_RATE / 2, EAR_RATE, norm="slaney", mel_scale="slaney")
    return torch.from_numpy(filters).to(device, torch.float32)


class SpeakerNetwork(nn.Module):
    """Resemblyzer's network: an LSTM over mel spectra (Wan et al. 2018, arXiv 1710.10467)."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(SPEAKER_MELS, SPEAKER_UNITS, 3, batch_first=True)
        self.linear = nn.Linear(SPEAKER_UNITS, SPEAKER_UNITS)

    @classmethod
    def read(cls) -> SpeakerNetwork:
        spec = find_spec("resemblyzer")
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError("Resemblyzer is not installed; see README.md", name="resemblyzer")
        path = Path(spec.origin).parent / "pretrained.pt"
        state = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
        network = cls()
        network.load_state_dict({name: state[name] for name in network.state_dict()})
        return network.eval()

    def forward(self, waves: Sequence[Tensor]) -> Tensor:
        """Return the embeddings [B, 256] of recordings."""
        device = waves[0].device
        starts = [_speaker_starts(len(wave)) for wave in waves]
        lengths = [begins[-1] + SPEAKER_FRAMES for begins in starts]
        padded = pad_sequence(list(waves), batch_first=True)
        padded = F.pad(padded, (0, max(0, max(lengths) * HOP - padded.shape[1])))
        window = torch.hann_window(WINDOW, device=device)
        spectrum = torch.stft(padded, WINDOW, HOP, window=window, pad_mode="constant", return_complex=True)
        mel = spectrum.abs().square().transpose(1, 2) @ _mel_filters(SPEAKER_MELS, device)
        windows = [mel[row, at : at + SPEAKER_FRAMES] for row, begins in enumerate(starts) for at in begins]
        _, (hidden, _) = self.lstm(torch.stack(windows))
        each = F.normalize(self.linear(hidden[-1]).relu(), dim=-1).split([len(begins) for begins in starts])
        return F.normalize(torch.stack([part.mean(0) for part in each]), dim=-1)


def _speaker_starts(samples: int) -> list[int]:
    frames = math.ceil((samples + 1) / HOP)
    starts = list(range(0, max(1, frames - SPEAKER_FRAMES + SPEAKER_STEP + 1), SPEAKER_STEP))
    covered = (samples - starts[-1] * HOP) / (SPEAKER_FRAMES * HOP)
    return starts[:-1] if len(starts) > 1 and covered < SPEAKER_COVERAGE else starts


class Whisper:
    """Whisper base (Radford et al. 2022, arXiv 2212.04356), greedy, for English."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        from tokenizers import Tokenizer
        from transformers import WhisperConfig, WhisperForConditionalGeneration

        self._device, self._dtype = device, torch.float16 if device.type == "cuda" else torch.float32
        tensors = named_as_in_transformers(read_ctranslate2(folder / "model.bin"))
        size, bands, _ = tensors["model.encoder.conv1.weight"].shape
        layers = 1 + max(int(name.split(".")[3]) for name in tensors if ".encoder.layers." in name)
        inner, heads = len(tensors["model.encoder.layers.0.fc1.weight"]), size // 64
        config = WhisperConfig(
            vocab_size=len(tensors["proj_out.weight"]), num_mel_bins=bands, d_model=size,
            encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads, decoder_attention_heads=heads,
            encoder_ffn_dim=inner, decoder_ffn_dim=inner,
        )  # fmt: skip
        self._model = WhisperForConditionalGeneration(config)
        self._model.load_state_dict(tensors)
        self._model.eval().to(device, self._dtype)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        numbers = self._tokenizer.get_vocab()
        self._end = numbers["<|endoftext|>"]
        self._prompt = [numbers[f"<|{name}|>"] for name in ("startoftranscript", "en", "transcribe", "notimestamps")]
        rules = json.loads((folder / "config.json").read_text())
        self._never = torch.zeros(config.vocab_size, device=device)
        self._never[rules["suppress_ids"]] = -math.inf
        self._never[self._prompt[-1] :] = -math.inf  # timestamps
        self._never_first = self._never.clone()
        self._never_first[rules["suppress_ids_begin"]] = -math.inf
        self._filters = _mel_filters(bands, device)

    @torch.inference_mode()
    def __call__(self, waves: Sequence[Tensor]) -> list[tuple[str, float]]:
        """Return transcripts and the mean log-probability of their tokens."""
        states = self._model.model.encoder(self._features(waves).to(self._dtype))
        given = torch.tensor(self._prompt, device=self._device).expand(len(waves), -1)
        cache, ended = None, torch.zeros(len(waves), dtype=torch.bool, device=self._device)
        tokens: list[Tensor] = []
        likely = torch.zeros(len(waves), device=self._device)
        count = torch.zeros(len(waves), device=self._device)
        for step in range(MAX_WORD_TOKENS):
            out = self._model(encoder_outputs=states, decoder_input_ids=given, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logits = out.logits[:, -1].float() + (self._never if step else self._never_first)
            best, token = logits.log_softmax(-1).max(-1)
            likely, count = likely + best * ~ended, count + ~ended
            token = torch.where(ended, self._end, token)
            ended = ended | (token == self._end)
            tokens.append(token)
            given = token.unsqueeze(1)
            if step % 4 == 3 and bool(ended.all()):
                break
        written = torch.stack(tokens, 1).tolist()
        texts = [spoken(self._tokenizer.decode([t for t in row if t < self._end]).strip()) for row in written]
        return list(zip(texts, (likely / count).tolist(), strict=True))

    def _features(self, waves: Sequence[Tensor]) -> Tensor:
        """Return log mel spectra [B, bands, 3000] of recordings, padded to 30 s."""
        padded = torch.zeros(len(waves), HEARD_S * EAR_RATE, device=self._device)
        for row, wave in zip(padded, waves, strict=True):
            row[: len(wave)] = wave[: len(row)]
        window = torch.hann_window(WINDOW, device=self._device)
        power = torch.stft(padded, WINDOW, HOP, window=window, return_complex=True)[..., :-1].abs().square()
        mel = (self._filters.T @ power).clamp_min(1e-10).log10()
        return (torch.maximum(mel, mel.amax((1, 2), keepdim=True) - 8) + 4) / 4


def read_ctranslate2(path: Path) -> dict[str, Tensor]:
    """Read the float16 and float32 tensors of a CTranslate2 `model.bin`, format 6, by their names."""
    data, at = path.read_bytes(), 0

    def number(form: str) -> int:
        nonlocal at
        at += struct.calcsize(form)
        return int(struct.unpack_from(f"<{form}", data, at - struct.calcsize(form))[0])

    def text() -> str:
        nonlocal at
        size = number("H")
        at += size
        return data[at - size : at].rstrip(b"\0").decode()

    version, _, _ = number("I"), text(), number("I")
    if version != 6:
        raise ValueError(f"{path} has format {version}, not 6")
    tensors = {}
    for _ in range(number("I")):
        name, shape = text(), [number("I") for _ in range(number("B"))]
        kind, size = number("B"), number("I")
        if kind in (0, 4):
            array = np.frombuffer(data, np.float32 if kind == 0 else np.float16, size // (4 if kind == 0 else 2), at)
            tensors[name] = torch.from_numpy(array.reshape(shape).copy())
        at += size
    return tensors


_PARTS: tuple[tuple[str, str], ...] = (
    (r"^(encoder|decoder)/", r"model.\1."),
    (r"layer_(\d+)/", r"layers.\1."),
    (r"(encoder|decoder)\.embeddings/", r"\1.embed_tokens."),
    (r"position_encodings/encodings", "embed_positions.weight"),
    (r"self_attention/layer_norm/", "self_attn_layer_norm."),
    (r"attention/layer_norm/", "encoder_attn_layer_norm."),
    (r"ffn/layer_norm/", "final_layer_norm."),
    (r"ffn/linear_0/", "fc1."),
    (r"ffn/linear_1/", "fc2."),
    (r"self_attention/linear_0/", "self_attn.q_proj+k_proj+v_proj."),
    (r"self_attention/linear_1/", "self_attn.out_proj."),
    (r"attention/linear_0/", "encoder_attn.q_proj."),
    (r"attention/linear_1/", "encoder_attn.k_proj+v_proj."),
    (r"attention/linear_2/", "encoder_attn.out_proj."),
    (r"gamma$", "weight"),
    (r"beta$", "bias"),
    (r"/", "."),
)


def named_as_in_transformers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of CTranslate2's Whisper under the names of transformers; keys have no bias there."""
    found: dict[str, Tensor] = {}
    for old, tensor in tensors.items():
        name = old
        for pattern, put in _PARTS:
            name = re.sub(pattern, put, name)
        if "+" not in name:
            found[name] = tensor
            continue
        before, joined, kind = re.fullmatch(r"(.*\.)(\S+\+\S+)\.(\w+)", name).groups()  # type: ignore[union-attr]
        parts = joined.split("+")
        for part, piece in zip(parts, tensor.chunk(len(parts)), strict=True):
            if (part, kind) != ("k_proj", "bias"):
                found[f"{before}{part}.{kind}"] = piece
    found["proj_out.weight"] = found["model.decoder.embed_tokens.weight"]
    return found
