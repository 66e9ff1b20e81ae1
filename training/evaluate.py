"""Evaluate a voice: teacher, codec and model speak the same held-out sentences, and are measured alike.

python training/evaluate.py --checkpoint DIR --sentences 165 --output results

Prints a table and the gates of issue 3, then one JSON line; progress goes to stderr. Speaks on the CPU, one process a
core, so that figures depend on seed, checkpoint and library versions only. The exit code is 1 if a gate fails.
`codec_gate` is the part that the codec's training calls. How things are measured stands in `metrics/`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

if not __package__:  # started as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from training.metrics.lengths import is_runaway, is_truncated, length_ratio
from training.metrics.quality import overall_quality
from training.metrics.recognition import as_int16, recognise
from training.metrics.voice import VoicePrint, envelope_distance, voice_print
from training.metrics.words import Comparison, compare

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine
    from training.speech import Speaker

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "src" / "s1_mini" / "default_model"
RATE_HZ = 16_000  # of the teacher and of everything that is measured
WHAT = ("codec", "model", "clone", "speed")
MIX = ("plain",) * 10 + ("numbers", "names", "short") * 3 + ("long",)  # of every twenty sentences
LIMIT = 2.0  # of the teacher's length: a run-away is stopped there
SPEED_TEXTS = 6
SAMPLES = 4  # sentences whose recordings are kept
MEGABYTE = 1e6

Wave = NDArray[np.int16]
Floats = NDArray[np.float32]
T = TypeVar("T")


# ---- what is spoken -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One held-out sentence, who is to speak it, and what the reference of that speaker says."""

    kind: str
    text: str
    speaker: Speaker
    reference_text: str
    seed: int


@dataclass(frozen=True)
class Spoken:
    """One recording of a case."""

    wave: Wave  # 16 kHz
    stopped: bool = True  # by itself, not by a limit
    error: str = ""  # of the engine; the wave is empty then

    @property
    def seconds(self) -> float:
        """Length with its silences."""
        return len(self.wave) / RATE_HZ


def choose_cases(num_sentences: int, seed: int) -> list[Case]:
    """Choose held-out sentences in the proportions of `MIX`, as long as they last; 20 are a part of 60."""
    speech, texts = _teacher()
    shuffle = random.Random(seed).shuffle  # noqa: S311 - a choice, no secret
    sentences = {kind: list(given) for kind, given in texts.held_out_sentences().items()}
    speakers = list(speech.held_out_speakers())
    for given in (*sentences.values(), speakers):
        shuffle(given)
    references = sentences.pop("reference")
    chosen: list[tuple[str, str]] = []
    while len(chosen) < num_sentences and any(sentences.values()):
        chosen += [(kind, sentences[kind].pop()) for kind in MIX if sentences[kind]]
    return [
        Case(kind, text, speakers[i % len(speakers)], references[i % len(references)], seed=seed * 100_003 + i)
        for i, (kind, text) in enumerate(chosen[:num_sentences])
    ]


def _teacher() -> tuple[Any, Any]:
    """Import what the teacher needs, late: worker processes that only listen need none of it."""
    folder = str(Path(__file__).parent)
    if folder not in sys.path:
        sys.path.append(folder)  # speech.py and texts.py call each other by their bare names
    return import_module("training.speech"), import_module("training.texts")


# ---- in the worker processes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heard:
    """All that is measured on one recording alone."""

    comparison: Comparison
    hypothesis: str
    quality: float  # DNSMOS overall
    voice: VoicePrint


def speak_as_teacher(text: str, speaker: Speaker) -> Wave:
    """Let flite speak: the reference, and the measure of all other recordings."""
    wave: Wave = _teacher()[0].synthesise(text, speaker)
    return wave


def pass_through_codec(checkpoint: Path, wave: Wave) -> Spoken:
    """Encode and decode a recording, each at the codec's own rate."""
    import torch

    codec = _codec(checkpoint)
    with torch.inference_mode():
        codes = codec.encode(torch.from_numpy(resample(_to_float(wave), RATE_HZ, codec.sample_rate)))
        decoded = codec.decode(codes[None])[0].float().numpy()
    same = resample(decoded, codec.sample_rate, RATE_HZ)[: len(wave)]  # without what fills up the last frame
    return Spoken(as_int16(same))


