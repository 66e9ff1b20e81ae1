"""Train the language model of the built-in voice on preferences among its own samples.

python -m recipes.voice.prefer clones --teacher DIR --phonemes FILE --checkpoint DIR --clones DIR --count 40
python -m recipes.voice.prefer sample --checkpoint DIR --packages DIR --output DIR [--clones DIR] [--texts FILE] …
python -m recipes.voice.prefer train --checkpoint DIR --output DIR --work DIR [--clones DIR] …

`clones` writes voice files of training speakers of the teacher, which later commands clone. `--phonemes` is an
output of `phonemes.py`.
`sample` generates `--copies` samples of each of `--count` texts, from the `--start`-th on, with the engine's defaults,
and judges them with DistillMOS, Whisper base and Resemblyzer (`batch_ears.py`). It stops early after `--seconds`, and
continues where it stopped if it runs again. An `--output` with samples of other texts is an error. It prints figures of
all samples and of the preferred ones. A third of the texts have at most three words. `--texts` is the output of
`recipes.voice.texts prepare`.

`train` reads the samples of `--output` and raises the probability of the better ones (DPO, Rafailov et al. 2023, arXiv
2305.18290). `--beta` is the weight of this loss's log-probabilities, and `--imitate` that of a second loss, the
likelihood of the better sample (Pang et al. 2024, arXiv 2404.19733); both are per frame. The log-probabilities cover
all codes of a frame, and the prompts are the engine's. A sample with wrong words is worse than all samples without.
Among the latter, DistillMOS and, for clones, `--alike` times the similarity decide, plus `--lively` times the standard
deviation of the logarithm of the pitch. Pairs with a difference below `--gap` are left out, and a text has at most
`--pairs`. It ends after `--epochs` or `--seconds`, whichever is earlier, and the learning rate falls to zero over the
same time; the time for the initial log-probabilities counts. `--work` then contains the weights as `model.py` writes
them, which the next `train` continues, and the exported checkpoint `voice`. `--clones` must be that of `sample`.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipes.voice import again
from recipes.voice.batch_ears import BatchEars
from recipes.voice.candidates import Judged, Speakers, Task, candidates, figures_of, judge_figures, tasks, write_clones
from recipes.voice.export import COLDER
from recipes.voice.model import depth_logits, uncached
from recipes.voice.shared import fast_device, parser
from recipes.voice.texts import load
from s1_mini.families.base import Conversion
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.network import S1Network
from s1_mini.families.s1.prompt import build_prompt
from s1_mini.families.s1.settings import SMALL_FILES
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.kernels.positions import embed
from s1_mini.packaging.write import convert_checkpoint
from s1_mini.types import Voice
from s1_mini.voices.library import FOLDER
from s1_mini.weights.directory import read_json

PER_FILE = 256  # tasks
HELD_BACK = 16  # the pairs of every 16th task are for validation
WARM_UP = 10  # steps


@dataclass(frozen=True)
class Ranking:
    """Weights and limits of the ranking of samples."""

    alike: float = 1.0  # points of DistillMOS for a similarity of 1, for clones
    lively: float = 0.0  # points of DistillMOS for a standard deviation of 1 of the logarithm of the pitch
    gap: float = 0.15  # least difference in points of DistillMOS
    pairs: int = 2  # of a text


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of the training."""

    rate: float = 1e-5  # peak learning rate; it falls along half a cosine
    epochs: int = 2
    batch: int = 32  # pairs
    beta: float = 5.0  # of DPO, of log-probabilities per frame
    imitate: float = 1.0  # weight of the negative log-likelihood of a frame of the better samples
    mean_decay: float = 0.98  # of the exponential mean of the weights


class Pair(NamedTuple):
    """Two candidates of one task, by index."""

    better: int
    worse: int


