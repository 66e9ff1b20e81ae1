"""Compare the mel family with a plain baseline on one machine, to measure the gain of its techniques.

The baseline runs in float32, one request at a time, without a KV cache (every step recomputes its whole prefix,
causally, so that the result is the same), waits for the device after every request, and copies the encoded text, the
mel spectrogram and the audio to the host. Prenet dropout is off everywhere, so that waves can be compared. The text
determines the number of frames (fifteen characters per second), because a model with random weights may stop anywhere.
`transformers` is also measured, with a checkpoint in the published form. Every figure is measured except `derived`,
`GMAC` and GB/s, and the number of runs is printed.

s1-mini random-checkpoint speecht5 --family mel --size full --form published
python -m benchmark.mel_baseline --checkpoint speecht5 --output mel.json
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmark.command import columns, make_parser, numbers, report, run
from benchmark.sections import Clock, Section, Span, bottlenecks, trace
from s1_mini.bench.profile import SCHEDULING, Profiler
from s1_mini.bench.report import describe_machine, load_average, table
from s1_mini.capacity.cards import card_in
from s1_mini.config import EngineConfig
from s1_mini.core.messages import Begin, Conditions, Prefill
from s1_mini.core.speech import Joiner
from s1_mini.engine import ProductionTTSEngine
from s1_mini.families.mel.loaded import LoadedMel
from s1_mini.families.mel.voice import SPEAKER
from s1_mini.runtime.loader import LoadedCheckpoint, load
from s1_mini.runtime.stage import Stage
from s1_mini.text.tidy import tidied
from s1_mini.types import SamplingParams

TEXTS = (
    "Hello there!",
    "The train leaves at noon.",
    "Please bring an umbrella, it may rain.",
    "She opened the letter and read it twice in a rush.",
    "Our neighbours have painted their fence green again, and nobody knows why.",
    "When the bakery opens at six, a line of hungry people already reaches around the next corner.",
    "The lighthouse keeper wrote down every ship that passed, its flag and its heading, though nobody had asked for it "
    "in years.",
    "After the long winter the river rose over its banks, and for three days the only way to reach the school was by "
    "boat, which the children thought was the best thing that had ever happened.",
    "Nobody in the orchestra noticed that the second violin was missing until the slow movement began, because the "
    "conductor had been humming her part all evening, quietly at first and then, as the hall warmed up, rather loudly.",
    "In the small museum at the end of the street there is a clock that has not been wound for forty years, and beside "
    "it hangs a note in careful handwriting which says that it will be right twice a day, that this is more than can "
    "be said of most of us, and that visitors are kindly asked not to touch it at all.",
)
FIFTY = TEXTS[3]  # the text of fifty characters
REQUESTS = (1, 2, 4, 8, 80, 100)
CHARACTERS_A_SECOND = 15.0
SECTIONS = ("text_to_tokens", "encode_text", "decode_mel", "vocoder_inference", "synchronize", "to_cpu")
ENGINE_SECTIONS = {
    "text to prompt": "text_to_tokens",
    "decoder: prefill": "encode_text",
    "decoder: step": "decode_mel",
    "vocoder: step": "vocoder_inference",
}  # the engine's copies to the host, and its waits for them, are part of the steps
MAX_CHARACTERS = 20_000
WARM_UP_STEPS = 8
NEVER = 9.0  # stop threshold that no probability reaches


def steps_of(text: str, loaded: LoadedMel, most: int) -> int:
    """Return the decoder steps of a text, at most `most`."""
    vocoder, config = loaded.vocoder.config, loaded.model.config
    rate = vocoder.sample_rate / vocoder.samples_per_frame / config.frames_per_step
    return max(1, min(most, config.max_steps, round(len(text) / CHARACTERS_A_SECOND * rate)))


def num_bytes(module: torch.nn.Module) -> int:
    """Return the size of a module's weights."""
    return sum(weight.nbytes for weight in module.parameters())


