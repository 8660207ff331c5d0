"""The one scheduler: which sequence computes how many tokens in the next step, and who waits.

A sequence has `num_tokens` and `num_computed`; a step grants the difference under a token budget. A decode is a grant
of one, chunked prefill a grant of many, recompute after preemption nothing special. The sequences of a request fork
behind its prompt and hold its blocks together; whoever is to write into a block that others hold too gets a copy first.
Who goes first is the scheduling policy's, which ranks sequences. Knows no tensors, no threads and no clock.

Invariants: a step never exceeds its budget; no grant writes into a block that another sequence holds; where blocks run
short the last in rank gives its own back, with all sequences of its request unless the first in rank is one of them;
while the first of those that wait lacks blocks, nobody ranked after it gets any, and no hold begins on what holds alone
would keep (`hold`), so the first advances once the holds that it found have ended; as everybody comes to be the first
(`scheduling_policy`), nobody starves; beams advance together, so those that run while others of their search wait give
way to whoever goes before these. A sequence that hands off is never preempted, because it owns all its blocks from its
admission on. One that is larger than the pool runs alone, and keeps its first blocks in host memory.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence as Several
from collections.abc import Set
from dataclasses import replace

from pagewire.core.errors import InvalidRequest
from pagewire.core.sequence_spec import Branch, SequenceSpec
from pagewire.engine import departed, spec_check, swap
from pagewire.engine.beam_search import BeamSearch
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.group import Group
from pagewire.engine.limits import Limits
from pagewire.engine.preemption import Preemption
from pagewire.engine.role_policy import RolePolicy
from pagewire.engine.scheduling_policy import FirstComeFirstServed, SchedulingPolicy
from pagewire.engine.sequence import Sequence, State
from pagewire.engine.speculation import Speculation
from pagewire.engine.step import Grant, Step
from pagewire.engine.step_budget import StepBudget
from pagewire.engine.step_cost import StepShape


class Scheduler:
    """All sequences of an engine, and the order in which they advance."""

    def __init__(
        self,
        pool: BlockPool,
        limits: Limits,
        policy: RolePolicy,
        scheduling: SchedulingPolicy | None = None,
        preemption: Preemption | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.pool = pool
        # What leaves for another pod leaves whole.
        self.limits = replace(limits, window=0, spills=False) if policy.hands_off else limits
        self.policy = policy
        self.scheduling = scheduling or FirstComeFirstServed()
        self.preemption = preemption or Preemption()
        self.speculation = speculation
        self.sequences: dict[str, Sequence] = {}  # by name
        self.groups: dict[str, Group] = {}  # by the request's id
        self.holds: dict[str, list[int]] = {}  # blocks pinned for other pods, by the hold's id
        self.refused: set[str] = set()  # requests that found no room, until they have some, are queued or aborted
        self.running: list[Sequence] = []  # first in rank first, like the next two
        self.joined: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.num_preemptions = 0
        self.preempted: list[str] = []  # requests, until somebody takes note of them
        self.num_swaps = 0  # of these, those whose KV was copied to host memory
        self.num_prompt_tokens = 0  # of the sequences that were admitted, and of those what was cached, and pinned
        self.num_cached_tokens = 0
        self.num_pinned_tokens = 0
        self.ahead: frozenset[str] = frozenset()  # sequences in a step that was begun ahead of the one before
        self._departing: dict[str, Sequence] = {}  # ended, in such a step all the same: it writes into their blocks
        self._arrivals = 0
        self._short: Sequence | None = None  # waits for blocks that were not there
        self._lone: Sequence | None = None  # larger than the pool: nobody runs beside it

    def add(self, spec: SequenceSpec, first_block: int = 0, now_s: float = 0.0) -> None:
        """Queue a request that starts from its tokens; raises InvalidRequest."""
        sequence = self.admit_spec(spec, now_s)
        sequence.reported_blocks = first_block
        insort(self.waiting, sequence, key=self.rank)
        self.branch(sequence, spec.branches)

    def admit_spec(self, spec: SequenceSpec, now_s: float = 0.0) -> Sequence:
        """Return the first sequence of a request that the engine knows from now on; raises InvalidRequest."""
        if spec.request_id in self.groups or spec.request_id in self.holds:
            raise InvalidRequest(f"request {spec.request_id} is here already", field="request_id")
        self.refused.discard(spec.request_id)
        self.check(spec)
        sequence = Sequence(
            spec=spec,
            group=Group(request_id=spec.request_id, search=self._search(spec)),
            name=spec.request_id,
            index=spec.index,
            num_given=len(spec.tokens) + len(spec.output),
            arrival=self._arrivals,
            block_size=self.limits.block_size,
            arrived_s=now_s,
            output=list(spec.output),
            adapter=self.limits.adapter_number(spec.adapter),
        )
        self._arrivals += 1
        self.groups[spec.request_id] = sequence.group
        self._know(sequence)
        return sequence

    def check(self, spec: SequenceSpec) -> None:
        """Raise InvalidRequest where a request could not run to its end here, whatever else runs."""
        num_blocks, num_slots = self.pool.num_blocks - self.pool.num_pinned, self.pool.host.num_slots
        spec_check.check(
            spec, self.limits, num_blocks, num_slots, begins_only=self.policy.hands_off,
            finds_equals=self.pool.cache.is_on,
        )  # fmt: skip

    def _search(self, spec: SequenceSpec) -> BeamSearch | None:
        if not spec.sampling.use_beam_search:
            return None
        limit = self.limits.most_output(len(spec.tokens), spec.sampling.max_tokens)
        return BeamSearch.of(spec.sampling, limit, self.limits.eos_token_ids)

    def branch(self, first: Sequence, branches: tuple[Branch, ...]) -> None:
        """Account for the other sequences of a request, which differ from the first from the end of its prompt on.

        Where nothing is out yet, or all of the prompt's KV is there, they fork; otherwise what the first computes of
        the prompt comes to them through the cache.
        """
        if not first.output:
            first.unforked = branches
            return
        for branch in branches:
            if first.num_computed >= first.num_prompt:
                self.enqueue_joined(self._fork(first, branch, first.num_prompt))
                continue
            sequence = first.sibling(branch)
            sequence.num_given += len(branch.output)
            self._know(sequence)
            insort(self.waiting, sequence, key=self.rank)

    def fork(self, sequence: Sequence) -> list[Sequence]:
        """Let the sequences fork off that one whose prompt is computed has before it; return them, which run."""
        branches, sequence.unforked = sequence.unforked, ()
        return [self.fork_off(sequence, branch) for branch in branches]

    def fork_off(self, sequence: Sequence, branch: Branch) -> Sequence:
        """Let another sequence fork off one that runs, with all that is computed of it; return it, which runs."""
        forked = self._fork(sequence, branch, sequence.num_computed)
        forked.state = State.RUNNING
        insort(self.running, forked, key=self.rank)
        return forked

    def _fork(self, sequence: Sequence, branch: Branch, num_common: int) -> Sequence:
        forked = sequence.forked(branch, num_common)
        self.pool.share(forked.held)
        self._know(forked)
        return forked

    def _know(self, sequence: Sequence) -> None:
        self.sequences[sequence.name] = sequence
        sequence.group.members.append(sequence)

    def enqueue_joined(self, sequence: Sequence) -> None:
        """Let a sequence that already owns its blocks wait for a place in the batch."""
        sequence.state = State.JOINED
        insort(self.joined, sequence, key=self.rank)

    def rank(self, sequence: Sequence) -> tuple[float, int, int]:
        """Return what sequences are ordered by, the first the least."""
        handicap_s = self.scheduling.handicap_s(sequence.spec.priority, sequence.num_left)
        return sequence.arrived_s + handicap_s, sequence.arrival, sequence.index

    def may_take_blocks(self, sequence: Sequence) -> bool:
        """Return whether no sequence that ranks before this one lacks blocks, and none has them all."""
        return self._lone is None and (self._short is None or self.rank(sequence) < self.rank(self._short))

    @property
    def is_alone(self) -> bool:
        """True while a sequence runs that is larger than the pool."""
        return self._lone is not None

    @property
    def is_short(self) -> bool:
        """True while somebody waits for blocks that were not there."""
        return self._short is not None or bool(self.refused)

    @property
    def stuck(self) -> Group | None:
        """The request whose beams wait for one another for good, where nothing advances: a fault of ours.

        Those that are heard hold what the others lack, which is for nobody else to give back.
        """
        if self.joined or self.holds or self.pool.num_reserved or self._departing:
            return None
        if (first := next(iter((*self.waiting, *self.running)), None)) is None:
            return None
        group = first.group
        if group.search is None or not any(each.group is group for each in self.running):
            return None
        are_beams = all(each.group is group or each.state is State.WAITING for each in self.sequences.values())
        return group if are_beams else None

    def hand_off(self, sequence: Sequence) -> None:
        """Take a sequence out of the batch; its blocks stay held."""
        self.running.remove(sequence)
        sequence.state = State.HANDED_OFF

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence in whatever state, and give back its blocks and its promise."""
        self._forget(sequence)
        self._release(sequence)

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence that its own token ended; where a step is begun ahead for it, its blocks wait for that."""
        if sequence.name in self.ahead:
            self._forget(sequence)
            self._departing[sequence.name] = sequence
        else:
            self.remove(sequence)

    def land(self, ahead: frozenset[str] = frozenset()) -> Set[str]:
        """Give back the blocks of those that had ended before the step that is over now; return their names.

        The names `ahead` are in a step that was begun ahead of it.
        """
        landed, self._departing, self.ahead = self._departing, {}, ahead
        for sequence in landed.values():
            self._release(sequence)
        return landed.keys()

    def _forget(self, sequence: Sequence) -> None:
        del self.sequences[sequence.name]
        sequence.group.members.remove(sequence)
        if not sequence.group.members:
            del self.groups[sequence.request_id]
        for queue in (self.running, self.joined, self.waiting):
            if sequence in queue:
                queue.remove(sequence)
        self.pool.unreserve(sequence.promised)
        sequence.promised = 0
        swap.forget(self.pool, sequence)
        if sequence is self._short:
            self._short = None

    def remove_request(self, request_id: str) -> bool:
        """Forget all sequences of a request, or that it found no room; return whether there were any."""
        self.refused.discard(request_id)
        group = self.groups.get(request_id)
        for sequence in list(group.members) if group is not None else ():
            self.remove(sequence)
        return group is not None

    def trim(self, sequence: Sequence) -> None:
        """Give back the blocks behind that of its last token, which drafted ones were to go to."""
        end = self.limits.num_blocks(sequence.num_tokens)
        if len(sequence.block_table) > end:
            self.pool.release(sequence.block_table[end:])
            del sequence.block_table[end:]

    def count_hits(self, sequence: Sequence, hits: Several[int]) -> None:
        """Account for the first admission of a request, with the cached blocks that its first sequence found."""
        self.num_prompt_tokens += sequence.num_given
        self.num_cached_tokens += len(hits) * self.limits.block_size
        self.num_pinned_tokens += self.pool.num_pinned_in(hits) * self.limits.block_size

    def tables(self) -> list[Several[int]]:
        """Return the blocks that each sequence and each hold keeps."""
        sequences = (*self.sequences.values(), *self._departing.values())
        return [*[sequence.held for sequence in sequences], *self.holds.values()]

    def num_orphaned(self) -> int:
        """Return how many blocks are held for nobody."""
        sequences = (*self.sequences.values(), *self._departing.values())
        num_known = sum([len(each.block_table) - each.num_gone for each in sequences])
        if num_known + sum(map(len, self.holds.values())) == self.pool.num_claims:
            return 0  # asked after every step: no look at each block while the totals agree
        return self.pool.num_orphaned(self.tables())

    def num_held_tokens(self) -> int:
        """Return the tokens whose KV lies in blocks that sequences hold, each sequence counted for itself."""
        size = self.limits.block_size
        return sum(each.num_computed - each.num_gone * size for each in self.sequences.values())

    def num_waiting_tokens(self) -> int:
        """Return the tokens that queued and running prompts have yet to compute."""
        prompts = [each for each in self.running + self.joined if not each.is_decoding]
        return sum(each.num_tokens - each.num_computed for each in self.waiting + prompts)

    def decodes_ahead(self) -> tuple[StepShape, int]:
        """Return the decodes that the next step begins with, and how deep in its prompt the first prefill stands."""
        ready = [each for each in self.running + self.joined if each.num_left == 1][: self.limits.max_num_seqs]
        depth = next((each.num_computed for each in self.running if each.num_left > 1), 0)
        return StepShape(decodes=len(ready), attended=sum(each.num_tokens for each in ready)), depth

    def schedule(self, max_prefill_tokens: int | None = None) -> Step | None:
        """Return the next step, None when nothing can advance.

        `max_prefill_tokens`, at least 1, bounds what the step computes beside one token for each that decodes.
        """
        budget = StepBudget(self.limits.max_num_batched_tokens, max_prefill_tokens)
        preempted_before = self.num_preemptions
        if self.scheduling.changes:  # else they are in order, for each was put in its place
            self.running.sort(key=self.rank)
        decodes: list[Sequence] = []
        prompts: list[Sequence] = []
        for sequence in self.running:
            (decodes if sequence.is_decoding else prompts).append(sequence)
        for sequence in decodes:
            self._grant_token(sequence, budget)
        for sequence in prompts:
            self._grant(sequence, budget)
        # Whoever was just preempted would come straight back and be preempted again.
        self._admit(budget, with_waiting=self.num_preemptions == preempted_before)
        if not budget.grants:
            return None
        drafts = self._draft(budget)
        return Step(
            grants=tuple([self._freeze(each, count, drafts.get(each, ())) for each, count in budget.grants.items()])
        )

    def _draft(self, budget: StepBudget) -> dict[Sequence, tuple[int, ...]]:
        """Return the drafted tokens that decodes compute too, in what nobody else could use: budget and free blocks."""
        if self.speculation is None or self.policy.hands_off:
            return {}
        decodes = [sequence for sequence in budget.grants if sequence.is_decoding]
        drafts = self.speculation.draft(decodes, self.limits, budget.room_for_drafts)
        for sequence, tokens in drafts.items():
            missing = self.limits.num_blocks(sequence.num_tokens + len(tokens)) - len(sequence.block_table)
            if missing > 0:  # what others are promised is not free, and nothing is evicted for a draft
                free = min(self.pool.num_free, self.pool.num_available)
                sequence.block_table.extend(self.pool.allocate(min(missing, free)))
            drafts[sequence] = tokens[: len(sequence.block_table) * self.limits.block_size - sequence.num_tokens]
        return drafts

    def _admit(self, budget: StepBudget, *, with_waiting: bool) -> None:
        """Start who is first of those that wait; one that cannot have blocks holds up those that need some as well."""
        preempted_before = self.num_preemptions
        joined, waiting = deque(self.joined), deque(self.waiting if with_waiting else ())
        while (joined or waiting) and not budget.is_spent and self._lone is None:
            queue = min((queue for queue in (joined, waiting) if queue), key=lambda queue: self.rank(queue[0]))
            sequence = queue.popleft()
            if not self._has_seats(sequence) and not (self._part(sequence, budget) and self._has_seats(sequence)):
                return
            if queue is joined:
                if sequence.state is State.JOINED and budget.room(sequence) > 0:
                    self._start(sequence, self.joined, budget)
            elif self._follows(sequence):
                continue
            elif budget.room(sequence) > 0 and (
                self._take_blocks(sequence) or (self._clear(sequence, budget) and self._take_blocks(sequence))
            ):
                self._start(sequence, self.waiting, budget)
            else:
                waiting.clear()
            if self.num_preemptions != preempted_before:
                waiting.clear()

    @property
    def may_start(self) -> bool:
        """True where somebody who waits might have a place in the next step."""
        return any(self._has_seats(queue[0]) for queue in (self.joined, self.waiting) if queue)

    def _has_seats(self, sequence: Sequence) -> bool:
        return sum(each.num_seats for each in self.running) + sequence.num_seats <= self.limits.max_num_seqs

    def _part(self, first: Sequence, budget: StepBudget) -> bool:
        """Preempt the beams that wait for others which `first`, who lacks a place or blocks, goes before.

        Beams advance together, so these would keep what they have for as long as `first` waits. Returns whether there
        were any.
        """
        behind = [each for each in self.waiting if self.rank(each) > self.rank(first)]
        parted = {each.group for each in behind if each.group.search is not None} - {first.group}
        beams = [each for each in self.running if each.group in parted]
        for beam in beams:
            budget.take_back(beam)
            self._preempt(beam)
        return bool(beams)

    def _clear(self, first: Sequence, budget: StepBudget) -> bool:
        """Preempt who keeps blocks that `first` lacks and may not advance before it; return whether there were any.

        Where `first` is a beam, they are those that have joined behind it too: the places that they wait for may be
        those of the other beams, which wait for `first`.
        """
        behind = [each for each in self.joined if first.group.search is not None and self.rank(each) > self.rank(first)]
        for each in behind:
            self._preempt(each)
        return self._part(first, budget) or bool(behind)

    def _follows(self, sequence: Sequence) -> bool:
        """Return whether another sequence of its request is computing full blocks for it that both begin with.

        One that waits has no blocks itself.
        """
        others = (each for each in sequence.group.members if each.block_table)
        return any(each.num_computed < sequence.num_common_with(each) for each in others)

    def _start(self, sequence: Sequence, queue: list[Sequence], budget: StepBudget) -> None:
        queue.remove(sequence)
        sequence.state = State.RUNNING
        insort(self.running, sequence, key=self.rank)
        self._grant(sequence, budget)

    def _grant(self, sequence: Sequence, budget: StepBudget) -> None:
        # A sequence of the snapshot may have been preempted for one before it meanwhile.
        count = min(sequence.num_tokens - sequence.num_computed, self.limits.chunk_size, budget.room(sequence))
        if sequence.state is State.RUNNING and count > 0 and self._grow(sequence, count, budget):
            budget.grant(sequence, count)

    def _grant_token(self, sequence: Sequence, budget: StepBudget) -> None:
        """Do as `_grant` for one that decodes, of which a step may have hundreds."""
        if sequence.state is not State.RUNNING or budget.is_spent:
            return
        first, table = sequence.num_computed // self.limits.block_size, sequence.block_table
        is_covered = first < len(table) and self.pool.is_writable(table[first])
        if is_covered or self._grow(sequence, 1, budget):
            budget.grant_token(sequence)

    def _grow(self, sequence: Sequence, count: int, budget: StepBudget) -> bool:
        """Make the block table cover `count` more tokens in blocks that nobody else holds.

        Preempts the last in rank where that takes it; False when that was this one. One that is alone and larger than
        the pool spills; False when others are promised what it needs, or hold it.
        """
        missing = self.limits.num_blocks(sequence.num_computed + count) - len(sequence.block_table)
        while (short := max(missing, 0) + self._needs_own(sequence) - self.pool.num_available) > 0:
            if departed.is_too_large(self.pool, self.limits, sequence) and self.running + self.joined == [sequence]:
                if not departed.spill(self.pool, self.limits, sequence, short):
                    return False
                self._lone = sequence
                continue
            for victim in self._victims():
                budget.take_back(victim)
                self._preempt(victim)
            if sequence.state is not State.RUNNING:
                return False
        if self._needs_own(sequence):
            first = sequence.num_computed // self.limits.block_size
            sequence.block_table[first] = self.pool.own(sequence.block_table[first])
        if missing > 0:
            sequence.block_table.extend(self.pool.allocate(missing))
        return True

    def _needs_own(self, sequence: Sequence) -> bool:
        """Return whether the block that the next token's KV goes to is not its own; those behind it are."""
        first = sequence.num_computed // self.limits.block_size
        return first < len(sequence.block_table) and not self.pool.is_writable(sequence.block_table[first])

    def _victims(self) -> list[Sequence]:
        """Return who is to be preempted: the last in rank, and with it all of its request.

        Unless the first in rank is one of them, which always advances: then the last goes alone.
        """
        stepping = self.running + self.joined
        first, last = min(stepping, key=self.rank), max(stepping, key=self.rank)
        if first.group is last.group:
            return [last]
        return [each for each in stepping if each.group is last.group]

    def _preempt(self, victim: Sequence) -> None:
        assert not self.policy.hands_off, "blocks that were announced to another pod must stay"
        (self.running if victim.state is State.RUNNING else self.joined).remove(victim)
        swaps = swap.save(self.pool, self.limits, self.preemption, victim)
        self._release(victim, parks=swaps)
        victim.num_computed, victim.num_registered = 0, 0
        victim.state = State.WAITING
        insort(self.waiting, victim, key=self.rank)
        self._short = self.waiting[0]
        self.num_preemptions += 1
        self.num_swaps += swaps
        self.preempted.append(victim.request_id)

    def _release(self, sequence: Sequence, *, parks: bool = True) -> None:
        departed.release(self.pool, sequence, parks=parks)
        if sequence is self._lone:
            self._lone = None

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Give a waiting sequence what the cache holds of it and fresh blocks for the rest; False when short.

        One that comes in parts gets what it holds at most at a time, and of the cache what the next token sees; one
        that is larger than the pool gets the whole of it, bit by bit.
        """
        hits = self.pool.match(sequence.hit_chain())
        num_hits, end, gone = len(hits), self.limits.num_blocks(sequence.num_tokens), 0
        is_too_large = departed.is_too_large(self.pool, self.limits, sequence)
        in_parts = departed.comes_in_parts(self.pool, self.limits, sequence)
        if is_too_large:
            if self.running or self.joined or self.pool.num_held or self.pool.num_reserved:
                self._short = sequence
                return False
            end = num_hits
        elif in_parts:
            gone = self.limits.num_passed(num_hits * self.limits.block_size)
            hits, end = hits[gone:], min(end, gone + self.limits.most_held(sequence.num_tokens))
        fresh = end - num_hits
        # One block to spare for each that runs, or its next block would preempt this one at once.
        beside = sum(each.num_seats for each in self.running) + len(self.joined)
        spare = 0 if self.policy.hands_off or not beside else beside + len(sequence.unforked)
        if self.pool.num_unreferenced(hits) + fresh + spare > self.pool.num_available:
            self._short = sequence
            return False
        if in_parts:
            departed.begin_behind(self.pool, self.limits, sequence, gone, hits)
            swap.forget(self.pool, sequence)
        else:
            swap.claim(self.pool, self.limits, sequence)  # and what the host tier has, in some of the fresh ones
        if sequence.group.cached_tokens is None:
            sequence.group.cached_tokens = sequence.num_computed
            self.count_hits(sequence, sequence.block_table)
        sequence.block_table.extend(self.pool.allocate(end - len(sequence.block_table)))
        if is_too_large:
            self._lone = sequence
        if sequence is self._short:
            self._short = None
        return True

    def _freeze(self, sequence: Sequence, count: int, drafted: tuple[int, ...]) -> Grant:
        start, stop = sequence.num_computed, sequence.num_computed + count
        draw = sequence.draw() if stop == sequence.num_tokens else None
        # Beams come of their parents' candidates.
        forks = sequence.unforked if draw is not None and sequence.group.search is None else ()
        return Grant(
            request_id=sequence.name,
            tokens=sequence.tokens(start, stop) + drafted,
            start=start,
            block_ids=sequence.block_table[: self.limits.num_blocks(stop + len(drafted))],
            draw=draw,
            seal=draw is not None and self.policy.hands_off,
            scoring=sequence.scoring(start, stop),
            spilled=tuple(sequence.spilled),
            adapter=sequence.adapter,
            forks=tuple([sequence.draw(each.index) for each in forks]) if forks else (),
            checks=tuple([sequence.draw(drafted=drafted[:end]) for end in range(1, len(drafted) + 1)])
            if drafted
            else (),
        )
