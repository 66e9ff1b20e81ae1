"""Let flite, the teacher, speak: many speakers from four voices, and shards of utterances for training.

A speaker is one of flite's voices with its own pitch, intonation, formants and rate. flite is called as a library
through ctypes: its vocoder is stopped at once, the predicted pitch is moved, and the vocoder is run on that, so pitch
and formants are free of each other (the feature int_f0_target_mean does nothing for three of the four voices).
This file knows texts only as strings; the codec's and the model's stages call ``read_shard``.

The libraries are found in the folder FLITE_LIBRARY_DIR, or wherever the loader looks (LD_LIBRARY_PATH, the system).
Debian: libflite1 2.2, and libasound2 which it is linked to; the command flite is not needed.
"""

import argparse
import ctypes
import functools
import multiprocessing
import os
import signal
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soxr
from numpy.typing import NDArray

if not __package__:  # started as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from training import texts

SAMPLE_RATE = 16_000
LEADING_S = 0.1  # silence before the first sound of every utterance
TRAILING_S = 0.2  # and after the last one
SPEECH_RMS = 0.08  # of full scale, over the parts that are not silent: -22 dBFS, peaks near 0.5
MAX_PEAK = 0.95
MIN_S, MAX_S = 0.2, 16.0  # shorter or longer utterances are left out
UTTERANCES_PER_SPEAKER = 8  # spoken in a row, so that a voice can be cloned from its other utterances
UTTERANCES_PER_SHARD = 512
UNSHIFTED_SHARE = 0.3  # the teacher is clearest as it is
REPORT_S = 10.0
MAX_DEATHS = 20  # of one worker: then it is not the texts

Samples = NDArray[np.int16]


class SpeechError(RuntimeError):
    """flite is missing, or made nothing of a text."""


@dataclass(frozen=True)
class Teacher:
    """One flite voice and the ranges of a speaker's factors in which pocketsphinx still understands it.

    ``held_out`` is the band of formant factors that only held-out speakers have. ``share`` is the part of all speakers
    that this voice gets.
    """

    name: str
    share: float
    pitch: tuple[float, float]
    formants: tuple[float, float]
    held_out: tuple[float, float]
    stretch: float = 1.0  # the voice's own duration_stretch


# Word error in %, 30 plain sentences of held_out.txt, by formants at the voice's own pitch:
#         0.84  0.88  0.92  0.96  1.00  1.03  1.06  1.08  1.12  1.16
# slt      2.1   3.8   4.2   4.2   6.3  11.0        27.0  43.0
# rms                  6.8   4.6   3.4         4.2         5.9
# awb           28.7  13.5   8.0   7.6               7.6   8.9  10.5
# kal16               20.7  13.1   8.4         7.6         8.0
# So a woman may become lower, men higher. Pitch costs little: slt 7.2 at 0.65 and 9.3 at 1.6; rms 3.4 at 0.8 and 3.8
# at 1.9; awb 5.1 at 0.7 and 8.4 at 1.6; kal16 8.4 at 0.85 and 7.2 at 1.7. Both at once: slt 3.0 at pitch 0.6 with
# formants 0.88; rms 5.5 at 1.5 with 1.08 and 5.9 at 0.8 with 0.94; awb 11.8 at 1.5 with 1.12.
TEACHERS = (
    Teacher("slt", 0.32, (0.62, 1.50), (0.84, 1.00), (0.91, 0.93)),  # median F0 107 to 258 Hz
    Teacher("rms", 0.28, (0.82, 1.80), (0.95, 1.10), (1.03, 1.05)),  # 84 to 184 Hz
    Teacher("awb", 0.26, (0.70, 1.55), (0.97, 1.09), (1.03, 1.05)),  # 91 to 201 Hz
    Teacher("kal16", 0.14, (0.95, 1.70), (1.00, 1.11), (1.05, 1.07), stretch=1.1),  # 86 to 158 Hz
)
_TEACHER_BY_NAME = {teacher.name: teacher for teacher in TEACHERS}
INTONATION = (0.7, 1.3)  # rms 3.8 % at 1.5, slt 7.6 %, awb 7.2 %
RATE = (0.88, 1.12)  # rms 3.4 % at 1.18 and 4.2 % at 0.85, slt 8.0 % and awb 6.3 % at 1.18