class Baseline:
    """One request at a time, in float32, without any cache."""

    def __init__(self, loaded: LoadedMel) -> None:
        self._loaded, self._model = loaded, loaded.model
        self.vector = torch.zeros(self._model.config.speaker_size, device=self._model.device)

    def use_voice(self, vector: Tensor) -> None:
        """Set the speaker vector [N]."""
        self.vector = vector.float().to(self._model.device)

    @torch.inference_mode()
    def speak(self, text: str, steps: int, clock: Clock | None = None) -> np.ndarray:
        """Generate `steps` steps; return the samples [T]."""
        model, clock = self._model, clock or Clock(self._model.device, SECTIONS)
        tidy = tidied(text, MAX_CHARACTERS)
        tokens = clock.time(
            "text_to_tokens", lambda: torch.tensor([self._loaded.tokenizer.encode(tidy)], device=model.device)
        )
        network, vocoder = model.network, self._loaded.vocoder
        decoder_bytes = steps * sum(map(num_bytes, network.decoder.layers))
        encoded = clock.time("encode_text", lambda: model.encode(tokens), num_bytes(network.encoder))
        mel = clock.time("decode_mel", lambda: self.decode(encoded, steps), decoder_bytes)
        wave = clock.time("vocoder_inference", lambda: vocoder.speak(model.postnet(mel)), num_bytes(vocoder))
        clock.time("synchronize", clock.rest)
        host = clock.time("to_cpu", lambda: [each.float().cpu().numpy() for each in (encoded, mel, wave)])
        return faded(host[-1], self._loaded)

    @torch.inference_mode()
    def decode(self, encoded: Tensor, steps: int) -> Tensor:
        """Return the mel [F, M]; each step recomputes its whole prefix and the text's keys and values."""
        model, config = self._model, self._model.config
        inputs = torch.zeros(1, config.num_bins, device=model.device)
        frames: list[Tensor] = []
        for _ in range(steps):
            hidden = model.whole(inputs, self.vector, model.cross(encoded))
            made = model.heads(hidden[-1:])[0].view(config.frames_per_step, config.num_bins)
            frames.append(made)
            inputs = torch.cat((inputs, made[-1:]))
        return torch.cat(frames)


class Original:
    """The same weights in `transformers`, in float32, one request at a time, with a KV cache."""

    def __init__(self, directory: Path, loaded: LoadedMel) -> None:
        from transformers import SpeechT5ForTextToSpeech, SpeechT5HifiGan

        self._loaded, self._device = loaded, loaded.model.device
        model: Any = SpeechT5ForTextToSpeech.from_pretrained(directory)
        vocoder: Any = SpeechT5HifiGan.from_pretrained(directory / "vocoder")
        self._model, self._vocoder = model.to(self._device).eval(), vocoder.to(self._device).eval()
        self._model.speecht5.decoder.prenet._consistent_dropout = lambda x, _: x  # transformers has no option for this

    @staticmethod
    def obstacle(directory: Path | None) -> str | None:
        """Return why `transformers` cannot be measured with a checkpoint, or None if it can."""
        if importlib.util.find_spec("transformers") is None:
            return "transformers is not installed"
        if directory is None or not (directory / "pytorch_model.bin").is_file():
            return "the checkpoint has no pytorch_model.bin; transformers reads the published form only"
        return None

    @torch.inference_mode()
    def speak(self, text: str, steps: int, vector: Tensor) -> np.ndarray:
        """Generate `steps` steps; return the samples [T]."""
        tokens = torch.tensor([self._loaded.tokenizer.encode(tidied(text, MAX_CHARACTERS))], device=self._device)
        frames = steps * self._loaded.model.config.frames_per_step
        ratio = (frames + 0.01) / tokens.shape[1]  # transformers rounds down
        spoken = {"threshold": NEVER, "maxlenratio": ratio, "vocoder": self._vocoder}
        wave = self._model.generate_speech(tokens, vector.view(1, -1), **spoken).float().cpu().numpy()
        return faded(wave, self._loaded)


def faded(wave: np.ndarray, loaded: LoadedMel) -> np.ndarray:
    """Return a wave with both ends faded like those of the engine."""
    joiner = Joiner(sample_rate=loaded.vocoder.config.sample_rate)
    return np.concatenate((joiner.push(wave), joiner.finish()))


# Keys of the JSON and headers of the table.
LATENCIES = {
    "name": "one at a time",
    "runs": "runs",
    "average_ms": "average ms",
    "p95_ms": "p95 ms",
    "real_time_factor": "real-time factor",
    "processor_s_per_s": "processor s/s",
    "requests_per_s": "requests/s",
    "largest_difference": "difference",
}
BATCHES = {
    "requests": "requests at once",
    "rounds": "rounds",
    "baseline_average_ms": "baseline ms",
    "average_ms": "average ms",
    "p95_ms": "p95 ms",
    "baseline_requests_per_s": "baseline/s",
    "requests_per_s": "requests/s",
    "sound_s_per_s": "audio s/s",
    "gpu_use": "GPU use %",
}
GROWTH = {
    "part": "part",
    "count": "steps or tokens",
    "gmacs": "GMAC",
    "seconds": "seconds",
    "growth": "growth",
    "derived_growth": "derived",
}