def pairs_of(judged: Judged, every: Sequence[Task], ranking: Ranking, clones: frozenset[str]) -> list[Pair]:
    """Pair the best with the worst candidate of each text, the second best with the second worst, and so on."""
    found = []
    merit = judged.mos + ranking.lively * np.nan_to_num(judged.pitch)
    order = np.argsort(judged.task, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(judged.task[order])) + 1):
        weight = ranking.alike if every[int(judged.task[members[0]])].voice in clones else 0.0
        points = merit[members] + weight * judged.alike[members]
        right = judged.is_right[members]
        ranked = members[np.lexsort((points, -judged.wrong[members], right))]
        worth = dict(zip(members.tolist(), points.tolist(), strict=True))
        for better, worse in islice(
            zip(ranked[::-1].tolist(), ranked.tolist(), strict=True), min(ranking.pairs, len(members) // 2)
        ):
            is_wrong = not judged.is_right[worse]
            if judged.is_right[better] and (is_wrong or worth[better] - worth[worse] >= ranking.gap):
                found.append(Pair(better, worse))
    return found


class Rows(NamedTuple):
    """Prompts with their answers, padded at the end."""

    columns: Tensor  # [B, K + 1, T] tokens and codes
    answered: Tensor  # [B, T] bool: the frames of the answer, and its end

    @classmethod
    def of(
        cls,
        answers: Sequence[tuple[NDArray[np.int64], NDArray[np.int16]]],
        tokenizer: S1Tokenizer,
        device: torch.device,
    ) -> Rows:
        """Lay out prompts [S, K + 1] and the codes [K, F] that answer them."""
        longest = max(len(prompt) + codes.shape[1] + 1 for prompt, codes in answers)
        columns = np.zeros((len(answers), answers[0][0].shape[1], longest), np.int64)
        answered = np.zeros((len(answers), longest), np.bool_)
        for row, (prompt, codes) in enumerate(answers):
            begin, end = len(prompt), len(prompt) + codes.shape[1]
            columns[row, :, :begin] = prompt.T
            columns[row, 0, begin:end] = codes[0].astype(np.int64) + tokenizer.semantic_begin
            columns[row, 1:, begin:end] = codes
            columns[row, 0, end] = tokenizer.control("im_end")
            answered[row, begin : end + 1] = True
        return cls(torch.from_numpy(columns).to(device), torch.from_numpy(answered).to(device))


def log_probabilities(network: S1Network, tokenizer: S1Tokenizer, rows: Rows) -> Tensor:
    """Return the log-probability [B] of every answer: all codes of its frames, and its end.

    The logits are those of the exported model at temperature 1: only of semantic tokens and the end, and scaled.
    """
    columns, answered = rows
    begin, end = tokenizer.semantic_begin, tokenizer.semantic_end
    length = columns.shape[-1]
    positions = torch.arange(length, device=columns.device).unsqueeze(0)
    mask = torch.ones(length, length, dtype=torch.bool, device=columns.device).tril()
    x = embed(columns.transpose(1, 2), network.embedding((begin, end)))
    hidden = network.backbone(x, positions, mask, lambda _: uncached(network.config.backbone))[:, :-1]
    chosen = answered[:, 1:]
    row = chosen.nonzero()[:, 0]
    hidden, target = hidden[chosen], columns[:, 0, 1:][chosen]
    spoken = torch.cat(
        (network.output.weight[begin : end + 1], network.output.weight[tokenizer.control("im_end")][None])
    )
    logits = COLDER["output.weight"] * F.linear(network.norm(hidden), spoken)
    is_frame = (target >= begin) & (target <= end)
    place = torch.where(is_frame, target - begin, len(spoken) - 1)
    semantic = -F.cross_entropy(logits, place, reduction="none")
    codes = columns[:, 1:, 1:].transpose(1, 2)[chosen][is_frame]
    logits = COLDER["fast_output.weight"] * depth_logits(network, hidden[is_frame], codes)
    others = -F.cross_entropy(logits.flatten(0, 1), codes[:, 1:].flatten(), reduction="none")
    total = torch.zeros(len(columns), device=columns.device).index_add(0, row, semantic)
    return total.index_add(0, row[is_frame], others.view(len(codes), -1).sum(-1))


class Losses(NamedTuple):
    """Losses of one batch, and what they consist of."""

    total: Tensor
    margin: Tensor  # [pairs] difference of the rewards
    gained: Tensor  # [pairs] change of the better sample's log-probability, per frame


def losses(policy: Tensor, reference: Tensor, frames: Tensor, settings: Settings) -> Losses:
    """Return the losses of log-probabilities [2 · pairs], first of all better samples, which have `frames`.

    All are divided by the frames (Lambert et al. 2024, arXiv 2411.15124), so that long samples do not dominate.
    """
    better, worse = ((policy - reference) / frames).chunk(2)
    margin = settings.beta * (better - worse)
    likelihood = (policy / frames).chunk(2)[0].mean()
    return Losses(-F.logsigmoid(margin).mean() - settings.imitate * likelihood, margin, better)


class PreferenceTraining:
    """The network, its pairs and its steps."""

    def __init__(self, work: Path, settings: Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.tokenizer = S1Tokenizer.from_directory(work)
        config = S1Config.from_json(read_json(work / "config.json"))
        self.network = S1Network(config, semantic_rows=config.vocab_size, residual_rows=config.codebook_size)
        self.network.load_state_dict(load_file(work / "model.safetensors"))
        self.network.to(device).prepare(device)
        self.parameters: list[Tensor] = list(self.network.parameters())
        self.mean = [parameter.detach().clone() for parameter in self.parameters]
        self.optimiser = torch.optim.AdamW(self.parameters, lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0)

    def prompt(self, task: Task, voice: Voice) -> NDArray[np.int64]:
        return np.asarray(build_prompt(self.tokenizer, self.network.config, task.read, [voice]).items, np.int64)

    def rows(self, batch: Sequence[Example]) -> Rows:
        answers = [(each.prompt, each.better) for each in batch] + [(each.prompt, each.worse) for each in batch]
        return Rows.of(answers, self.tokenizer, self.device)

    def pair_log_probabilities(self, batch: Sequence[Example]) -> Tensor:
        """Log-probabilities [2 · pairs], first of all better samples."""
        return log_probabilities(self.network, self.tokenizer, self.rows(batch))

    def compute_reference(self, every: Sequence[Example]) -> None:
        """Compute the log-probabilities of all pairs by the initial weights."""
        for batch in _batches(every, self.settings.batch):
            # With gradients, because the network then uses the same functions as in the training steps.
            better, worse = self.pair_log_probabilities(batch).detach().chunk(2)
            for each, *pair in zip(batch, better.tolist(), worse.tolist(), strict=True):
                each.reference[:] = pair

    def losses(self, batch: Sequence[Example]) -> Losses:
        reference = torch.tensor([each.reference for each in batch], device=self.device).T.flatten()
        lengths = [each.better.shape[1] for each in batch] + [each.worse.shape[1] for each in batch]
        frames = torch.tensor(lengths, device=self.device).clamp_min(1)
        return losses(self.pair_log_probabilities(batch), reference, frames, self.settings)

    def step(self, batch: Sequence[Example], progress: float, number: int) -> Losses:
        """Take one step; `progress` is from 0 to 1."""
        rate = self.settings.rate * 0.5 * (1 + math.cos(math.pi * progress)) * min(1.0, (number + 1) / WARM_UP)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        found = self.losses(batch)
        self.optimiser.zero_grad(set_to_none=True)
        found.total.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.mean, self.parameters, 1 - self.settings.mean_decay)
        return found

    def train(self, every: Sequence[Example], held_back: Sequence[Example], seconds: float) -> None:
        """Take the steps of all epochs, or until `seconds` have passed, and put the mean weights into the network."""
        began, random = time.monotonic(), np.random.default_rng(0)
        self.compute_reference([*every, *held_back])
        batches = list(_batches(every, self.settings.batch))
        steps = len(batches) * self.settings.epochs
        order = np.concatenate([random.permutation(len(batches)) for _ in range(self.settings.epochs)])
        print(f"{len(every)} pairs, {steps} steps, reference in {time.monotonic() - began:.0f} s", flush=True)
        for number, place in enumerate(order.tolist()):
            passed = time.monotonic() - began
            progress = max(number / steps, passed / seconds)
            if progress >= 1:
                break
            found = self.step(batches[place], progress, number)
            if number % 20 == 0:
                print(f"step {number}, {passed:.0f} s: {_described(found)}", flush=True)
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.mean)
        if held_back:
            batches = list(_batches(held_back, self.settings.batch))
            each = [Losses(*(part.detach() for part in self.losses(batch))) for batch in batches]
            whole = Losses(
                torch.stack([one.total for one in each]).mean(),
                *(torch.cat([one[part] for one in each]) for part in (1, 2)),
            )
            print(f"held back, {len(held_back)} pairs: {_described(whole)}", flush=True)

    def write(self, path: Path) -> None:
        save_file(
            {name: each.detach().float().cpu().contiguous() for name, each in self.network.named_parameters()}, path
        )


