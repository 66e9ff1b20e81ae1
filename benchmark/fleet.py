"""From one engine to thousands: possible utilization by load-balancing policy, and which resource runs out first.

Each engine is a queue with slots; the time of a step is interpolated by the number of busy slots between two points of
`s1-mini plan`, which are fitted to measurements. Arrivals are a Poisson process, durations are exponential. A fleet is
full when one request in a thousand finds no free slot. Numbers in `PARTS` are measured or published by a provider; the
last column of the second table names their sources.

python -m benchmark.fleet --gpu l4 --price 1.15
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmark.command import make_parser, numbers, report, run
from s1_mini.bench.report import table
from s1_mini.capacity.cards import find_card
from s1_mini.capacity.plan import PlanOptions, make_plans
from s1_mini.families.registry import get_family

Counts = NDArray[np.int64]  # of requests, [fleets, engines]

STEP_S = 0.02  # step of the simulation
WARM_S, SEEN_S = 15.0, 20.0  # simulated seconds: warm-up, measurement
LOADS = (0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.96)
WAITING = 1e-3  # share of requests that may find no free slot
SIMULATED = 2000  # engines in one simulation, of many small fleets or of one large fleet
SHARD = 256  # texts
PCM_BYTES_A_S, OPUS_BYTES_A_S = 88_200, 4_000


@dataclass(frozen=True)
class Engine:
    """One GPU: slots; seconds of a step with one row and with all rows; seconds of audio per frame and per request."""

    slots: int
    first_s: float
    full_s: float
    frame_s: float
    sound_s: float

    @property
    def audio_per_s(self) -> float:
        """Seconds of audio per second with all slots taken."""
        return self.slots * self.frame_s / self.full_s

    @property
    def texts_per_s(self) -> float:
        """Requests per second with all slots taken."""
        return self.audio_per_s / self.sound_s

    def ends(self, taken: Counts) -> NDArray[np.float64]:
        """Return the probability that a request ends within a step, by the number of slots taken."""
        step_s = self.first_s + (self.full_s - self.first_s) * (np.maximum(taken, 1) - 1) / max(1, self.slots - 1)
        return 1 - np.exp(-STEP_S * self.frame_s / step_s / self.sound_s)


@dataclass(frozen=True)
class Part:
    """A shared resource of a fleet: the need of one engine, the capacity, and the source of the figure."""

    name: str
    wanted: Callable[[Engine], float]
    there: float
    source: str


PARTS = (
    Part("core that reads a corpus, texts per second", lambda e: e.texts_per_s, 62_000, "measured, 16 us per line"),
    Part("writes to one S3 prefix per second", lambda e: 2 * e.texts_per_s / SHARD, 3_500, "AWS"),
    Part("100 Gbit/s, audio as pcm", lambda e: e.audio_per_s * PCM_BYTES_A_S, 12.5e9, "88 kB per second of audio"),
    Part("100 Gbit/s, audio as opus", lambda e: e.audio_per_s * OPUS_BYTES_A_S, 12.5e9, "4 kB per second of audio"),
    Part("a core of a shared HAProxy", lambda e: 5 * e.audio_per_s * 35e-6, 1, "35 us/chunk, scale_measured.md"),
    Part("a core of Ray Serve's own proxy", lambda e: 5 * e.audio_per_s * 920e-6, 1, "920 us/chunk, scale_measured.md"),
)


def by_chance(waiting: Counts, arrivals: Counts, chance: np.random.Generator) -> Counts:
    """Return the requests per engine after random assignment, as by DNS."""
    engines = waiting.shape[1]
    return waiting + chance.multinomial(arrivals, np.full(engines, 1 / engines))


def by_least(waiting: Counts, arrivals: Counts, chance: np.random.Generator) -> Counts:  # noqa: ARG001 - same parameters as by_chance
    """Return the requests per engine after assigning each new one to the least loaded engine."""
    order = np.argsort(waiting, axis=1)
    level = np.take_along_axis(waiting, order, axis=1)
    below = np.cumsum(level, axis=1)
    places = np.arange(1, waiting.shape[1] + 1)
    filled = (places * level - below <= arrivals[:, None]).sum(axis=1)  # engines that rise to one level
    total = below[np.arange(len(below)), filled - 1] + arrivals
    risen = (total // filled)[:, None] + (places <= (total % filled)[:, None])
    result = np.empty_like(waiting)
    np.put_along_axis(result, order, np.where(places <= filled[:, None], risen, level), axis=1)
    return result


def simulate(engine: Engine, engines: int, load: float, choose: Callable[..., Counts]) -> tuple[float, float]:
    """Return the share of requests that find no free slot, and the share of slots in use, at a relative `load`."""
    chance = np.random.default_rng(0)
    fleets = max(1, SIMULATED // engines)
    each = load * engine.texts_per_s * STEP_S
    have = np.full((fleets, engines), round(load * engine.slots / 2), np.int64)
    came = late = 0
    full: list[float] = []
    for step in range(round((WARM_S + SEEN_S) / STEP_S)):
        taken = np.minimum(have, engine.slots)
        have -= chance.binomial(taken, engine.ends(taken))
        arrivals = chance.poisson(each * engines, fleets)
        before = np.maximum(have - engine.slots, 0).sum()
        have = choose(have, arrivals, chance)
        if step * STEP_S >= WARM_S:
            came += int(arrivals.sum())
            late += int(np.maximum(have - engine.slots, 0).sum() - before)
            full.append(float(np.minimum(have, engine.slots).mean()) / engine.slots)
    return late / max(1, came), float(np.mean(full))


def most_load(engine: Engine, engines: int, choose: Callable[..., Counts]) -> tuple[float, float]:
    """Return the largest of `LOADS` at which few enough requests wait (0 if none), and the share of slots in use."""
    best, taken = 0.0, 0.0

    def waits(load: float) -> bool:
        nonlocal best, taken
        late, full = simulate(engine, engines, load, choose)
        if late <= WAITING:
            best, taken = load, full
        return late > WAITING

    bisect.bisect(LOADS, False, key=waits)
    return best, taken


def main() -> None:
    """Simulate, and print two tables and a line of JSON."""
    parser = make_parser(__doc__, opens=False)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--sound", type=float, default=5.0, help="mean length of a request in seconds of audio [5]")
    parser.add_argument(
        "--engines", type=numbers, default=(1, 4, 40, 400, 4000), help="numbers of engines [1,4,40,400,4000]"
    )
    parser.add_argument("--price", type=float, help="price per GPU-hour, to report the cost")
    options = parser.parse_args()
    (plan,) = make_plans(partial(get_family().sizes, None), [find_card(options.gpu)], PlanOptions())
    slots = min(plan.likely.rows, plan.likely.count)  # with more, each stream would be slower than real time
    full_s = slots * plan.sizes.frame_s / plan.likely.audio_per_s
    engine = Engine(slots, plan.expected[0].total_ms / 1000, full_s, plan.sizes.frame_s, options.sound)
    rows = []
    for count in options.engines:
        (chance, chance_taken), (least, taken) = (most_load(engine, count, choose) for choose in (by_chance, by_least))
        row = {"engines": count, "by_chance": chance, "its_slots": chance_taken, "by_least": least, "slots": taken}
        row["streams"] = int(count * least * engine.audio_per_s)
        if options.price:
            row["hour_costs"] = options.price / (least * engine.audio_per_s)
        rows.append(row)
    wants = {part: part.wanted(engine) for part in PARTS}
    scarce = [(part.name, wanted, part.there / wanted, part.source) for part, wanted in wants.items()]
    print(
        f"{plan.card.title}: {engine.slots} slots, {engine.audio_per_s:.0f} seconds of audio per second, requests of "
        f"{options.sound:g} s; one in {1 / WAITING:.0f} finds no free slot"
    )
    heads = ("engines", "random: load", "slots in use", "least loaded: load", "slots in use", "streams", "cost of 1 h")
    print(table(heads[: len(rows[0])], [list(row.values()) for row in rows]))
    shared = [dict(zip(("what", "each", "engines", "by"), row, strict=True)) for row in scarce]
    result = {"gpu": options.gpu, "engine": asdict(engine), "fleets": rows, "shared": shared}
    report(("shared resource", "need per engine", "enough for engines", "source"), scarce, result)


if __name__ == "__main__":
    sys.exit(run(main))
