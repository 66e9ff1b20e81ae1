"""How time and memory grow along each axis: text, audio, rows and caches, before and after each optimisation.

Every point is the median of several; the points of an axis are measured in turn, so that what else the machine does
falls on all of them alike. The predictions are counts (`cost.py`), not fits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from s1_mini.bench.axis import Axis, between, floats, powers
from s1_mini.bench.meter import Meter, Tell
from s1_mini.bench.profile import find_reference, make_sampling, read
from s1_mini.capacity.sizes import Cost, total
from s1_mini.codecs.dac.model import DacStream
from s1_mini.config import EngineConfig
from s1_mini.exceptions import CapacityError
from s1_mini.families.base import Prefix, Prompt
from s1_mini.families.s1.costs import Costs
from s1_mini.families.s1.loaded import as_s1
from s1_mini.families.s1.model import S1State
from s1_mini.runtime.loader import Speaker
from s1_mini.runtime.model_runner import SPAN
from s1_mini.runtime.scheduler import PREFILL_COLUMNS
from s1_mini.text.split import split

LARGEST = 2048  # columns or frames
ROWS = (1, 2, 4, 8, 16)
CHARACTERS = (20, 50, 100, 200, 500, 1000, 2000)
REFERENCE_S = (1, 2, 4, 8)
CHUNKS = (1, 2, 4, 8, 16, 25)  # frames
TEXT = "The children were playing in the garden behind the house. "

ONE, NONE = (1.0, 1.0), (0.0, 0.0)

Count = Callable[[Sequence[Prompt]], Cost]


class Sweep:
    """The axes of one checkpoint."""

    def __init__(self, speaker: Speaker, *, repeats: int, largest: int = LARGEST) -> None:
        self._speaker, self._loaded, self._repeats = speaker, as_s1(speaker.loaded), repeats
        self._model = self._loaded.model
        self._voice, self._reference = find_reference(speaker)
        self._codec = self._loaded.codec
        self._costs = Costs(
            self._model.network, self._codec, block=PREFILL_COLUMNS, kv_item=self._model.kv_dtype.itemsize
        )
        self._columns = min(largest, self._model.max_columns)
        self._frames = min(largest // 8, self._codec.max_frames, self._columns - SPAN)
        # On one CPU thread its own time is counted: who else computes on the machine does not slow that down.
        alone = self._model.device.type == "cpu" and torch.get_num_threads() == 1
        self.clock = time.thread_time if alone else time.perf_counter
        self._chunk_length = EngineConfig.model_fields["chunk_length"].default

    @torch.inference_mode()
    def run(self, tell: Tell = lambda _: None) -> list[Axis]:
        """Measure all axes; `tell` hears which comes next."""
        axes: list[Axis] = []
        for part in (
            self.text, self.prefix, self.span, self.rows, self.audio, self.chunks, self.reference, self.memory
        ):  # fmt: skip
            tell(f"growth: {part.__name__}")
            axes += part()
        return axes

    def text(self) -> list[Axis]:
        """Characters: to columns, to prompts, and to keys and values in three ways."""
        words = {count: (TEXT * count)[:count] for count in CHARACTERS}
        sentences = [[self._prompt(piece) for piece in split(text, self._chunk_length)] for text in words.values()]
        whole = self._whole(words.values())
        state, prefix = self._model.allocate(1, self._model.max_columns), self._saved(sentences[0][0])
        own = [sum(prompt.columns.shape[1] - prompt.num_shared for prompt in prompts) for prompts in sentences]

        def fresh(prompts: Sequence[Prompt]) -> None:
            for prompt in prompts:
                read(self._model, state, 0, prompt.columns)

        def cached(prompts: Sequence[Prompt]) -> None:
            for prompt in prompts:
                self._model.load(state, 0, prefix)
                read(self._model, state, 0, prompt.columns[:, prompt.num_shared :], prompt.num_shared)

        def count_fresh(prompts: Sequence[Prompt]) -> Cost:
            return total(self._costs.read(prompt.columns.shape[1]) for prompt in prompts)

        def count_cached(prompts: Sequence[Prompt]) -> Cost:
            return total(self._costs.read(p.columns.shape[1] - p.num_shared, p.num_shared) for p in prompts)

        def axis(
            name: str, law: str, do: Callable[[Sequence[Prompt]], None], count: Count, given: list[list[Prompt]]
        ) -> Axis:
            xs, costs = CHARACTERS[: len(given)], [count(prompts) for prompts in given]
            works = [partial(do, prompts) for prompts in given]
            return self._times(name, law, works, self._between(xs, costs), x="characters", xs=xs)

        tokens = [partial(self._tokens, text) for text in words.values()]
        return [
            Axis("prompt columns", "characters", "columns", "c·T", floats(CHARACTERS), floats(own), ONE),
            self._times("text to tokens", "a + c·T", tokens, (0.0, 1.0), x="characters", xs=CHARACTERS),
            axis("prefill, one piece", "W·S + a·S²", fresh, count_fresh, whole),
            axis("prefill, sentences", "n·W·(P + s)", fresh, count_fresh, sentences),
            axis("prefill, sentences, cached voice", "n·(W·s + κ·P)", cached, count_cached, sentences),
        ]

    def prefix(self) -> list[Axis]:
        """Columns of a voice: read anew, or loaded from the cache."""
        sizes = powers(32, self._columns - 1)
        state = self._model.allocate(1, self._columns)
        columns = self._long_columns(sizes[-1])
        read(self._model, state, 0, columns)
        prefixes = [self._model.save(state, 0, size) for size in sizes]
        times = partial(self._times, x="prefix columns", xs=sizes)
        return [
            times(
                "prefix, fresh", "W·P + a·P²",
                [partial(read, self._model, state, 0, columns[:, :size]) for size in sizes],
                self._between(sizes, [self._costs.read(size) for size in sizes]),
            ),
            times(
                "prefix, cached", "κ·P",
                [partial(self._model.load, state, 0, prefix) for prefix in prefixes], ONE,
            ),
            Axis(
                "prefix in the cache", "prefix columns", "bytes", "κ·P", floats(sizes),
                floats([prefix.num_bytes for prefix in prefixes]), ONE,
            ),
        ]  # fmt: skip

    def span(self) -> list[Axis]:
        """Columns that a slow step looks at."""
        spans = powers(SPAN, self._columns)
        axes = []
        for rows in (1, 8):
            state = self._active(rows, self._columns, 1)
            works = [partial(self._model.hidden, state, span) for span in spans]
            costs = [self._costs.slow_step(rows, span) for span in spans]
            name = f"slow step, {rows} row{'s' if rows > 1 else ''}"
            axes.append(self._times(name, "W + B·κ·U", works, self._between(spans, costs), x="columns read", xs=spans))
        return axes

    def rows(self) -> list[Axis]:
        """Rows that make a frame together, or one after the other."""
        span = min(2 * SPAN, self._columns)
        works = []
        for rows in ROWS:
            # Every call makes a frame: the rows begin far enough from the end of what they look at.
            state, sampling = self._active(rows, span, 1), make_sampling(self._speaker, rows, span)
            works.append(partial(self._model.step, state, sampling, span))
        costs = [self._costs.step(rows, span) for rows in ROWS]
        together = self._times("step", "W + B·w", works, self._between(ROWS, costs), x="rows", xs=ROWS)
        alone = floats([rows * together.ys[0] for rows in ROWS])
        return [Axis("step, one row after the other", "rows", "ms", "B·(W + w)", together.xs, alone, ONE), together]

    def audio(self) -> list[Axis]:
        """Frames of one row: made, decoded, and heard first; looking at what is used or at all that a row can hold."""
        frames = powers(8, self._frames)
        (used, used_costs), (full, full_costs) = self._speak(frames)
        used_law, full_law = self._between(frames, used_costs), self._between(frames, full_costs)
        codes = self._codes(self._frames)
        times = partial(self._times, x="frames", xs=frames)
        decoded = times("codec, whole", "O(F)", [partial(self._codec.decode, codes[..., :n]) for n in frames], ONE)
        heard = [made + sounded for made, sounded in zip(used, decoded.ys, strict=True)]
        push = partial(self._push_anew, self._codec.open(1), codes[..., :1])
        soonest = used[0] / frames[0] + self._times("push", "", [push], NONE, x="frames", xs=[1]).ys[0]
        xs = decoded.xs
        return [
            Axis("frames, whole capacity", "frames", "ms", "F·(W + κ·C)", xs, floats(full), full_law),
            Axis("frames, used columns", "frames", "ms", "F·W + κ·F²/2", xs, floats(used), used_law),
            decoded,
            Axis("first sound, whole", "frames", "ms", "O(F)", xs, floats(heard), ONE),
            Axis("first sound, streamed", "frames", "ms", "O(1)", xs, (soonest,) * len(xs), NONE),
        ]

    def chunks(self) -> list[Axis]:
        """Frames that a stream decodes at once."""
        codes, sizes = self._codes(max(CHUNKS)), CHUNKS
        works = []
        for size in sizes:
            stream = self._codec.open(1)
            works.append(partial(self._push_anew, stream, codes[..., :size]))
        return [self._times("codec, one chunk", "a + b·c", works, (0.0, 1.0), x="frames a chunk", xs=sizes)]

    def reference(self) -> list[Axis]:
        """Seconds of a recording; nothing where the checkpoint cannot encode."""
        if self._reference is None:
            return []
        codec = self._loaded.encoding_codec()
        wave = self._reference.repeat(-(-REFERENCE_S[-1] * codec.sample_rate // len(self._reference)))
        works = [partial(codec.encode, wave[: seconds * codec.sample_rate]) for seconds in REFERENCE_S]
        return [self._times("reference encode", "O(F)", works, ONE, x="seconds", xs=REFERENCE_S)]

    def memory(self) -> list[Axis]:
        """Bytes that slots and a stream of the codec hold."""
        sizes = powers(SPAN, self._columns)
        slots = [self._model.allocate(4, size).cache.num_bytes for size in sizes]
        stream, held = self._codec.open(1), []
        codes = self._codes(CHUNKS[-1])
        for _ in CHUNKS:
            stream.push(codes)
            held.append(stream.num_bytes)
        pushed = [CHUNKS[-1] * (1 + index) for index in range(len(held))]
        return [
            Axis("4 slots", "columns a slot", "bytes", "B·κ·C", floats(sizes), floats(slots), ONE),
            Axis("stream of the codec", "frames", "bytes", "O(1)", floats(pushed), floats(held), NONE),
        ]

    # ---- the works ------------------------------------------------------------------------------------------------

    def _times(
        self,
        name: str,
        law: str,
        works: Sequence[Callable[[], object]],
        predicted: tuple[float, float],
        *,
        x: str,
        xs: Sequence[int],
    ) -> Axis:
        """Milliseconds of each work: medians, after one time to warm up."""
        meter = Meter(self._model.device, self.clock)
        for number in range(self._repeats + 1):
            for index, work in enumerate(works):
                meter.measure(str(index), work)
            if number == 0:
                meter.forget_times()
        ys = tuple(section.p50_ms for section in meter.sections(self._repeats))
        return Axis(name, x, "ms", law, floats(xs), ys, predicted)

    def _between(self, xs: Sequence[int], costs: Sequence[Cost]) -> tuple[float, float]:
        return between(xs, [cost.num_bytes for cost in costs], [cost.operations for cost in costs])

    def _prompt(self, text: str) -> Prompt:
        return self._model.prompt(text, [] if self._voice is None else [self._voice])

    def _tokens(self, text: str) -> list[Prompt]:
        return [self._prompt(piece) for piece in split(text, self._chunk_length)]

    def _whole(self, texts: Iterable[str]) -> list[list[Prompt]]:
        """The prompts of texts that are not split, from the shortest to the longest that the model can read."""
        prompts: list[list[Prompt]] = []
        for text in texts:
            try:
                prompts.append([self._prompt(text)])
            except CapacityError:
                break
        return prompts

    def _saved(self, prompt: Prompt) -> Prefix:
        state = self._model.allocate(1, prompt.num_shared)
        read(self._model, state, 0, prompt.columns[:, : prompt.num_shared])
        return self._model.save(state, 0, prompt.num_shared)

    def _long_columns(self, count: int) -> Tensor:
        columns = self._prompt(TEXT).columns
        return columns.repeat(1, -(-count // columns.shape[1]))[:, :count]

    def _active(self, rows: int, columns: int, num_read: int) -> S1State:
        """The state of `rows` rows that have read so many columns and make frames."""
        state = self._model.allocate(rows, columns)
        prompt = Prompt(self._long_columns(num_read), 0)
        for slot in range(rows):
            self._model.activate(state, slot, prompt)
        return state

    def _speak(self, frames: Sequence[int]) -> list[tuple[list[float], list[Cost]]]:
        """Milliseconds and costs of one row's first frames, as many as `frames` says.

        First looking at the columns that are used, in steps of `SPAN`, then at all that there are.
        """
        most = frames[-1]
        widths = [[-(-number // SPAN) * SPAN for number in range(1, most + 1)], [self._columns] * most]
        sampling = make_sampling(self._speaker, 1, most)
        meters = [Meter(self._model.device, self.clock) for _ in widths]
        for number in range(self._repeats + 1):
            states = [self._active(1, self._columns, 1) for _ in widths]
            for index in range(most):
                for width, meter, state in zip(widths, meters, states, strict=True):
                    meter.measure(str(index), partial(self._model.step, state, sampling, width[index]))
            if number == 0:
                for meter in meters:
                    meter.forget_times()
        found = []
        for width, meter in zip(widths, meters, strict=True):
            times = list(accumulate(section.p50_ms for section in meter.sections(self._repeats)))
            costs = list(accumulate(self._costs.step(1, span) for span in width))
            found.append(([times[count - 1] for count in frames], [costs[count - 1] for count in frames]))
        return found

    def _codes(self, frames: int) -> Tensor:
        """Some codes [1, K, F]; the codec does not mind which."""
        generator = torch.Generator().manual_seed(0)
        shape = (1, self._codec.num_codebooks, frames)
        return torch.randint(self._codec.config.codebook_size, shape, generator=generator).to(self._model.device)

    def _push_anew(self, stream: DacStream, codes: Tensor) -> Tensor:
        samples = stream.push(codes)
        stream.reset(0)
        return samples