def measure_each(
    name: str,
    texts: Sequence[str],
    rate: int,
    speak: Callable[[str], np.ndarray | Iterator[object]],
    expected: Sequence[np.ndarray] = (),
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Generate texts one after the other; return latencies, differences from the `expected` waves, and the waves.

    If `speak` returns an iterator, only its first item is timed, and the waves are the expected ones.
    """
    seconds, processor_s, waves = [], 0.0, []
    for text in texts:
        begun, computed = time.perf_counter(), time.process_time()
        made = speak(text)
        seconds.append(time.perf_counter() - begun)
        processor_s += time.process_time() - computed
        if isinstance(made, np.ndarray):
            waves.append(made)
        else:
            list(made)
    pairs = zip(waves, cycle(expected), strict=False)
    differences = [float(np.abs(ours - theirs).max()) for ours, theirs in pairs]
    if not waves:
        waves = [wave for wave, _ in zip(cycle(expected), texts, strict=False)]
    total, sound_s = sum(seconds), sum(map(len, waves)) / rate
    figures = {
        "name": name,
        "runs": len(seconds),
        "average_ms": 1e3 * statistics.mean(seconds),
        "p95_ms": 1e3 * float(np.percentile(seconds, 95)),
        "real_time_factor": total / sound_s,
        "processor_s_per_s": processor_s / sound_s,
        "requests_per_s": len(seconds) / total,
        "largest_difference": max(differences, default=None),
        "seconds": seconds,
        "sound_s": sound_s,
    }
    return figures, waves


def decoder_macs(config: Any, steps: int, tokens: int, *, cached: bool) -> float:
    """Return the number of multiplications of decoding, derived from steps S, tokens T, width d and L layers.

    P is the number for one step of the prenet, and the feed-forward width is 4 d. With caches: L (14 d² S + d S² +
    2 d S T + 2 d² T), and P S. Without caches, each step repeats the work of all earlier ones: L (14 d² S²/2 +
    d S³/3 · 2 + d S² T + 2 d² S T), and P S²/2.
    """
    width, layers = config.width, config.decoder_layers
    matrices = (
        6 * width**2 + 2 * width * config.decoder_ffn
    )  # per layer and step, without those for the text's keys and values
    sizes = [config.num_bins, *[config.prenet_units] * config.prenet_layers, width]
    prenet = sum(a * b for a, b in pairwise(sizes)) + width * width
    computed = steps if cached else steps * (steps + 1) / 2  # number of steps, including repeated ones
    met = (
        steps * (steps + 1) if cached else 2 * steps * (steps + 1) * (2 * steps + 1) / 6
    )  # keys and values that they read
    text = 2 * width * computed * tokens + 2 * width**2 * tokens * (1 if cached else steps)
    return layers * (matrices * computed + width * met + text) + prenet * computed


def encoder_macs(config: Any, tokens: int) -> float:
    """Return the multiplications of encoding: L (12 d² T + 2 d T² + d P T), with P relative distances."""
    width = config.width
    matrices = 4 * width**2 + 2 * width * config.encoder_ffn
    return config.encoder_layers * (
        matrices * tokens + 2 * width * tokens**2 + 2 * width * config.max_distance * tokens
    )


class Comparison:
    """Baseline and engine on one checkpoint."""

    def __init__(self, checkpoint: Path | None, device: str, precision: str, weights_dtype: str, most: int) -> None:
        common = {"checkpoint_path": checkpoint, "device": device}
        fixed = {"prenet_dropout": "off", "stop_threshold": NEVER, "max_length_ratio": 100.0}
        plain = load(EngineConfig(**common, **fixed, precision="float32", codec_dtype="float32")).loaded
        assert isinstance(plain, LoadedMel), "the checkpoint is not of SpeechT5"
        self.plain = plain
        limits = {"max_queue_size": 4096, "request_timeout_s": 3600.0, "chunk_length": 600}
        config = EngineConfig(**common, **fixed, **limits, precision=precision, weights_dtype=weights_dtype)
        self.most, self.device = most, self.plain.model.device
        self.baseline = Baseline(self.plain)
        self.obstacle = Original.obstacle(checkpoint)
        self.original = Original(checkpoint, self.plain) if checkpoint and self.obstacle is None else None
        self._stage: Stage | None = None
        self._clock = Clock(self.device, SECTIONS, ENGINE_SECTIONS)
        self.engine = ProductionTTSEngine(config)

    def start(self) -> None:
        """Start the engine; the baseline then uses the engine's default voice."""
        self.engine.start()
        voice = self._speaker().voices.default
        if voice is not None:
            self.baseline.use_voice(voice.tensors[SPEAKER])

    def _speaker(self) -> LoadedCheckpoint:
        running = self.engine._running
        assert running is not None, "it is not started"
        return running.speaker

    def _loaded(self) -> LoadedMel:
        loaded = self._speaker().loaded
        assert isinstance(loaded, LoadedMel)
        return loaded

    def steps(self, text: str) -> int:
        """Return the steps of a text."""
        return steps_of(text, self.plain, self.most)

    def latencies(self, texts: Sequence[str], repeats: int) -> tuple[list[dict[str, Any]], dict[str, Section]]:
        """Measure all texts one after the other, `repeats` times; the engine's responses both whole and streamed.

        Also return the baseline's sections of the last text.
        """
        clock, rate, runs = Clock(self.device, SECTIONS), self.engine.sample_rate, [*texts] * repeats

        def speak(text: str) -> np.ndarray:
            clock.forget()
            return self.baseline.speak(text, self.steps(text), clock)

        def original(text: str) -> np.ndarray:
            assert self.original is not None
            return self.original.speak(text, self.steps(text), self.baseline.vector)

        def generate(text: str) -> np.ndarray:
            made: np.ndarray = self.engine.generate(text, max_new_tokens=self.steps(text)).audio
            return made

        def stream(text: str) -> Iterator[object]:
            chunks = self.engine.stream(text, max_new_tokens=self.steps(text), chunk_profile="ttfa")
            next(chunk for chunk in chunks if len(chunk.audio))
            return chunks

        self.baseline.speak(texts[0], WARM_UP_STEPS)
        baseline, waves = measure_each("baseline", runs, rate, speak)
        found, waves = [baseline], waves[: len(texts)]
        if self.original is not None:
            self.original.speak(texts[0], WARM_UP_STEPS, self.baseline.vector)
            found.append(measure_each("transformers", runs, rate, original, waves)[0])
        for text in texts:
            generate(text)  # warm-up
        found.append(measure_each("engine", runs, rate, generate, waves)[0])
        found.append(measure_each("engine, first audio", runs, rate, stream, waves)[0])
        return found, clock.parts

    def batches(self, requests: Sequence[int], repeats: int) -> list[dict[str, Any]]:
        """Measure requests of fifty characters that arrive at once: the engine `repeats` times, the baseline once.

        The baseline generates one request after the other, so its result for N requests is that of the first N.
        """
        text, steps, found = FIFTY, self.steps(FIFTY), []
        begun, ends = time.perf_counter(), []
        for _ in range(max(requests)):
            wave = self.baseline.speak(text, steps)
            ends.append(time.perf_counter() - begun)
        sound_s = len(wave) / self.engine.sample_rate
        self.engine.generate_batch([text] * min(4, max(requests)), max_new_tokens=steps)
        for count in requests:
            rounds = [self.engine.generate_batch([text] * count, max_new_tokens=steps) for _ in range(repeats)]
            results = [item for made in rounds for item in made.results]
            latencies = [item.generation_time for item in results]
            total_s = sum(made.total_time for made in rounds)
            found.append(
                {
                    "requests": count,
                    "rounds": repeats,
                    "baseline_average_ms": 1e3 * statistics.mean(ends[:count]),
                    "baseline_requests_per_s": count / ends[count - 1],
                    "average_ms": 1e3 * statistics.mean(latencies),
                    "p95_ms": 1e3 * float(np.percentile(latencies, 95)),
                    "requests_per_s": repeats * count / total_s,
                    "sound_s_per_s": repeats * count * sound_s / total_s,
                    "failed": sum(not item.success for item in results),
                    "seconds": total_s / repeats,
                    "seconds_of_rounds": [made.total_time for made in rounds],
                    "gpu_use": None,
                }
            )
        return found

    def sections(self, text: str) -> dict[str, Section]:
        """Time the engine's sections of one request."""
        steps, loaded = self.steps(text), self._loaded()
        self._profiler = Profiler(self._speaker(), text, max_frames=steps, timer=self._clock)
        self._profiler.speak()
        self._clock.forget()
        self._profiler.speak()
        after = {name: self._clock.parts[name] for name in (*SECTIONS, SCHEDULING)}
        tokens = len(loaded.tokenizer.encode(text))
        seen = steps * (steps + 1) / 2 + steps * tokens
        after["decode_mel"].num_bytes = steps * loaded.num_bytes + seen * loaded.model.token_bytes
        after["encode_text"].num_bytes = num_bytes(loaded.model.network.encoder)
        after["vocoder_inference"].num_bytes = num_bytes(loaded.vocoder) * max(1, math.ceil(2 * steps / 64))
        return after

    def add_use(
        self, text: str, before: dict[str, Section], after: dict[str, Section], batches: list[dict[str, Any]]
    ) -> None:
        """Add how long the GPU computes, from separate runs, because torch's profiler would affect the timings."""
        if self.device.type != "cuda":
            return
        clock = Clock(self.device, SECTIONS)
        self._clock.forget()
        for sections, work, spans in (
            (before, lambda: self.baseline.speak(text, self.steps(text), clock), clock),
            (after, self._profiler.speak, self._clock),
        ):
            for name, busy_s in self._busy(work, spans).items():
                if name in sections:
                    sections[name].busy_s = busy_s
        for batch in batches:
            texts, whole = [FIFTY] * batch["requests"], Clock(self.device)
            ask = partial(self.engine.generate_batch, texts, max_new_tokens=self.steps(FIFTY))
            batch["gpu_use"] = self._busy(partial(whole.time, "", ask), whole).get("", 0.0) / batch["seconds"]

    def _busy(self, work: Callable[[], object], clock: Clock) -> dict[str, float]:
        """Run work again; return the seconds of kernels in the sections of `clock`."""

        def spans() -> Sequence[Span]:
            work()
            return clock.spans

        return trace(spans, self.device)

    def growth(self, steps: Sequence[int]) -> list[dict[str, Any]]:
        """Time decoding and encoding at several lengths, to be compared with the derived figures."""
        model, tokenizer = self.plain.model, self.plain.tokenizer
        config, ids, given = model.config, tokenizer.encode(FIFTY), tokenizer.encode((FIFTY + " ") * 12)
        lengths = [size for size in (75, 150, 300, 600) if size <= min(len(given), config.max_text)]

        def encode(count: int) -> None:
            model.encode(torch.tensor([given[:count]], device=self.device))

        with torch.inference_mode():
            encoded = model.encode(torch.tensor([ids], device=self.device))
            macs = partial(decoder_macs, config, tokens=len(ids))
            parts: Sequence[tuple[str, Sequence[int], Callable[..., float], Callable[..., object]]] = (
                ("decode, baseline", steps, partial(macs, cached=False), partial(self.baseline.decode, encoded)),
                ("decode, engine", steps, partial(macs, cached=True), partial(self._decode, ids)),
                ("encode", lengths, partial(encoder_macs, config), encode),
            )
            for length in lengths:
                encode(length)  # warm-up of each shape
            found: list[dict[str, Any]] = []
            for part, counts, derived, work in parts:
                work(4)  # warm-up
                for count in counts:
                    gmacs, seconds = derived(count) / 1e9, self._timed(work, count)
                    found.append({"part": part, "count": count, "gmacs": gmacs, "seconds": seconds})
        last: dict[str, dict[str, Any]] = {}
        for one in found:
            before = last.get(one["part"])
            one["growth"] = one["seconds"] / before["seconds"] if before else None
            one["derived_growth"] = one["gmacs"] / before["gmacs"] if before else None
            last[one["part"]] = one
        return found

    def _decode(self, ids: Sequence[int], steps: int) -> None:
        """Run the engine's own decoder alone, with its caches."""
        if self._stage is None:
            self._stage = self._loaded().chain(1, self.most).stages[0]
            self._stage.capture()
        conditions = Conditions(SamplingParams(), 0, 0, steps, {})
        self._stage.begin([Begin(0, 0, np.array(ids), None, 0, steps, 1, 0, len(ids), conditions)])
        self._stage.prefill([Prefill(0, 0, len(ids))])
        for _ in range(steps):
            self._stage.step([0], 1)()

    def _timed(self, work: Callable[[int], object], count: int) -> float:
        """Return the seconds of some work; on a CPU its CPU time, so that other work on the machine counts less."""
        on_cpu = self.device.type == "cpu"
        now, took = time.process_time if on_cpu else time.perf_counter, []
        self._clock.rest()
        for _ in range(1 if on_cpu else 2):
            begun = now()
            work(count)
            self._clock.rest()
            took.append(now() - begun)
        return min(took)


def tables(result: dict[str, Any], sections: Sequence[dict[str, Section]]) -> str:
    """Return all tables except that of the growth."""
    section_head = [
        "section",
        *(f"{when} {what}" for when in ("before", "after") for what in ("s", "MB", "use %", "GB/s")),
    ]
    rows = [
        [name, *(figure for each in sections for figure in each.get(name, Section()).row())]
        for name in (*SECTIONS, SCHEDULING)
    ]
    batches = [one | {"gpu_use": None if one["gpu_use"] is None else 100 * one["gpu_use"]} for one in result["batches"]]
    parts = [
        ", ".join(f"{name} {value}" for name, value in result["facts"].items()),
        table([*LATENCIES.values()], columns(result["latencies"], LATENCIES)),
        table([*BATCHES.values()], columns(batches, BATCHES)),
        table(section_head, rows),
        *(f"Bottlenecks {when}: " + "; ".join(result[f"bottlenecks_{when}"]) for when in ("before", "after")),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Measure, print tables and a line of JSON, and write the JSON to `--output` if given."""
    parser = make_parser(__doc__)
    parser.add_argument("--precision", default="auto", help="precision of the engine's model [auto]")
    parser.add_argument(
        "--weights-dtype", default="full", help="format of the engine's large weight matrices: full, int8 or fp8 [full]"
    )
    parser.add_argument(
        "--texts",
        type=numbers,
        default=range(1, 1 + len(TEXTS)),
        help="numbers of the texts to use, such as 1,2,10 [all]",
    )
    parser.add_argument(
        "--requests", type=numbers, default=REQUESTS, help="concurrent requests to measure, such as 1,2,4"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="number of runs per text, and per batch of the engine [3]"
    )
    parser.add_argument(
        "--growth",
        type=numbers,
        default=(50, 100, 200),
        help="numbers of steps at which to time the growth [50,100,200]",
    )
    parser.add_argument("--max-steps", type=int, default=1000, help="maximum number of steps per text [1000]")
    parser.add_argument("--output", type=Path, help="write the results to this JSON file")
    options = parser.parse_args()
    compared = Comparison(
        options.checkpoint, options.device, options.precision, options.weights_dtype, options.max_steps
    )
    if max(options.texts) > len(TEXTS):
        parser.error(f"--texts: numbers must be from 1 to {len(TEXTS)}")
    texts = [TEXTS[number - 1] for number in options.texts]
    compared.start()
    try:
        latencies, before = compared.latencies(texts, options.repeats)
        batches = compared.batches(options.requests, options.repeats)
        after = compared.sections(texts[-1])
        health = compared.engine.health_check()
        growth = compared.growth(options.growth)
        compared.add_use(texts[-1], before, after, batches)
    finally:
        compared.engine.stop()
    facts = describe_machine(str(compared.device)) | {
        "precision": health["precision"]["value"],
        "weights": health["weights_dtype"]["value"],
        "slots": health["slots"]["total"],
        "characters": [len(text) for text in texts],
        "steps": [compared.steps(text) for text in texts],
        "load_average": load_average(),
        "transformers": compared.obstacle or importlib.metadata.version("transformers"),
    }
    if compared.device.type == "cuda":
        facts["gpu_memory_gb"] = round(health["vram"]["used_gb"], 2)
        card = card_in(torch.cuda.get_device_name(compared.device))
        facts["gpu_peak_gb_s"] = None if card is None else card.bandwidth_gb_s
    both = {"before": before, "after": after}
    result = {
        "facts": facts,
        "latencies": latencies,
        "batches": batches,
        "sections": {when: {name: each.data() for name, each in found.items()} for when, found in both.items()},
        **{f"bottlenecks_{when}": bottlenecks(found) for when, found in both.items()},
        "growth": growth,
    }
    print(tables(result, (before, after)))
    report([*GROWTH.values()], columns(growth, GROWTH), result, options.output)


if __name__ == "__main__":
    sys.exit(run(main))