@dataclass(frozen=True)
class Speaker:
    """A voice of flite and four factors upon it; 1 leaves the voice as it is."""

    voice: str
    pitch: float = 1.0  # of the mean F0
    intonation: float = 1.0  # of the range of F0 around its mean, in log frequency
    formants: float = 1.0
    rate: float = 1.0  # of speaking: 1.1 is faster


class Utterance(NamedTuple):
    """One spoken text of a shard; the samples are a view into the shard's file."""

    text: str
    samples: Samples
    speaker: int  # index for ``speaker``


def speaker(index: int) -> Speaker:
    """Make the training speaker of this index: the same for ever, never one of the held-out region."""
    random = np.random.default_rng([0x5EA4, index])
    teacher = TEACHERS[int(random.choice(len(TEACHERS), p=[t.share for t in TEACHERS]))]
    if random.random() < UNSHIFTED_SHARE:
        return Speaker(teacher.name)
    formants = _log_uniform(random, teacher.formants)
    while teacher.held_out[0] <= formants <= teacher.held_out[1]:
        formants = _log_uniform(random, teacher.formants)
    return Speaker(
        teacher.name,
        pitch=_log_uniform(random, teacher.pitch),
        intonation=_log_uniform(random, INTONATION),
        formants=formants,
        rate=_log_uniform(random, RATE),
    )


def held_out_speakers() -> list[Speaker]:
    """List 16 speakers, four of each voice from low to high, whose formants no training speaker has."""
    speakers = []
    for teacher in TEACHERS:
        low, high = teacher.pitch
        for place, rate in zip((0.1, 0.37, 0.63, 0.9), (1.05, 0.95, 1.0, 0.97), strict=True):
            formants = (teacher.held_out[0] * teacher.held_out[1]) ** 0.5
            speakers.append(Speaker(teacher.name, low * (high / low) ** place, 1.0, formants, rate))
    return speakers


def _log_uniform(random: np.random.Generator, bounds: tuple[float, float]) -> float:
    return float(np.exp(random.uniform(np.log(bounds[0]), np.log(bounds[1]))))


def synthesise(text: str, speaker: Speaker) -> Samples:
    """Speak a text: int16, mono, 16 kHz, at the common level, with LEADING_S and TRAILING_S of silence around it."""
    teacher = _TEACHER_BY_NAME[speaker.voice]
    spoken = _flite().speak(
        texts.spoken(text),
        speaker.voice,
        stretch=teacher.stretch * speaker.formants / speaker.rate,
        pitch=speaker.pitch / speaker.formants,  # the resampling below moves the pitch too
        intonation=speaker.intonation,
    )
    wave = spoken.astype(np.float32) / 32768
    if speaker.formants != 1:
        wave = soxr.resample(wave, SAMPLE_RATE * speaker.formants, SAMPLE_RATE, quality="HQ")
    return _trimmed_and_levelled(wave)