def speak_as_model(checkpoint: Path, case: Case, teacher_s: float, reference: Wave | None) -> Spoken:
    """Let the engine speak, at its defaults, as the reference does or in the checkpoint's own voice."""
    from s1_mini.exceptions import S1MiniError

    engine = _engine(checkpoint)
    voice: dict[str, Any] = {}
    if reference is not None:
        voice["reference_audio"] = resample(_to_float(reference), RATE_HZ, engine.sample_rate)
        voice["reference_text"] = case.reference_text
    try:
        response = engine.generate(
            case.text, **voice, seed=case.seed, max_new_tokens=_max_frames(checkpoint, LIMIT * teacher_s)
        )
    except S1MiniError as error:
        return Spoken(np.zeros(0, np.int16), error=f"{type(error).__name__}: {error}")
    assert response.audio is not None
    wave = as_int16(resample(response.audio, response.sample_rate, RATE_HZ))
    return Spoken(wave, stopped=response.finish_reason == "stop")


def listen(text: str, wave: Wave) -> Heard:
    """Measure one recording of `text`."""
    hypothesis = recognise(wave) if len(wave) else ""
    return Heard(compare(text, hypothesis), hypothesis, overall_quality(wave), voice_print(wave))


def listen_to_words(text: str, wave: Wave) -> Comparison:
    """Measure intelligibility only."""
    return compare(text, recognise(wave))


def resample(wave: Floats, rate_hz: int, target_hz: int) -> Floats:
    """Bring a float wave from one rate to another."""
    import soxr

    return wave if rate_hz == target_hz else np.asarray(soxr.resample(wave, rate_hz, target_hz), np.float32)


def _to_float(wave: Wave) -> Floats:
    return wave.astype(np.float32) / np.float32(32768)


def _max_frames(checkpoint: Path, seconds: float) -> int:
    config = _codec(checkpoint).config
    return max(1, round(seconds * float(config.sample_rate / config.samples_per_frame)))


@cache
def _engine(checkpoint: Path) -> ProductionTTSEngine:
    import torch

    from s1_mini.config import EngineConfig
    from s1_mini.engine import ProductionTTSEngine

    torch.set_num_threads(1)  # one process a core
    engine = ProductionTTSEngine(
        EngineConfig(checkpoint_path=checkpoint, device="cpu", compile="false", request_timeout_s=900)
    )
    engine.start()
    return engine


@cache
def _codec(checkpoint: Path) -> Any:
    import torch

    from s1_mini.codecs.dac.weights import open_dac

    torch.set_num_threads(1)
    return open_dac(checkpoint, encodes=True, device=torch.device("cpu"))


@contextmanager
def worker_pool(num_workers: int | None = None) -> Iterator[Executor]:
    """Open a pool of fresh processes, one a core; spawned, since the caller may hold a GPU."""
    with ProcessPoolExecutor(num_workers or os.cpu_count() or 1, mp_context=get_context("spawn")) as pool:
        yield pool


# ---- the codec alone ------------------------------------------------------------------------------------------------


class CodecGate(NamedTuple):
    """Word error rates of the same sentences, before and after the codec."""

    teacher_wer: float
    codec_wer: float
    ratio: float  # codec_wer / teacher_wer
    teacher_cer: float
    codec_cer: float


def codec_gate(
    round_trip: Callable[[list[Wave]], Sequence[NDArray[np.floating[Any]]]],
    sentences: Sequence[str],
    speakers: Sequence[Speaker],
    *,
    sample_rate: int = RATE_HZ,
    pool: Executor | None = None,
) -> CodecGate:
    """Measure how much intelligibility a codec costs.

    `round_trip` gets the teacher's waves (int16, 16 kHz), one for each sentence, spoken by `speakers` in turn, and
    gives back float waves at `sample_rate`. Without `pool` it opens one of its own.
    """
    if pool is None:
        with worker_pool() as own:
            return codec_gate(round_trip, sentences, speakers, sample_rate=sample_rate, pool=own)
    turns = [speakers[i % len(speakers)] for i in range(len(sentences))]
    waves = list(pool.map(speak_as_teacher, sentences, turns))
    before = pool.map(listen_to_words, sentences, waves)  # works on while the codec does
    decoded = [as_int16(resample(np.asarray(w, np.float32), sample_rate, RATE_HZ)) for w in round_trip(waves)]
    after = list(pool.map(listen_to_words, sentences, decoded))
    (teacher_wer, teacher_cer), (codec_wer, codec_cer) = error_rates(before), error_rates(after)
    return CodecGate(teacher_wer, codec_wer, ratio_of(codec_wer, teacher_wer), teacher_cer, codec_cer)


