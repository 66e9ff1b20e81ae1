"""The sequences of one stage, which are ready for a unit of work, in prefill, or running.

Nothing here waits or reads a clock: the time is an argument. The caller must hold the scheduler's lock.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from s1_mini.byte_cache import ByteCache
from s1_mini.core.messages import Begin, Feed, Load, Plan, Prefill, Saved
from s1_mini.core.request import StageSequence
from s1_mini.core.stage import StagePolicy

MIN_SHARED = 16  # positions; computing a shorter prefix is faster than loading it from the cache
RESERVE_S = 0.1  # a stream with less unplayed audio is about to run out of audio
# After being passed over this many times in a row, a class of `classify` is chosen before classes that are not due.
MAX_PASSED_OVER = (9, 1, 3, 4)
MAX_PUT_OFF = 4  # consecutive plans without prefill while a stream is about to run out of audio

Owners = dict[int, tuple[StageSequence, int]]  # by slot: the sequence and its number of finished units


@dataclass(frozen=True)
class InFlightPlan:
    """What the queue remembers about a plan until its report arrives."""

    owners: Owners
    begun: list[StageSequence]  # sequences whose prefill the plan completes


class Slots:
    """The rows of a stage's state. The lowest free row is allocated first, so that batches stay small."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self._used: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        slot = heapq.heappop(self._free)
        self._used.add(slot)
        return slot

    def free(self, slot: int) -> None:
        self._used.remove(slot)
        heapq.heappush(self._free, slot)