def _trimmed_and_levelled(wave: NDArray[np.floating]) -> Samples:
    hop = SAMPLE_RATE // 100
    levels_T = np.sqrt(np.mean(wave[: len(wave) // hop * hop].reshape(-1, hop) ** 2, axis=1))  # noqa: N806
    if not len(levels_T) or levels_T.max() < 1e-3:
        raise SpeechError("flite made no sound of this text")
    loud = np.flatnonzero(levels_T > 0.01 * levels_T.max())  # -40 dB
    speech = wave[loud[0] * hop : (loud[-1] + 1) * hop]
    active_rms = np.sqrt(np.mean(levels_T[levels_T > 0.1 * levels_T.max()] ** 2))
    gain = min(SPEECH_RMS / active_rms, MAX_PEAK / np.abs(speech).max())
    before, after = int(LEADING_S * SAMPLE_RATE), int(TRAILING_S * SAMPLE_RATE)
    start, stop = loud[0] * hop - before, (loud[-1] + 1) * hop + after
    kept = wave[max(start, 0) : stop]
    padded = np.pad(kept, (max(-start, 0), max(stop - len(wave), 0)))
    levelled: Samples = np.round(padded * (gain * 32767)).astype(np.int16)
    return levelled


# ---- flite by ctypes ------------------------------------------------------------------------------------------------


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class _Track(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("num_frames", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("times", ctypes.POINTER(ctypes.c_float)),
        ("frames", ctypes.POINTER(ctypes.POINTER(ctypes.c_float))),
    )


class _Voice(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("features", ctypes.c_void_p))


class _Streaming(ctypes.Structure):
    _fields_ = (
        ("min_buffer", ctypes.c_int),
        ("callback", ctypes.c_void_p),
        ("user_data", ctypes.c_void_p),
        ("utterance", ctypes.c_void_p),
        ("item", ctypes.c_void_p),
    )


_P, _S = ctypes.c_void_p, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "audio_streaming_info_val": (_P, [_P]),
    "delete_track": (None, [_P]),
    "delete_utterance": (None, [_P]),
    "delete_wave": (None, [_P]),
    "feat_set": (None, [_P, _S, _P]),
    "feat_val": (_P, [_P, _S]),
    "flite_feat_set_float": (None, [_P, _S, ctypes.c_float]),
    "flite_init": (ctypes.c_int, []),
    "flite_synth_text": (_P, [_S, _P]),
    "flite_text_to_wave": (_P, [_S, _P]),
    "mlpg": (_P, [_P, _P]),
    "mlsa_resynthesis": (_P, [_P, _P, _P, _P, ctypes.c_int]),
    "val_cg_db": (_P, [_P]),
    "val_track": (_P, [_P]),
}


class _Flite:
    """flite's library with its voices loaded; one per process, since it keeps its state in globals."""

    DIPHONE_F0 = (95.0, 11.0)  # mean and deviation in Hz of kal16, flite's defaults

    def __init__(self) -> None:
        if "FLITE_LIBRARY_DIR" in os.environ:
            _load("libasound.so.2")  # flite is linked to it and finds it when it is here already
        library: Any = _load("libflite.so.1")
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        for name in ("usenglish", "cmulex"):
            _load(f"libflite_{name}.so.1")
        library.flite_init()
        self._library = library
        self._seed_noise = ctypes.CDLL(None).srand
        # A callback that says stop: flite predicts everything and vocodes next to nothing.
        stop_type = ctypes.CFUNCTYPE(ctypes.c_int, _P, ctypes.c_int, ctypes.c_int, ctypes.c_int, _P)
        self._stop = stop_type(lambda *_: 1)
        self._streaming = _Streaming(256, ctypes.cast(self._stop, _P), None, None, None)
        self._voices = {teacher.name: self._voice(teacher.name) for teacher in TEACHERS}

    def _voice(self, name: str) -> int:
        register = getattr(_load(f"libflite_cmu_us_{name}.so.1"), f"register_cmu_us_{name}")
        register.restype, register.argtypes = _P, [_S]
        voice: int = register(None)
        if name != "kal16":
            streaming = self._library.audio_streaming_info_val(ctypes.byref(self._streaming))
            self._library.feat_set(_features(voice), b"streaming_info", streaming)
        return voice

    def speak(self, text: str, voice: str, *, stretch: float, pitch: float, intonation: float) -> Samples:
        """Return flite's samples for this text."""
        pointer = self._voices[voice]
        features = _features(pointer)
        encoded = text.encode()
        self._library.flite_feat_set_float(features, b"duration_stretch", stretch)
        self._seed_noise(zlib.crc32(encoded))
        if voice == "kal16":
            mean, deviation = self.DIPHONE_F0
            self._library.flite_feat_set_float(features, b"int_f0_target_mean", mean * pitch)
            self._library.flite_feat_set_float(features, b"int_f0_target_stddev", deviation * pitch * intonation)
            return self._samples(self._library.flite_text_to_wave(encoded, pointer))
        utterance = self._library.flite_synth_text(encoded, pointer)
        if not utterance:
            raise SpeechError("flite made nothing of this text")
        try:
            return self._vocode(utterance, pitch, intonation)
        finally:
            self._library.delete_utterance(utterance)

    def _vocode(self, utterance: int, pitch: float, intonation: float) -> Samples:
        library = self._library
        features = ctypes.cast(utterance, ctypes.POINTER(_P))[0]
        track = library.val_track(library.feat_val(features, b"param_track"))
        strengths = library.val_track(library.feat_val(features, b"str_track"))
        voice_data = library.val_cg_db(library.feat_val(features, b"cg_db"))
        _move_pitch(ctypes.cast(track, ctypes.POINTER(_Track)).contents, pitch, intonation)
        smooth = library.mlpg(track, voice_data)
        try:
            return self._samples(library.mlsa_resynthesis(smooth, strengths, voice_data, None, 0))
        finally:
            library.delete_track(smooth)

    def _samples(self, pointer: int | None) -> Samples:
        if not pointer:
            raise SpeechError("flite made nothing of this text")
        wave = ctypes.cast(pointer, ctypes.POINTER(_Wave)).contents
        samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).copy() if wave.num_samples > 0 else None
        self._library.delete_wave(pointer)
        if samples is None:
            raise SpeechError("flite made no sound of this text")
        return samples


@functools.cache
def _flite() -> _Flite:
    return _Flite()


def _load(name: str) -> ctypes.CDLL:
    folder = os.environ.get("FLITE_LIBRARY_DIR")
    try:
        return ctypes.CDLL(str(Path(folder) / name) if folder else name, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise SpeechError(
            f"{name} cannot be loaded ({error}). Install Debian's flite, or unpack libflite1 and libasound2 and "
            "set FLITE_LIBRARY_DIR to a folder that holds the libraries of both."
        ) from error


def _features(voice: int) -> int | None:
    features: int | None = ctypes.cast(voice, ctypes.POINTER(_Voice)).contents.features
    return features


def _move_pitch(track: Any, pitch: float, intonation: float) -> None:
    """Scale the F0, channel 0 of flite's parameters, and its excursions from the utterance's mean; 0 is unvoiced."""
    frames = track.frames
    f0_T = np.array([frames[i][0] for i in range(track.num_frames)])  # noqa: N806
    voiced = np.flatnonzero(f0_T > 0)
    if not len(voiced):
        return
    mean = f0_T[voiced].mean()
    moved = pitch * mean * (f0_T[voiced] / mean) ** intonation
    for i, value in zip(voiced.tolist(), moved.tolist(), strict=True):
        frames[i][0] = value


# ---- shards ---------------------------------------------------------------------------------------------------------


def read_shard(path: Path) -> list[Utterance]:
    """Map a shard into memory and list its utterances; the samples are read from the disk when they are used."""
    arrays = {name: _mapped(path, name) for name in ("samples", "lengths", "text", "text_lengths", "speaker")}
    ends = np.cumsum(arrays["lengths"], dtype=np.int64)
    text_ends = np.cumsum(arrays["text_lengths"], dtype=np.int64)
    samples, text = arrays["samples"], arrays["text"].tobytes()
    return [
        Utterance(
            text[text_end - text_length : text_end].decode(), samples[end - length : end], int(arrays["speaker"][i])
        )
        for i, (end, length, text_end, text_length) in enumerate(
            zip(ends, arrays["lengths"], text_ends, arrays["text_lengths"], strict=True)
        )
    ]


def _mapped(path: Path, name: str) -> NDArray[Any]:
    """Map one array of an uncompressed .npz; numpy itself would read it whole."""
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
        header = member.tell()
        offset = archive.getinfo(f"{name}.npy").header_offset
    with path.open("rb") as file:
        file.seek(offset + 26)  # a zip member: 30 bytes, of which the last four are the lengths of name and extra
        name_length, extra_length = np.frombuffer(file.read(4), "<u2").tolist()
    if not shape[0]:
        return np.empty(0, dtype)
    start = offset + 30 + name_length + extra_length + header
    return np.memmap(path, dtype=dtype, mode="r", offset=start, shape=shape)


def _write_shard(path: Path, utterances: Sequence[Utterance]) -> None:
    encoded = [utterance.text.encode() for utterance in utterances]
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        np.savez(
            file,
            samples=np.concatenate([utterance.samples for utterance in utterances]),
            lengths=np.array([len(utterance.samples) for utterance in utterances], np.int32),
            text=np.frombuffer(b"".join(encoded), np.uint8),
            text_lengths=np.array([len(text) for text in encoded], np.int32),
            speaker=np.array([utterance.speaker for utterance in utterances], np.int32),
        )
    temporary.rename(path)


# ---- making ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What to make. A shard's content depends on seed, shard_size and its number alone, so a run can be resumed."""

    texts: Path
    output: Path
    num_workers: int
    shard_size: int = UTTERANCES_PER_SHARD
    max_utterances: int | None = None
    max_seconds: float | None = None
    seed: int = 0

    def shard(self, number: int) -> Path:
        """Name the file of this shard."""
        return self.output / f"shard_{number:05d}.npz"

    def size(self, number: int) -> int:
        """Count the utterances of this shard; the last one may be short, those after it are empty."""
        if self.max_utterances is None:
            return self.shard_size
        return max(0, min(self.shard_size, self.max_utterances - number * self.shard_size))


@dataclass
class _Progress:
    """What one worker tells the parent, in shared memory; all but ``skip`` are written by the worker."""

    skip: set[tuple[int, int]]  # shard and place of texts that killed a worker; written by the parent
    shard: "Synchronized[int]"  # being made
    place: "Synchronized[int]"  # in the stream of this shard: what was being spoken when a worker died
    num_utterances: "Synchronized[int]"  # in finished shards
    num_samples: "Synchronized[int]"
    num_utterances_begun: "Synchronized[int]"  # in the shard being made
    num_samples_begun: "Synchronized[int]"
    num_skipped: "Synchronized[int]"


def make(plan: Plan) -> int:
    """Make shards until the plan is fulfilled or SIGTERM comes; return the number of utterances made now."""
    plan.output.mkdir(parents=True, exist_ok=True)
    for left_over in plan.output.glob("shard_*.tmp"):
        left_over.unlink()
    context = multiprocessing.get_context("spawn")
    deadline = context.Value("d", time.time() + (plan.max_seconds if plan.max_seconds is not None else float("inf")))
    progress = []
    for worker in range(plan.num_workers):
        shard, place, *counts = (context.Value("q", first) for first in (worker, 0, 0, 0, 0, 0, 0))
        progress.append(_Progress(set(), shard, place, *counts))

    def start(worker: int) -> Any:
        process = context.Process(target=_work, args=(plan, progress[worker], deadline), daemon=True)
        process.start()
        return process

    terminated_before = _end_at_sigterm(deadline)
    begun = reported = time.time()
    workers = [start(worker) for worker in range(plan.num_workers)]
    while any(process.is_alive() for process in workers):
        time.sleep(0.2)
        for i, process in enumerate(workers):
            if process.exitcode and time.time() < deadline.value:
                _forgive(progress[i], f"worker {i} died ({process.exitcode})")
                workers[i] = start(i)
        if time.time() - reported > REPORT_S:
            reported = time.time()
            _report(progress, reported - begun)
    signal.signal(signal.SIGTERM, terminated_before)
    return _report(progress, time.time() - begun)


def _forgive(progress: _Progress, death: str) -> None:
    """Have the text left out that a worker died of."""
    killer = progress.shard.value, progress.place.value
    if killer in progress.skip or len(progress.skip) == MAX_DEATHS:
        raise SpeechError(f"{death} again and again; its own error stands above")
    progress.skip.add(killer)
    _say(f"{death} at shard, place {killer}: started again without that text")


def _report(progress: Sequence[_Progress], elapsed_s: float) -> int:
    num_utterances = sum(one.num_utterances.value + one.num_utterances_begun.value for one in progress)
    num_samples = sum(one.num_samples.value + one.num_samples_begun.value for one in progress)
    _say(
        f"{elapsed_s:.0f} s: {num_utterances} utterances, {num_samples / SAMPLE_RATE / 3600:.2f} h, "
        f"{num_utterances / elapsed_s:.1f} utterances/s, {sum(one.num_skipped.value for one in progress)} skipped"
    )
    return num_utterances


def _say(line: str) -> None:
    print(line, flush=True)


def _work(plan: Plan, progress: _Progress, deadline: "Synchronized[float]") -> None:
    _end_at_sigterm(deadline)
    corpora = texts.load(plan.texts)
    number = progress.shard.value
    while plan.size(number) and not _is_over(deadline):
        progress.shard.value = number
        progress.num_utterances_begun.value = progress.num_samples_begun.value = 0
        if not plan.shard(number).exists():
            spoken = list(_shard_utterances(plan, number, corpora, progress, deadline))
            if spoken:
                _write_shard(plan.shard(number), spoken)
            progress.num_utterances.value += progress.num_utterances_begun.value
            progress.num_samples.value += progress.num_samples_begun.value
            progress.num_utterances_begun.value = progress.num_samples_begun.value = 0
        number += plan.num_workers


def _shard_utterances(
    plan: Plan, number: int, corpora: texts.Corpora, progress: _Progress, deadline: "Synchronized[float]"
) -> Iterator[Utterance]:
    # Every shard has its own piece of the stream, a little longer than needed: skipped texts are replaced by the next.
    stride = plan.shard_size + plan.shard_size // 8
    stream = texts.utterances(plan.seed, corpora, start=number * stride)
    num_spoken = 0
    for place, text in enumerate(stream):
        if num_spoken == plan.size(number) or place == stride or _is_over(deadline):
            return
        index = (number * plan.shard_size + num_spoken) // UTTERANCES_PER_SPEAKER
        progress.place.value = place
        samples = None if (number, place) in progress.skip else _synthesised_or_none(text, speaker(index))
        if samples is None:
            progress.num_skipped.value += 1
            continue
        num_spoken += 1
        progress.num_utterances_begun.value += 1
        progress.num_samples_begun.value += len(samples)
        yield Utterance(text, samples, index)


def _end_at_sigterm(deadline: "Synchronized[float]") -> Any:
    """Let SIGTERM end the work in order, in the parent and, since it may be sent to all of a group, in the workers."""

    def end(*_: object) -> None:
        deadline.get_obj().value = 0  # without the lock, which the interrupted code may hold

    return signal.signal(signal.SIGTERM, end)


def _is_over(deadline: "Synchronized[float]") -> bool:
    parent = multiprocessing.parent_process()
    return time.time() > deadline.value or (parent is not None and not parent.is_alive())


def _synthesised_or_none(text: str, who: Speaker) -> Samples | None:
    if text.isspace() or not text:
        return None
    try:
        samples = synthesise(text, who)
    except SpeechError:
        return None
    spoken_s = len(samples) / SAMPLE_RATE - LEADING_S - TRAILING_S
    return samples if MIN_S <= spoken_s <= MAX_S - LEADING_S - TRAILING_S else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python training/speech.py make …``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("make", help="write shards of spoken utterances")
    verb.add_argument("--texts", type=Path, required=True, help="the file that texts.py prepare wrote")
    verb.add_argument("--output", type=Path, required=True, help="folder of the shards; those in it are kept")
    verb.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    verb.add_argument("--shard-size", type=int, default=UTTERANCES_PER_SHARD)
    verb.add_argument("--seed", type=int, default=0)
    limit = verb.add_mutually_exclusive_group()
    limit.add_argument("--seconds", type=float, help="stop after this time; a shard begun is written short")
    limit.add_argument("--count", type=int, help="stop when there are so many utterances")
    given = parser.parse_args(arguments)
    plan = Plan(given.texts, given.output, given.workers, given.shard_size, given.count, given.seconds, given.seed)
    _flite()  # says at once, in one sentence, what is missing
    make(plan)
    return 0


if __name__ == "__main__":
    sys.exit(main())