def error_rates(comparisons: Iterable[Comparison]) -> tuple[float, float]:
    """Word and character error rate over all texts together: errors of all / words of all."""
    counts = np.array([(c.word_errors, c.words, c.character_errors, c.characters) for c in comparisons]).sum(axis=0)
    return float(counts[0] / counts[1]), float(counts[2] / counts[3])


def ratio_of(value: float, base: float) -> float:
    """`value` in units of `base`; equal zeros are 1."""
    if base:
        return value / base
    return 1.0 if value == 0 else float("inf")


# ---- rows of the table ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of the table; rates and shares are fractions of 1."""

    name: str
    sentences: int
    wer: float
    cer: float
    dnsmos: float  # mean
    length_ratio: float  # median, in units of the teacher's
    runaway: float
    truncated: float
    f0_within_10: float | None  # of the reference's median F0; None where no voice was asked for
    f0_within_15: float | None
    envelope_own_db: float | None  # median distance to the own reference, and to those of other flite voices
    envelope_other_db: float | None
    wer_by_kind: dict[str, float]
    failed: int  # requests that the engine refused or broke off


def make_row(
    name: str,
    cases: Sequence[Case],
    *,
    spoken: Sequence[Spoken],
    heard: Sequence[Heard],
    teacher: Sequence[Spoken],
    references: Sequence[VoicePrint] | None,
) -> Row:
    """Sum up the recordings of one speaker over all cases."""
    ratios = [length_ratio(one.seconds, model.seconds) for one, model in zip(spoken, teacher, strict=True)]
    wer, cer = error_rates(one.comparison for one in heard)
    kinds = {
        case.kind: [h.comparison for c, h in zip(cases, heard, strict=True) if c.kind == case.kind] for case in cases
    }
    return Row(
        name,
        len(cases),
        wer,
        cer,
        dnsmos=float(np.nanmean([one.quality for one in heard])) if any(len(s.wave) for s in spoken) else float("nan"),
        length_ratio=float(np.median(ratios)),
        runaway=_share(is_runaway(ratio, stopped=one.stopped) for ratio, one in zip(ratios, spoken, strict=True)),
        truncated=_share(is_truncated(ratio) for ratio in ratios),
        **_likeness(cases, [one.voice for one in heard], references),
        wer_by_kind={kind: error_rates(given)[0] for kind, given in sorted(kinds.items())},
        failed=sum(bool(one.error) for one in spoken),
    )


def _likeness(
    cases: Sequence[Case], voices: Sequence[VoicePrint], references: Sequence[VoicePrint] | None
) -> dict[str, float | None]:
    names = ("f0_within_10", "f0_within_15", "envelope_own_db", "envelope_other_db")
    if references is None:
        return dict.fromkeys(names)
    off = [abs(a.median_f0_hz / b.median_f0_hz - 1) for a, b in zip(voices, references, strict=True)]
    own = [envelope_distance(a, b) for a, b in zip(voices, references, strict=True)]
    other = [
        envelope_distance(voice, reference)
        for case, voice in zip(cases, voices, strict=True)
        for someone, reference in zip(cases, references, strict=True)
        if someone.speaker.voice != case.speaker.voice
    ]
    # NaN, where nothing is voiced, is within nothing.
    values = (_share(x <= 0.10 for x in off), _share(x <= 0.15 for x in off), _median(own), _median(other))
    return dict(zip(names, values, strict=True))


def _share(flags: Iterable[bool]) -> float:
    return float(np.mean(list(flags)))


def _median(values: Sequence[float]) -> float | None:
    known = [value for value in values if not np.isnan(value)]
    return float(np.median(known)) if known else None