class StageQueue:
    """The slots of one stage and the work queued for them."""

    def __init__(self, index: int, policy: StagePolicy, prefixes: ByteCache[Saved], *, is_last: bool) -> None:
        self.index, self.policy, self.is_last = index, policy, is_last
        self.slots, self.priority, self.prefixes = Slots(policy.slots), Priority(), prefixes
        self.ready: list[StageSequence] = []  # sequences with a unit to begin, with or without a slot
        self.in_prefill: list[StageSequence] = []
        self.running: list[StageSequence] = []
        self.in_flight: dict[int, InFlightPlan] = {}  # by plan number
        self._dropped: list[int] = []  # slots whose unit was cancelled since the last plan
        self._saving: set[str] = set()  # keys of prefixes that are being saved
        self._num_plans = 0
        self._num_put_off = 0  # consecutive plans without prefill

    # ---- queries ----------------------------------------------------------------------------------------------------

    def can_begin(self, sequence: StageSequence) -> bool:
        """Whether a ready sequence may begin: it has a slot or one is free, and its request may have more audio."""
        if sequence.slot is None and not self.slots.num_free:
            return False
        return self._is_its_turn(sequence)

    def has_work(self, *, holds_back: bool) -> bool:
        if (
            self._dropped
            or self.in_prefill
            or any(self.can_begin(seq) and (seq.units or not holds_back) for seq in self.ready)
        ):
            return True
        return any(seq.can_step for seq in self.running)

    @property
    def num_waiting(self) -> int:
        """Number of sequences that wait only for this stage, because their input is complete."""
        return sum(sequence.is_final and self._is_its_turn(sequence) for sequence in self.ready)

    def _is_its_turn(self, sequence: StageSequence) -> bool:
        """Whether the request needs this sequence's audio next, and does not have too much unread audio."""
        if not self.is_last:
            return True
        request = sequence.request
        if sequence.utterance.index != request.front:
            return False
        return not self.index or sequence.units > 0 or not request.speech.is_full

    # ---- plans ------------------------------------------------------------------------------------------------------

    def plan(self, now: float, *, only_first: bool = False, holds_back: bool = False, puts_off: bool = False) -> Plan:
        """Return the next plan, which may be empty.

        With `only_first`, the plan has only small units that produce first audio. With `holds_back`, it begins no
        utterance. With `puts_off`, it has no prefill.
        """
        plan = Plan(self.index, self._num_plans, is_autoregressive=self.policy.is_autoregressive)
        plan.drops, self._dropped = self._dropped, []
        begun: list[StageSequence] = []
        if self.policy.is_autoregressive:
            self._begin_all(plan, holds_back=holds_back)
            begun = [] if puts_off else self._prefill(plan)
            for sequence in self.running:
                if not self.index and sequence.utterance.new_texts and sequence.slot is not None:
                    plan.feeds.append(Feed(sequence.slot, *sequence.utterance.take_texts()))
                self._step(sequence, plan)
        else:
            self._begin_chosen(plan, now, only_first=only_first, holds_back=holds_back)
        if not plan.is_empty:
            self._num_plans += 1
            self.in_flight[plan.number] = InFlightPlan(self._owners(plan), begun)
        return plan

    def _owners(self, plan: Plan) -> Owners:
        slots = {*plan.steps, *(each.slot for each in plan.begins), *(each.slot for each in plan.prefills)}
        slots |= {*(each.slot for each in plan.loads), *(each.slot for each in plan.feeds)}
        rows = [(seq.slot, seq) for seq in (*self.in_prefill, *self.running)]
        return {slot: (seq, seq.units) for slot, seq in rows if slot is not None and slot in slots}

    def _begin_all(self, plan: Plan, *, holds_back: bool) -> None:
        for sequence in list(self.ready):
            if self.can_begin(sequence) and (sequence.units or not holds_back):
                self._begin(sequence, plan)
                self.in_prefill.append(sequence)
        for sequence in self.in_prefill:
            if sequence.num_prefilled == 0:
                self._load_prefix(sequence, plan)

    def _begin_chosen(self, plan: Plan, now: float, *, only_first: bool, holds_back: bool) -> None:
        able = [seq for seq in self.ready if self.can_begin(seq) and (seq.units or not holds_back)]
        if only_first:
            most = self.policy.helped_size
            able = [seq for seq in able if seq.request.speech.is_awaited and _size(seq) <= most]
        if not able:
            self.priority.somebody_runs_dry = False
            return
        first = self.priority.choose(able, now)
        plan.size = _size(first)
        like = [sequence for sequence in able if sequence is not first and _size(sequence) == plan.size]
        count = self.policy.num_taken(plan.size, 1 + len(like))
        chosen = [first, *(self.priority.order(like, now)[: count - 1] if count > 1 else [])]
        for sequence in chosen:
            if self.can_begin(sequence):  # earlier iterations may have taken the last slot
                self.priority.note(sequence)
                self._begin(sequence, plan)
                self.running.append(sequence)
                self._step(sequence, plan)

    def _begin(self, sequence: StageSequence, plan: Plan) -> None:
        unit, utterance = sequence.next_unit, sequence.utterance
        assert unit is not None
        assert unit.steps == 1 or self.policy.is_autoregressive, (
            "a unit of a stage that is not autoregressive has one step"
        )
        if sequence.slot is None:
            sequence.slot = self.slots.allocate()
        self.ready.remove(sequence)
        sequence.begin()
        given = utterance.given if sequence.before is None else sequence.before.items.cut
        produced = sequence.produced
        plan.begins.append(
            Begin(
                slot=sequence.slot,
                number=sequence.units,
                inputs=given(unit.start, unit.stop),
                past=sequence.items.cut(produced - unit.past, produced),
                produced=produced,
                steps=unit.steps,
                size=unit.size,
                context=sequence.consumed - unit.start,
                consumes=unit.consumes,
                conditions=utterance.conditions,
            )
        )

    def _step(self, sequence: StageSequence, plan: Plan) -> None:
        if sequence.slot is not None and sequence.can_step:
            sequence.num_launched += 1
            plan.steps.append(sequence.slot)

    def puts_off(self, *, runs_dry: bool) -> bool:
        """Whether the next plan skips prefill because `runs_dry`; true at most `MAX_PUT_OFF` times in a row."""
        self._num_put_off = self._num_put_off + 1 if runs_dry and self.in_prefill else 0
        if self._num_put_off > MAX_PUT_OFF:
            self._num_put_off = 0
        return self._num_put_off > 0

    # ---- prefill ----------------------------------------------------------------------------------------------------

    def _prefill(self, plan: Plan) -> list[StageSequence]:
        """Continue prefill; return the sequences whose prefill this plan completes."""
        room, done = self.policy.prefill_positions, []
        for sequence in [each for each in self.in_prefill if not self._waits_for_prefix(each)]:
            unit, slot = sequence.unit, sequence.slot
            assert unit is not None
            assert slot is not None
            while room and sequence.num_prefilled < unit.prefill and len(plan.prefills) < self.policy.max_prefills:
                start, shared = sequence.num_prefilled, self._num_shared(sequence)
                # No prefill crosses the end of the shared prefix: the parts after it are then the same with and
                # without a cached prefix.
                stop = min(start + room, shared if start < shared else unit.prefill)
                key = sequence.utterance.prompt.prefix_key if stop == shared else ""
                if key in self.prefixes or key in self._saving:
                    key = ""
                elif key:
                    self._saving.add(key)
                plan.prefills.append(Prefill(slot, start, stop, key))
                sequence.num_prefilled, room = stop, room - (stop - start)
            if sequence.num_prefilled == unit.prefill:
                self.in_prefill.remove(sequence)
                self.running.append(sequence)
                done.append(sequence)
        return done

    def _num_shared(self, sequence: StageSequence) -> int:
        """Return the length of the prefix that other requests may share; 0 if it is too short to cache."""
        prompt, unit = sequence.utterance.prompt, sequence.unit
        if self.index or sequence.units or unit is None or not prompt.prefix_key or prompt.num_shared < MIN_SHARED:
            return 0
        return min(prompt.num_shared, unit.prefill)

    def _load_prefix(self, sequence: StageSequence, plan: Plan) -> None:
        key = sequence.utterance.prompt.prefix_key
        if not self._num_shared(sequence) or (sequence.has_looked and key not in self.prefixes):
            return  # this miss has already been counted
        sequence.has_looked = True
        saved = self.prefixes.get(key)
        if saved is not None and sequence.slot is not None:
            plan.loads.append(Load(sequence.slot, saved))
            sequence.num_prefilled = saved.positions

    def keep(self, key: str, saved: Saved | None) -> None:
        """Cache a saved prefix; `saved` is None if memory ran out."""
        self._saving.discard(key)
        if saved is not None:
            self.prefixes.put(key, saved, saved.num_bytes)

    def _waits_for_prefix(self, sequence: StageSequence) -> bool:
        """Whether to wait, because another sequence is computing or saving the same prefix."""
        if sequence.num_prefilled or not self._num_shared(sequence):
            return False
        key = sequence.utterance.prompt.prefix_key
        if key in self._saving:
            return True
        first = next(each for each in self.in_prefill if each.utterance.prompt.prefix_key == key)
        return first is not sequence and first.num_prefilled < self._num_shared(first)

    # ---- release ----------------------------------------------------------------------------------------------------

    def release(self, sequence: StageSequence) -> None:
        if sequence.slot is not None:
            self.slots.free(sequence.slot)
            sequence.slot = None

    def drop(self, sequence: StageSequence) -> None:
        """Remove a sequence whose request has ended.

        The slot of an autoregressive stage is freed at once, because such a stage runs its plans in order. Plans of
        other stages may run in several threads, so that a slot in use is freed only when its plan is reported.
        """
        for sequences in (self.ready, self.in_prefill, self.running):
            if sequence in sequences:
                sequences.remove(sequence)
        if self.policy.is_remote and sequence.unit is not None and sequence.slot is not None:
            self._dropped.append(sequence.slot)
        if self.policy.is_autoregressive or sequence.unit is None:
            self.release(sequence)


