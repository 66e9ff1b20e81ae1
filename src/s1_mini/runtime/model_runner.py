"""All work on the device: the rows of the model's state, their parameters, the rows of the codec.

A step computes the rows up to the last that is taken and reads columns up to a multiple of `SPAN`, in such shapes that
a row's numbers do not depend on its neighbours, on a CPU not by a bit. Knows no queue and no order.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from s1_mini.exceptions import GenerationError
from s1_mini.families.base import Prefix, SamplingTensors
from s1_mini.layers.randomness import uniforms
from s1_mini.layers.staging import stage
from s1_mini.runtime.frame_graphs import FrameGraphs
from s1_mini.runtime.job import CHUNK_FRAMES, Job, Piece
from s1_mini.runtime.loader import Speaker
from s1_mini.runtime.sound_graphs import SoundGraphs

logger = logging.getLogger(__name__)

SPAN = 64  # columns; a multiple of what attention adds up at once


# A model smaller than this steps on one CPU thread: its kernels are so small that a second thread is waited for longer
# than it helps (26 ms a frame on two, 17 on one, with the voice that ships; 2026-11).
ONE_THREAD_BYTES = 200e6
NUM_THREADS = torch.get_num_threads()  # as it is before any engine runs


@dataclass(frozen=True)
class HostFrames:
    """One frame of every row, where the scheduler can look at it."""

    codes: np.ndarray  # int64 [B, K]
    stop: list[bool]
    valid: list[bool]
    pieces: Sequence[Piece]  # whose it is; rows of others mean nothing, and some of these may have ended meanwhile


class ModelRunner:
    """The tensors of one engine: made once, for `slots` pieces of up to `columns` columns each."""

    def __init__(self, speaker: Speaker, *, slots: int, columns: int) -> None:
        self.model, self.codec = speaker.model, speaker.codec
        self._open_decoder = speaker.loaded.open_decoder
        self.slots = slots
        self.columns = min(columns, self.model.max_columns)
        self._steps_on_one = self.model.device.type == "cpu" and self.model.num_bytes < ONE_THREAD_BYTES
        # On a GPU too: while one thread waits for a frame, the other gives out sound, and both queue up work.
        self.sounds_beside = (self._steps_on_one and _num_cores() > 1) or self.model.device.type == "cuda"
        self.decodes_together = self.model.device.type != "cpu"  # there, rows of a batch differ in the last bit
        draws = self.model.num_codebooks
        with torch.inference_mode():
            self._state = self.model.allocate(slots, self.columns)
            ones = torch.ones(3, slots, device=self.model.device)
            table = torch.zeros(slots, self.columns + 1, draws, device=self.model.device)
            self._sampling = SamplingTensors(ones[0], ones[1], ones[2], table)
        self.num_rows = 2 * slots  # of the codec: a job may still sound when its slot is another's
        self._stream = self.codec.open(self.num_rows)
        self._free_rows = list(range(self.num_rows))
        self._sound_graphs: SoundGraphs | None = None
        self._codec_lock = threading.Lock()  # of its graphs; a chunk is made again by the engine's own thread
        self._graphs: FrameGraphs | None = None
        self._ahead: Sequence[Piece] = []  # whose frame is on its way

    @property
    def num_free_rows(self) -> int:
        """Rows of the codec that nobody has."""
        return len(self._free_rows)

    def enter_thread(self) -> None:
        """Prepare a thread that calls come from: the engine's, and the one for sound if there is one."""
        torch.set_num_threads(1 if self._steps_on_one else NUM_THREADS)
        if self.model.device.type == "cuda":
            torch.cuda.set_device(self.model.device)

    @torch.inference_mode()
    def capture(self) -> None:
        """Make the graphs of a frame and of sound, where the device has such; once, before the first request."""
        if self.model.device.type == "cuda":
            sizes = [size for profile in CHUNK_FRAMES.values() for size in profile]
            decoder = self._open_decoder(self.num_rows + 1)
            self._sound_graphs = SoundGraphs(
                self.codec, decoder.push_where, rows=self.num_rows, sizes=sizes, device=self.model.device
            )
            self._graphs = FrameGraphs(self.model, self._state, self._sampling, slots=self.slots, span=self.columns)

    @torch.inference_mode()
    def load(self, piece: Piece, prefix: Prefix) -> None:
        """Put a prefix of its prompt into the piece's slot."""
        self._finish_reading()
        self.model.load(self._state, _slot(piece), prefix)

    @torch.inference_mode()
    def save(self, piece: Piece) -> Prefix:
        """Copy what the piece's slot holds of the shared columns."""
        self._finish_reading()
        return self.model.save(self._state, _slot(piece), piece.prompt.num_shared)

    @torch.inference_mode()
    def read(self, piece: Piece, columns: int) -> None:
        """Read the next `columns` columns of the piece's prompt."""
        part = piece.prompt.columns[:, piece.num_read : piece.num_read + columns]
        if self._graphs is not None:
            self._graphs.read(_slot(piece), part, piece.num_read)
        else:
            self.model.prefill(self._state, _slot(piece), part, piece.num_read)

    def _finish_reading(self) -> None:
        """Read what was collected to be read together: somebody is about to look at it, or to write there."""
        if self._graphs is not None:
            self._graphs.flush()

    @torch.inference_mode()
    def start(self, piece: Piece) -> None:
        """Let the piece make frames, by its job's parameters and its own random numbers."""
        slot, params = _slot(piece), piece.job.sampling
        self._sampling.temperature[slot].fill_(params.temperature)  # assigned, a number is waited for
        self._sampling.top_p[slot].fill_(params.top_p)
        self._sampling.repetition_penalty[slot].fill_(params.repetition_penalty)
        table = uniforms(piece.job.seed, piece.index, piece.max_frames, self.model.num_codebooks)
        self._sampling.uniforms[slot, : piece.max_frames] = stage(table, self.model.device)
        self.model.activate(self._state, slot, piece.prompt)

    @torch.inference_mode()
    def step(self, pieces: Sequence[Piece]) -> HostFrames:
        """Make one frame of all that were started; `pieces` are those, for their lengths."""
        rows = 1 + max(_slot(piece) for piece in pieces)
        if self._graphs is not None:
            return self._step_ahead(self._graphs, pieces, rows)
        longest = max(piece.num_columns for piece in pieces)
        span = min(-(-longest // SPAN) * SPAN, self.columns)
        frames = self.model.step(self._state, self._sampling, span, rows)
        return HostFrames(frames.codes.cpu().numpy(), frames.stop.tolist(), frames.valid.tolist(), pieces)

    def _step_ahead(self, graphs: FrameGraphs, pieces: Sequence[Piece], rows: int) -> HostFrames:
        """Give the frame that is on its way, or make one, and launch the next before anybody has looked at it.

        So the device works on while the host does. A piece that turns out to have ended makes one frame too many, which
        nobody looks at; one that has just been started is in the frame that is launched now.
        """
        made, self._ahead = self._ahead, []
        if not any(piece.slot is not None for piece in made):  # none is on its way, or one of pieces that have ended
            graphs.launch(rows)
            made = pieces
        frames = HostFrames(*graphs.wait(), made)
        try:
            graphs.launch(rows)
            self._ahead = list(pieces)
        except torch.AcceleratorError:
            raise
        except Exception:
            logger.warning("a frame could not be launched ahead; it is tried again", exc_info=True)
        return frames

    @torch.inference_mode()
    def launch(self, rows: int) -> bool:
        """Launch a captured frame of the first `rows` rows and do not look at it; tell whether there is one.

        For measuring the device alone.
        """
        if self._graphs is not None:
            self._graphs.replay(rows)
        return self._graphs is not None

    @torch.inference_mode()
    def step_alone(self, piece: Piece, others: Sequence[Piece]) -> HostFrames:
        """Make one frame of one piece while the others rest; what it makes is what it would have made with them."""
        for other in others:
            self.model.pause(self._state, _slot(other))
        try:
            if self._graphs is None:
                return self.step([piece, *others])
            self._graphs.launch(1 + _slot(piece))
            return HostFrames(*self._graphs.wait(), [piece])
        finally:
            for other in others:
                self.model.resume(self._state, _slot(other))

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        """Stop a slot from making frames."""
        self._finish_reading()
        self.model.release(self._state, slot)

    def most_together(self, size: int) -> int:
        """Give how many chunks of `size` frames, and shorter ones that end a piece, are decoded in one call."""
        if self._sound_graphs is not None:
            return self._sound_graphs.most_rows(self._sound_graphs.fit(size))
        return self.num_rows if self.decodes_together else 1

    def goes_with(self, size: int, other: int) -> bool:
        """Whether chunks of these sizes go in one call; of two that differ, the shorter one ends a piece."""
        graphs = self._sound_graphs
        return size == other if graphs is None else graphs.fit(size) == graphs.fit(other)

    @torch.inference_mode()
    def decode(self, jobs: Sequence[Job], sizes: Sequence[int]) -> list[np.ndarray]:
        """Make the next frames of each job's front piece sound: float32 [samples] each.

        Every job has a row; `goes_with` is so of all sizes. Chunks that fail on the way may be decoded again, each with
        others or alone. Raises `GenerationError` if samples are not finite.
        """
        with self._codec_lock if self._sound_graphs is not None else nullcontext():
            try:
                for job in jobs:
                    if not job.row_is_begun and job.pieces[job.front].num_chunks:
                        self._begin_row(job)
                starts = [(job.pieces[job.front].frames, job.pieces[job.front].num_decoded) for job in jobs]
                cuts = [codes.cut(start, start + size) for (codes, start), size in zip(starts, sizes, strict=True)]
                return self._push(jobs, cuts)
            except BaseException:
                for job in jobs:
                    job.row_is_begun = False  # what the rows remember may be half of something
                raise

    def take_row(self, job: Job) -> bool:
        """Give the job a row of the codec; tell whether one was free."""
        if not self._free_rows:
            return False
        job.row, job.row_is_begun = self._free_rows.pop(), False
        return True

    def _begin_row(self, job: Job) -> None:
        """Let the job's row remember what was decoded of the piece before."""
        piece = job.pieces[job.front]
        done = 0
        for number in range(piece.num_chunks):
            size = piece.chunk_size(number)
            self._push([job], [piece.frames.cut(done, done + size)])
            done += size

    def _push(self, jobs: Sequence[Job], codes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Decode the next frames [F, K] of each job's row, from the beginning if the row has not begun."""
        rows, fresh = [job.row for job in jobs if job.row is not None], [not job.row_is_begun for job in jobs]
        if self._sound_graphs is not None:
            samples, finite = self._sound_graphs.decode(codes, rows, fresh)
        else:
            for row in [row for row, begins in zip(rows, fresh, strict=True) if begins]:
                self._stream.reset(row)
            block = torch.from_numpy(np.stack(codes).transpose(0, 2, 1)).to(self.model.device)
            samples = self._stream.push(block, rows).float().cpu().numpy()
            finite = np.isfinite(samples).all(-1)
        if not finite.all():
            raise GenerationError("the codec gave samples that are not finite; its weights may be damaged")
        for job in jobs:
            job.row_is_begun = True
        rate = self.codec.samples_per_frame
        return [wave[: len(each) * rate] for wave, each in zip(samples, codes, strict=True)]

    def give_back_row(self, job: Job) -> None:
        """End the sound of a piece: the codec begins anew with the next."""
        if job.row is not None:
            self._free_rows.append(job.row)
            job.row = None

    def free_memory(self) -> None:
        """Give unused memory back to the device; only for when there is none left."""
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()


def _num_cores() -> int:
    """Cores that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _slot(piece: Piece) -> int:
    assert piece.slot is not None, "the piece has no slot"
    return piece.slot