# ---- gates ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate:
    """One figure of issue 3, and what it must be and should be; `at_most` or at least."""

    name: str
    value: float
    must: float | None  # None: nothing is asked, only aimed at
    aim: float
    at_most: bool = True

    @property
    def passed(self) -> bool:
        """Whether the figure is what it must be; NaN is not."""
        return self.must is None or self._keeps(self.must)

    @property
    def reaches_aim(self) -> bool:
        """Whether it is what it should be."""
        return self._keeps(self.aim)

    def _keeps(self, limit: float) -> bool:
        return self.value <= limit if self.at_most else self.value >= limit


def make_gates(rows: Mapping[str, Row], speed: Mapping[str, float] | None, weights_mb: float) -> list[Gate]:
    """Check what was measured; where the model speaks with and without reference, the worse counts."""
    teacher, gates = rows["teacher"], []
    models = [rows[name] for name in ("clone", "model") if name in rows]
    if codec := rows.get("codec"):
        gates.append(Gate("codec WER / teacher WER", ratio_of(codec.wer, teacher.wer), 1.3, 1.1))
    if models:
        wer = max(row.wer for row in models)
        gates += [
            Gate("model WER", wer, 0.20, 0.20),
            Gate("model WER / teacher WER", ratio_of(wer, teacher.wer), 2.5, 1.3),
            Gate("runaway or truncated", max(row.runaway + row.truncated for row in models), 0.03, 0.005),
            Gate(
                "DNSMOS / teacher DNSMOS", min(row.dnsmos for row in models) / teacher.dnsmos, 0.9, 0.95, at_most=False
            ),
        ]
    if clone := rows.get("clone"):
        gates.append(Gate("clones with F0 within 15 %", clone.f0_within_15 or 0.0, 0.90, 0.90, at_most=False))
        gates.append(Gate("clones with F0 within 10 %", clone.f0_within_10 or 0.0, None, 0.95, at_most=False))
    if speed:
        gates.append(Gate("real-time factor, 2 cores", speed["real_time_factor"], 0.5, 0.2))
        gates.append(Gate("first audio, 2 cores, ms", speed["first_audio_ms"], 400, 150))
    gates.append(Gate("weights, MB", weights_mb, 40, 15))
    return gates


# ---- one evaluation -------------------------------------------------------------------------------------------------


@dataclass
class Recordings:
    """Everything that was spoken and heard, by row."""

    cases: list[Case]
    references: list[Wave]
    spoken: dict[str, list[Spoken]]
    heard: dict[str, list[Heard]]
    reference_voices: list[VoicePrint]

    def rows(self) -> dict[str, Row]:
        """Sum up."""
        return {
            name: make_row(
                name,
                self.cases,
                spoken=spoken,
                heard=self.heard[name],
                teacher=self.spoken["teacher"],
                references=None if name == "model" else self.reference_voices,
            )
            for name, spoken in self.spoken.items()
        }


def record(checkpoint: Path, cases: list[Case], what: Sequence[str], pool: Executor) -> Recordings:
    """Let everyone speak and listen to all of it."""
    texts = [case.text for case in cases]
    teacher = _progress("teacher speaks", pool.map(speak_as_teacher, texts, [case.speaker for case in cases]))
    references = _progress(
        "references", pool.map(speak_as_teacher, [c.reference_text for c in cases], [c.speaker for c in cases])
    )
    spoken = {"teacher": [Spoken(wave) for wave in teacher]}
    if "codec" in what:
        spoken["codec"] = _progress("codec", pool.map(partial(pass_through_codec, checkpoint), teacher))
    lengths = [one.seconds for one in spoken["teacher"]]
    for name, voices in (("clone", references), ("model", [None] * len(cases))):
        if name in what:
            given = pool.map(partial(speak_as_model, checkpoint), cases, lengths, voices)
            spoken[name] = _progress(f"{name} speaks", given)
    heard = {
        name: _progress(f"listen to {name}", pool.map(listen, texts, [one.wave for one in recordings]))
        for name, recordings in spoken.items()
    }
    return Recordings(cases, references, spoken, heard, list(pool.map(voice_print, references)))