class Priority:
    """Orders the sequences of one stage by the classes of `classify`.

    A class that was passed over a few times in a row (`MAX_PASSED_OVER`) is due, so that no sequence starves.
    """

    def __init__(self) -> None:
        self.somebody_runs_dry = False  # whether a stream was about to run out of audio at the last choice
        self._passed_over = [0, 0, 0, 0]  # for each class, how often in a row other classes were chosen
        self._num_choices = 0

    def choose(self, ready: Sequence[StageSequence], now: float) -> StageSequence:
        """Return the most urgent of `ready`, which is not empty."""
        classes = classify(ready, now)
        self.somebody_runs_dry = bool(classes[0])
        waiting = [number for number, sequences in enumerate(classes) if sequences]
        overdue = [number for number in waiting if self._passed_over[number] >= MAX_PASSED_OVER[number]]
        taken = (overdue or waiting)[0]
        for number in waiting:
            self._passed_over[number] += 1
        self._passed_over[taken] = 0
        return classes[taken][0]

    def order(self, ready: Sequence[StageSequence], now: float) -> list[StageSequence]:
        return [sequence for sequences in classify(ready, now) for sequence in sequences]

    def note(self, sequence: StageSequence) -> None:
        """Record that a sequence was chosen. In the last class, the sequence that was chosen longest ago is first."""
        self._num_choices += 1
        sequence.last_choice = self._num_choices


def classify(ready: Sequence[StageSequence], now: float) -> tuple[list[StageSequence], ...]:
    """Divide sequences into four classes, the most urgent first, and sort each class.

    The classes: streams about to run out of audio, streams without any audio yet, streams that have run out of audio,
    and all others.
    """
    urgent: list[StageSequence] = []
    firsts: list[StageSequence] = []
    dry: list[StageSequence] = []
    rest: list[StageSequence] = []
    for sequence in ready:
        speech = sequence.request.speech
        if now <= speech.runs_dry < now + RESERVE_S:
            urgent.append(sequence)
        elif speech.is_awaited:
            firsts.append(sequence)
        elif speech.runs_dry < now:
            dry.append(sequence)
        else:
            rest.append(sequence)
    urgent.sort(key=_runs_dry)
    dry.sort(key=_runs_dry)
    rest.sort(key=lambda sequence: sequence.last_choice)
    return urgent, firsts, dry, rest


def _runs_dry(sequence: StageSequence) -> float:
    return sequence.request.speech.runs_dry


def _size(sequence: StageSequence) -> int:
    return 1 if sequence.next_unit is None else sequence.next_unit.size