class Example(NamedTuple):
    """A pair with its prompt [S, K + 1], its codes [K, F], and their log-probabilities by the initial weights."""

    prompt: NDArray[np.int64]
    better: NDArray[np.int16]
    worse: NDArray[np.int16]
    reference: list[float]

    @property
    def length(self) -> int:
        return len(self.prompt) + max(self.better.shape[1], self.worse.shape[1])


def _batches(every: Sequence[Example], size: int) -> Iterator[Sequence[Example]]:
    """Yield all examples in batches of similar length."""
    ordered = sorted(every, key=lambda each: each.length)
    for begin in range(0, len(ordered), size):
        yield ordered[begin : begin + size]


def _described(found: Losses) -> str:
    right = 100 * float((found.margin.detach() > 0).float().mean())
    return (
        f"loss {found.total.item():.3f}, margin {found.margin.mean().item():.3f}, {right:.0f} % right, "
        f"better {found.gained.mean().item():+.3f} a frame"
    )


def sample(
    speakers: Speakers,
    ears: BatchEars,
    output: Path,
    every: Sequence[Task],
    *,
    copies: int,
    rows: int,
    seed: int,
    seconds: float,
) -> None:
    """Write candidates of all tasks to `output`, as long as less than `seconds` have passed at the start of a file."""
    began = time.monotonic()
    for begin in range(0, len(every), PER_FILE):
        path = output / f"shard_{begin:06d}.npz"
        part = every[begin : begin + PER_FILE]
        if not _has_all(path, len(part)) and time.monotonic() - began < seconds:
            candidates(part, begin, speakers, ears, copies=copies, rows=rows, seed=seed + begin).write(path)
            print(f"{begin + len(part)} texts, {time.monotonic() - began:.0f} s", flush=True)