def measure_speed(checkpoint: Path, recordings: Recordings, seed: int) -> dict[str, float]:
    """Time the model on plain sentences with the first reference, in this process."""
    from s1_mini.types import Reference
    from training.metrics.speed import measure_speed as measure

    plain = [i for i, case in enumerate(recordings.cases) if case.kind == "plain"][:SPEED_TEXTS]
    longest_s = max(recordings.spoken["teacher"][i].seconds for i in plain)
    first = plain[0]
    wave = resample(_to_float(recordings.references[first]), RATE_HZ, _codec(checkpoint).sample_rate)
    reference = Reference(wave, recordings.cases[first].reference_text)
    frames = _max_frames(checkpoint, LIMIT * longest_s)
    texts = [recordings.cases[i].text for i in plain]
    return asdict(measure(checkpoint, texts, reference, seed=seed, max_new_tokens=frames))


def _progress(what: str, results: Iterable[T]) -> list[T]:
    started, last, done = time.monotonic(), 0.0, []
    for result in results:
        done.append(result)
        if time.monotonic() - last > 5:
            last = time.monotonic()
            _tell(f"{what}: {len(done)}")
    _tell(f"{what}: {len(done)} in {time.monotonic() - started:.1f} s")
    return done


def _tell(progress: str) -> None:
    sys.stderr.write(progress + "\n")
    sys.stderr.flush()


# ---- what is shown --------------------------------------------------------------------------------------------------

NAMES = {"teacher": "teacher", "codec": "codec", "clone": "model with reference", "model": "model without"}


def table(rows: Mapping[str, Row]) -> str:
    """Lay out the rows for a person."""
    head = (
        "",
        "WER %",
        "CER %",
        "DNSMOS",
        "length",
        "run away %",
        "cut off %",
        "F0 10 / 15 %",
        "envelope own / other dB",
    )
    lines = [head, *(_cells(row) for row in rows.values())]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    def pair(a: float | None, b: float | None, scale: float, digits: int) -> str:
        return " / ".join("–" if x is None else f"{scale * x:.{digits}f}" for x in (a, b))

    return (
        NAMES[row.name],
        f"{100 * row.wer:.1f}",
        f"{100 * row.cer:.1f}",
        f"{row.dnsmos:.2f}",
        f"{row.length_ratio:.2f}",
        f"{100 * row.runaway:.1f}",
        f"{100 * row.truncated:.1f}",
        pair(row.f0_within_10, row.f0_within_15, 100, 0),
        pair(row.envelope_own_db, row.envelope_other_db, 1, 1),
    )


def gate_lines(gates: Sequence[Gate]) -> str:
    """Lay out the gates for a person."""
    lines = []
    for gate in gates:
        verdict = ("aim " if gate.reaches_aim else "pass") if gate.passed else "FAIL"
        sign = "≤" if gate.at_most else "≥"
        must = "" if gate.must is None else f"must {sign} {gate.must:g}, "
        lines.append(f"{verdict}  {gate.name:<28}{gate.value:8.3f}  {must}aim {sign} {gate.aim:g}")
    return "\n".join(lines)


def write_output(folder: Path, recordings: Recordings, rows: Mapping[str, Row], line: str) -> None:
    """Write plots, samples, and what was heard of every sentence."""
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evaluation.json").write_text(line + "\n")
    sentences = [
        {
            "kind": case.kind,
            "text": case.text,
            "speaker": str(case.speaker),
            **{name: _sentence(recordings, name, i) for name in recordings.spoken},
        }
        for i, case in enumerate(recordings.cases)
    ]
    (folder / "sentences.json").write_text(json.dumps(sentences, indent=1) + "\n")
    for i in range(min(SAMPLES, len(recordings.cases))):
        waves = {"reference": recordings.references[i], **{n: s[i].wave for n, s in recordings.spoken.items()}}
        for name, wave in waves.items():
            if len(wave):
                soundfile.write(folder / f"{i:02d}_{name}.wav", wave, RATE_HZ)
    _draw(folder, recordings, rows)


def _sentence(recordings: Recordings, name: str, index: int) -> dict[str, Any]:
    spoken, heard = recordings.spoken[name][index], recordings.heard[name][index]
    return {
        "heard": heard.hypothesis,
        "word_errors": heard.comparison.word_errors,
        "words": heard.comparison.words,
        "seconds": round(spoken.seconds, 3),
        "stopped": spoken.stopped,
        "dnsmos": _rounded(heard.quality),
        "f0_hz": _rounded(heard.voice.median_f0_hz),
        **({"error": spoken.error} if spoken.error else {}),
    }