def _has_all(path: Path, count: int) -> bool:
    """Return whether a file has samples of `count` tasks; the last file of a run with fewer tasks does not."""
    if not path.exists():
        return False
    with np.load(path) as file:
        return len(np.unique(file["task"])) >= count


def write_tasks(output: Path, every: Sequence[Task], built_in: Sequence[str]) -> None:
    """Write the list of tasks, unless a longer one exists that begins with it.

    Raises `SystemExit` if `output` has a list with other tasks or with other built-in voices.
    """
    path, listed = output / "tasks.json", [asdict(task) for task in every]
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        common = min(len(before["tasks"]), len(every))
        if before["tasks"][:common] != listed[:common] or before["built_in"] != list(built_in):
            raise SystemExit(f"{output} has samples of other texts; use another --output")
        if len(before["tasks"]) >= len(every):
            return
    output.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"tasks": listed, "built_in": list(built_in)}), encoding="utf-8")


def read_samples(output: Path) -> tuple[Judged, list[Task]]:
    """Read what `sample` wrote: the candidates and all tasks."""
    paths = sorted(output.glob("shard_*.npz"))
    if not paths:
        raise SystemExit(f"{output} has no samples; run `sample` with this --output first")
    listed = json.loads((output / "tasks.json").read_text(encoding="utf-8"))
    return Judged.read(paths), [Task(**each) for each in listed["tasks"]]


def examples(
    training: PreferenceTraining, judged: Judged, every: Sequence[Task], pairs: Sequence[Pair], voices: dict[str, Voice]
) -> tuple[list[Example], list[Example]]:
    """Return the pairs for the training, and those that are held back."""
    if missing := {task.voice for task in every} - voices.keys():
        raise SystemExit(f"samples of unknown voices: {', '.join(sorted(missing))}; add the --clones that `sample` had")
    codes = np.split(judged.codes, np.cumsum(judged.lengths)[:-1], axis=1)
    found: tuple[list[Example], list[Example]] = [], []
    for better, worse in pairs:
        number = int(judged.task[better])
        prompt = training.prompt(every[number], voices[every[number].voice])
        found[number % HELD_BACK == 0].append(Example(prompt, codes[better], codes[worse], [0.0, 0.0]))
    return found