def _draw(folder: Path, recordings: Recordings, rows: Mapping[str, Row]) -> None:
    from training.metrics.plots import draw

    clones = [one.voice.median_f0_hz for one in recordings.heard.get("clone", ())]
    references = [voice.median_f0_hz for voice in recordings.reference_voices]
    teacher = recordings.spoken["teacher"]
    try:
        draw(
            folder,
            error_rates={NAMES[name]: (row.wer, row.cer) for name, row in rows.items()},
            f0_hz=[pair for pair in zip(references, clones, strict=False) if not np.isnan(pair).any()],
            length_ratios={
                NAMES[name]: [a.seconds / b.seconds for a, b in zip(recordings.spoken[name], teacher, strict=True)]
                for name in ("clone", "model")
                if name in recordings.spoken
            },
        )
    except ModuleNotFoundError as error:
        _tell(f"no plots: {error}; pip install -r requirements-evaluate.txt")


def json_line(facts: Mapping[str, Any], rows: Mapping[str, Row], speed: Any, gates: Sequence[Gate]) -> str:
    """Everything printed above, for a machine; NaN becomes null."""
    report = {
        **facts,
        "rows": {name: _known(asdict(row)) for name, row in rows.items()},
        "speed": speed and _known(speed),
        "gates": [_known({**asdict(g), "passed": g.passed, "reaches_aim": g.reaches_aim}) for g in gates],
    }
    return json.dumps(report)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _rounded(value) if isinstance(value, float) else value for key, value in values.items()}


def _rounded(value: float) -> float | None:
    return round(value, 4) if np.isfinite(value) else None


def describe(checkpoint: Path, num_sentences: int, seed: int) -> dict[str, Any]:
    """Tell what the figures were measured on and with."""
    return {
        "checkpoint": str(checkpoint),
        "sentences": num_sentences,
        "seed": seed,
        "commit": _commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {name: _version(name) for name in ("torch", "numpy", "pocketsphinx", "onnxruntime", "speechmos")},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def size_of_weights_mb(checkpoint: Path) -> float:
    """Size of the checkpoint's files in MB (10^6 bytes): weights, vocabulary, voices."""
    return sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file()) / MEGABYTE


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="Example: python training/evaluate.py --checkpoint build/voice --output build/evaluation",
    )
    parser.add_argument("--checkpoint", type=Path, default=SHIPPED, metavar="DIR", help="[the voice that ships]")
    parser.add_argument("--what", type=_what, default=WHAT, help=f"some of {','.join(WHAT)}; clone: with reference")
    parser.add_argument("--sentences", type=int, default=165, metavar="N", help="of 165 that were held out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="DIR", help="plots, samples and details go there")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; changes no figure")
    return parser.parse_args(arguments)


def _what(names: str) -> tuple[str, ...]:
    chosen = tuple(name.strip() for name in names.split(","))
    if unknown := sorted(set(chosen) - set(WHAT)):
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(WHAT)}")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one evaluation."""
    given = parse(arguments)
    started = time.monotonic()
    checkpoint = given.checkpoint.resolve()
    cases = choose_cases(given.sentences, given.seed)
    with worker_pool(given.workers) as pool:
        recordings = record(checkpoint, cases, given.what, pool)
    speed = measure_speed(checkpoint, recordings, given.seed) if "speed" in given.what else None

    rows = recordings.rows()
    gates = make_gates(rows, speed, size_of_weights_mb(checkpoint))
    facts = describe(checkpoint, len(cases), given.seed) | {"seconds": round(time.monotonic() - started, 1)}
    line = json_line(facts, rows, speed, gates)
    if given.output:
        write_output(given.output, recordings, rows, line)
    title = (
        f"{checkpoint.name}: {len(cases)} sentences, seed {given.seed}, commit {facts['commit']}, {facts['machine']}"
    )
    sys.stdout.write("\n\n".join((title, table(rows), gate_lines(gates), line)) + "\n")
    return 0 if all(gate.passed for gate in gates) else 1


if __name__ == "__main__":
    sys.exit(main())