def report(judged: Judged, every: Sequence[Task], ranking: Ranking, built_in: Sequence[str]) -> None:
    """Print the figures of all candidates, of the better and of the worse ones of all pairs."""
    clones = frozenset(task.voice for task in every) - set(built_in)
    print("samples", json.dumps(figures_of(judged, every, built_in)), flush=True)
    pairs = pairs_of(judged, every, ranking, clones)
    for kind in Pair._fields if pairs else ():
        among = np.zeros(len(judged.task), np.bool_)
        among[[getattr(pair, kind) for pair in pairs]] = True
        print(f"{kind} of {len(pairs)} pairs", json.dumps(judge_figures(judged, among)), flush=True)


def begin_work(checkpoint: Path, work: Path) -> None:
    """Write the weights and the small files of `checkpoint` to `work`, unless it has weights."""
    if not (work / "model.safetensors").exists():
        work.mkdir(parents=True, exist_ok=True)
        save_file(again.model_weights(checkpoint), work / "model.safetensors")
    for name in SMALL_FILES:
        shutil.copyfile(checkpoint / name, work / name)


def export(work: Path, checkpoint: Path) -> None:
    """Write `work`'s weights as the checkpoint `work/voice`, with the codec and the voices of `checkpoint`."""
    whole, output = work / "whole", work / "voice"
    for folder in (whole, output):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(checkpoint, whole)
    model = load_file(work / "model.safetensors")
    save_file({name: each * COLDER.get(name, 1.0) for name, each in model.items()}, whole / "model.safetensors")
    convert_checkpoint(whole, output, Conversion(precision="int8", codec_precision="int8"))
    # The converted codec has the same values, but maybe not the same bytes, by which voices recognise their codec.
    for name in ("codec.safetensors", "codec_config.json", "CARD.md"):
        if (checkpoint / name).exists():
            shutil.copyfile(checkpoint / name, output / name)
    if (checkpoint / FOLDER).exists():
        shutil.copytree(checkpoint / FOLDER, output / FOLDER, dirs_exist_ok=True)
    shutil.rmtree(whole)


def main() -> None:
    command = parser(
        __doc__,
        ("clones", "sample", "train"),
        checkpoint=Path,
        clones=Path | None,
        teacher=Path | None,
        phonemes=Path | None,
        packages=Path | None,
        output=Path | None,
        work=Path | None,
        texts=Path | None,
        start=0,
        count=2048,
        copies=8,
        rows=512,
        seed=0,
        seconds=360.0,
        **asdict(Ranking()),
        **asdict(Settings()),
    )
    given = command.parse_args()
    needed = {
        "clones": ("teacher", "phonemes", "clones"),
        "sample": ("packages", "output"),
        "train": ("output", "work"),
    }[given.verb]
    if missing := [name for name in needed if getattr(given, name) is None]:
        command.error(f"{given.verb} requires --{' and --'.join(missing)}")
    if given.verb == "clones":
        write_clones(given.teacher, given.phonemes, given.checkpoint, given.clones, given.count)
        return
    device, ranking = fast_device(), Ranking(**{name: getattr(given, name) for name in asdict(Ranking())})
    if given.verb == "sample":
        ears, speakers = BatchEars(given.packages, device), Speakers(given.checkpoint, given.clones, device)
        corpora = load(given.texts) if given.texts else None
        every = list(
            islice(tasks(speakers.form, speakers.built_in, speakers.clones, corpora, given.start), given.count)
        )
        write_tasks(given.output, every, speakers.built_in)
        sample(
            speakers,
            ears,
            given.output,
            every,
            copies=given.copies,
            rows=given.rows,
            seed=given.seed,
            seconds=given.seconds,
        )
        report(*read_samples(given.output), ranking, speakers.built_in)
        return
    begin_work(given.checkpoint, given.work)
    judged, every = read_samples(given.output)
    settings = Settings(**{name: getattr(given, name) for name in asdict(Settings())})
    speakers = Speakers(given.checkpoint, given.clones, torch.device("cpu"))
    training = PreferenceTraining(given.work, settings, device)
    voices = {name: Voice(each.tensors, speakers.form.transcript(each.text)) for name, each in speakers.voices.items()}
    pairs = pairs_of(judged, every, ranking, frozenset(speakers.clones))
    training.train(*examples(training, judged, every, pairs, voices), given.seconds)
    training.write(given.work / "model.safetensors")
    export(given.work, given.checkpoint)


if __name__ == "__main__":
    main()
