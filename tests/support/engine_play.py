"""Requests of all kinds on an engine's loop, driven at random while the device computes.

They come, fork, search with beams, go on from what was said elsewhere, have their prompts scored, end by a token or by
their length, are stopped, aborted, preempted, swapped, spilled and cut off by a change of roles; they bring blocks that
others write, and blocks are held for other pods. Every token is held against the function of all before it, every
search against one in which nobody is in its way, every score against its token, every sequence that nobody cut against
its end, every abort against two steps.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, replace
from typing import Any

from engine_runs import assert_at_rest, greedy, spec
from guesses import Guesses
from late_device import BEAM_END, LateDevice, candidates, following

from pagewire.core.block_hash import chain
from pagewire.core.cache_quota import CacheQuota
from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import Add, Bind, Hold, Join, Keep, Reserve, SequenceEnd, Stop
from pagewire.core.messages import Role
from pagewire.core.sampling import EarlyStopping, SamplingParams
from pagewire.core.sequence_spec import Branch, SequenceSpec, branches
from pagewire.core.token_record import TokenRecord
from pagewire.engine.beam_search import BeamSearch
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.brownout import Brownout
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.limits import Limits
from pagewire.engine.preemption import Preemption, PreemptionMode
from pagewire.engine.role_policy import policy_of
from pagewire.engine.role_terms import RoleTerms
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.scheduling_policy import PolicyName, policy_named
from pagewire.engine.sequence import Sequence

BLOCK = 4
REQUESTS = 40
LIMITS = Limits(
    max_num_batched_tokens=24, max_num_seqs=5, chunk_size=9, block_size=BLOCK, max_model_len=60, vocab_size=40
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a play is set in. `fails` is how likely a launched step fails; with `roles` they change.

    `is_mixed`: requests are of all kinds, or they only have a prompt and one or two answers.
    """

    num_blocks: int = 30
    host_slots: int = 0
    window: int = 0
    places: int = 5
    fails: float = 0.0
    launches: bool = True
    roles: bool = False
    brownout: bool = False  # service is reduced where blocks are short
    most_drafted: int = 0
    role: Role = Role.COLOCATED
    is_mixed: bool = False
    spills: bool = False
    policy: PolicyName = PolicyName.FCFS

    @property
    def longest(self) -> int:
        """Tokens of a sequence that has room, a copy of its last block included."""
        num_blocks = self.num_blocks + (self.host_slots if self.spills else 0)
        return LIMITS.max_model_len if self.window else min(LIMITS.max_model_len, (num_blocks - 1) * BLOCK)


@dataclass(slots=True)
class Said:
    """What a sequence said, from its first token on, be it said elsewhere."""

    tokens: list[int] = field(default_factory=list)
    has_ended: bool = False


class Play:
    """A loop on a late device, and whoever drives it."""

    def __init__(self, seed: int, scene: Scene = Scene()) -> None:
        self.chance = random.Random(seed)
        self.device = LateDevice(BLOCK, self.chance, scene.window)
        self.device.fails = scene.fails
        self.device.during = self.act
        limits = replace(
            LIMITS, window=scene.window, max_num_seqs=scene.places, spills=scene.spills, max_model_len=scene.longest
        )
        preemption = Preemption(PreemptionMode.SWAP) if scene.host_slots else None
        pool = BlockPool(scene.num_blocks, scene.host_slots)
        self.scheduler = Scheduler(pool, limits, policy_of(scene.role), policy_named(scene.policy), preemption)
        if scene.most_drafted:
            self.scheduler.speculation = Guesses(scene.most_drafted, self._said_by, wrong=39)
        terms = {
            role: RoleTerms(policy=policy_of(role), limits=limits, least_prefill=BLOCK)
            for role in (Role.COLOCATED, Role.DECODE)
        }
        launcher = self.device if scene.launches else None
        self.clock = ManualClock()
        brownout = Brownout(least_prefill=BLOCK) if scene.brownout else None
        self.loop = EngineLoop(
            self.scheduler, self.device, self.clock, self.device, roles=terms, launcher=launcher, brownout=brownout
        )
        self._scene = scene
        self.whole: Counter[str] = Counter()  # requests that came to their end, by their kinds
        self._said: dict[tuple[str, int], Said] = {}
        self._scores: dict[str, list[int]] = {}
        self._specs: dict[str, SequenceSpec] = {}
        self._num_made = 0
        self._cut: set[str] = set()  # refused, aborted, stopped in part, or of another role's time
        self._landed: set[str] = set()  # of whose prompts others computed something
        self._reserved: dict[str, int | None] = {}  # cached blocks; None for one that has its blocks bit by bit
        self._holds: list[str] = []
        self._awaited: dict[str, int] = {}  # steps since an abort that is not answered

    def act(self) -> None:
        """Do something that others may do at any time."""
        if self._scene.brownout:
            self.clock.advance(self.chance.choice((0.01, 0.5)))
        acts = (
            self.add, self.add, self.reserve, self.ship, self.join, self.abort, self.stop, self.hold, self.release,
            self.become,
        )  # fmt: skip
        for _ in range(self.chance.choice((0, 0, 1, 1, 2))):
            self.chance.choice(acts)()

    def _spec(self) -> SequenceSpec:
        name, chance = f"r{self._num_made}", self.chance
        self._num_made += 1
        common = [chance.choice((1, 2)) for _ in range(chance.choice((0, 4, 8)))]
        tokens = common + [chance.randrange(40) for _ in range(chance.randint(1, 14))]
        if self._scene.is_mixed:
            return self._mixed_spec(name, tokens)
        n = chance.choice((1, 1, 1, 2))
        sampling = greedy(chance.randint(1, 24), n=n, stop_token_ids=self._stops())
        return spec(name, tokens, sampling, branches=branches(n))

    def _mixed_spec(self, name: str, tokens: list[int]) -> SequenceSpec:
        chance = self.chance
        n, most = chance.choice((1, 1, 2, 3)), chance.randint(1, 24)
        said = SamplingParams(
            temperature=0.0, ignore_eos=True, n=n, max_tokens=most, stop_token_ids=self._stops(),
            prompt_logprobs=chance.choice((None, None, None, 0)),
        )  # fmt: skip
        whose: dict[str, Any] = {
            "priority": chance.choice((-100, -1, 0, 0, 1, 100)),
            "cache_quota": chance.choice((None, None, CacheQuota(tag=b"a", share=chance.choice((0.0, 0.2, 1.0))))),
        }
        kind = chance.choice(("asked", "asked", "beams", "goes on"))
        if kind == "beams":
            width = chance.randint(n, 3)
            said = replace(
                said, use_beam_search=True, beam_width=width, length_penalty=chance.choice((0.0, 1.0, 2.5)),
                early_stopping=chance.choice(tuple(EarlyStopping)), stop_token_ids=(BEAM_END,),
            )  # fmt: skip
            return spec(name, tokens, said, branches=branches(width), **whose)
        if kind == "goes on" and most > 1:
            begun = [self._begun(tokens, index, chance.randrange(1, most), said) for index in range(n)]
            going = [Branch(index=at, output=output) for at, output in enumerate(begun) if output] or [Branch(index=0)]
            first, others = going[0], tuple(going[1:])
            return spec(name, tokens, said, index=first.index, output=first.output, branches=others, **whose)
        return spec(name, tokens, said, branches=branches(n), **whose)

    def _stops(self) -> tuple[int, ...]:
        return (3, 11, 25) if self.chance.random() < 0.5 else ()

    def _begun(self, prompt: Listed[int], index: int, count: int, sampling: SamplingParams) -> tuple[int, ...]:
        """Return what a sequence says first; nothing where that ends it."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(self._following(tokens, index))
        output = tuple(tokens[len(prompt) :])
        is_over = count >= sampling.max_tokens or len(tokens) >= self._scene.longest
        return () if is_over or {*output} & {*sampling.stop_token_ids} else output

    def _enter(self, made: SequenceSpec) -> None:
        self._specs[made.request_id] = made
        self._scores[made.request_id] = []
        for each in _streams(made):
            self._said[made.request_id, each.index] = Said(list(each.output))

    def add(self) -> None:
        """Another request."""
        if self._num_made < REQUESTS:
            made = self._spec()
            self._enter(made)
            self.loop.add(Add(spec=made))

    def reserve(self) -> None:
        """Another request, whose blocks another pod is to write."""
        if self._num_made < REQUESTS:
            made = self._spec()
            reserved = self.loop.reserve(Reserve(spec=made))
            if reserved.error is None:
                self._enter(made)
                self._reserved[made.request_id] = None if reserved.in_parts else reserved.hit_blocks

    def join(self) -> None:
        """Write the blocks of one that was reserved, all of them or some, and let it run."""
        if not self._reserved:
            return
        name = self.chance.choice(sorted(self._reserved))
        hits, made = self._reserved.pop(name), self._specs[name]
        landed, num_tokens = 0, len(made.tokens)
        if hits is not None:
            landed = num_tokens
            if self._scene.is_mixed and self.chance.random() < 0.5:
                landed = self.chance.randint(min(hits * BLOCK, num_tokens), num_tokens)
            table = self.loop.bind(Bind(request_id=name, num_blocks=-(-num_tokens // BLOCK))).block_ids
            self.device.write(table[hits:], made.tokens[hits * BLOCK : landed])
            if self._scene.is_mixed and self.chance.random() < 0.3:
                self.loop.keep(Keep(request_id=name, num_computed=landed))
            self._landed.add(name)
        join = Join(request_id=name, num_computed=landed, output=made.output, index=made.index, branches=made.branches)
        is_plain = not (made.output or made.branches or made.sampling.use_beam_search)
        if is_plain and landed == num_tokens:
            first = self._begun(made.tokens, 0, 1, made.sampling)
            self._said[name, 0].tokens += first
            join = replace(join, output=first)
        self.loop.join(join)

    def ship(self) -> None:
        """Another request, whose blocks another pod writes in no time."""
        self.reserve()
        self.join()

    def abort(self) -> None:
        """End one of the requests."""
        name = self._any()
        if name is not None:
            self._cut.add(name)
            self._reserved.pop(name, None)
            if self.loop.abort(name) is None:
                self._awaited[name] = 0

    def stop(self) -> None:
        """End one sequence of a request."""
        name = self._any()
        if name is not None and name not in self._reserved:
            self._cut.add(name)
            self.loop.stop(Stop(request_id=name, index=self.chance.randrange(2)))

    def hold(self) -> None:
        """Hold what is cached of a prompt for another pod."""
        name = self._any()
        if name is None:
            return
        hold = f"h{self._num_made}-{self.chance.random()}"
        hashes = tuple(chain(self._specs[name].root, self._specs[name].tokens, BLOCK))
        if hashes and self.loop.hold(Hold(request_id=hold, hashes=hashes)).block_ids:
            self._holds.append(hold)

    def release(self) -> None:
        """Let go of what is held for another pod."""
        if self._holds:
            self.loop.release(self._holds.pop(self.chance.randrange(len(self._holds))))

    def become(self) -> None:
        """Change the role, which cuts off whatever runs."""
        if self._scene.roles and self.chance.random() < 0.1:
            self.loop.become(self.chance.choice((Role.COLOCATED, Role.DECODE)))
            self._cut |= {*self._specs}

    def _any(self) -> str | None:
        return self.chance.choice(sorted(self._specs)) if self._specs and self.chance.random() < 0.5 else None

    def _following(self, tokens: Listed[int], index: int) -> int:
        return following(tokens, index, self._scene.window)

    def _said_by(self, sequence: Sequence, place: int) -> int:
        tokens = [*sequence.spec.tokens, *sequence.output]
        while len(tokens) <= sequence.num_prompt + place:
            tokens.append(self._following(tokens, sequence.index))
        return tokens[sequence.num_prompt + place]

    def run(self) -> None:
        """Step and act until all is said; then nothing is held by anybody."""
        self.add()
        for _ in range(3000):
            done = self.loop.step()
            self.loop.check()
            for freed in self.loop.take_freed():
                del self._awaited[freed.request_id]
            self._awaited = {name: steps + 1 for name, steps in self._awaited.items()}
            assert all(steps <= 2 for steps in self._awaited.values()), f"not answered: {self._awaited}"
            if self.loop.take_became():
                self._cut |= {*self._specs}
                self._reserved.clear()
                self._holds.clear()
            if done is not None:
                for record in done.records:
                    self._hear(record)
                for end in done.ends:
                    self._hear_end(end)
            elif self._num_made < REQUESTS or self._reserved:
                self.act()
            elif self._holds:
                self.release()
            else:
                break
        else:
            raise AssertionError("it does not end")
        assert not self._awaited
        assert_at_rest(self.loop)

    def _hear(self, record: TokenRecord) -> None:
        self._scores[record.request_id] += [scored.token for scored in record.prompt_logprobs]
        said = self._said[record.request_id, record.index]
        assert record.position == len(said.tokens) or not record.tokens, f"{record} after {len(said.tokens)} tokens"
        said.tokens += record.tokens
        said.has_ended |= record.finish_reason is not None

    def _hear_end(self, end: SequenceEnd) -> None:
        if end.error is not None:
            assert end.error.cause == "invalid_request", end.error
            self._cut.add(end.request_id)

    def check(self) -> None:
        """Hold every token against the function, and every sequence that nobody cut against its end."""
        for name, made in self._specs.items():
            if made.sampling.use_beam_search:
                self._check_search(made)
                continue
            for each in _streams(made):
                said, tokens = self._said[name, each.index], list(made.tokens)
                for token in said.tokens:
                    assert token == self._following(tokens, each.index), f"{name}/{each.index}: {said.tokens}"
                    tokens.append(token)
                assert said.has_ended or name in self._cut, f"{name}/{each.index} never ended"
        for name in self._specs.keys() - self._cut:
            sampling = self._specs[name].sampling
            if sampling.prompt_logprobs is not None and name not in self._landed:
                assert tuple(self._scores[name]) == self._specs[name].tokens[1:], f"{name}: {self._scores[name]}"
                self.whole["scored"] += 1
            self.whole["searched" if sampling.use_beam_search else "plain"] += 1
            self.whole["gone on"] += bool(self._specs[name].output)

    def _check_search(self, made: SequenceSpec) -> None:
        """Hold what was found against a search in which nobody is in the way."""
        if made.request_id in self._cut:
            return
        limit = min(made.sampling.max_tokens, self._scene.longest - len(made.tokens))
        search, outputs = BeamSearch.of(made.sampling, limit, frozenset()), {0: tuple[int, ...]()}
        while outputs:
            for index, output in outputs.items():
                seen = (*made.tokens, *output)
                search.hear(index, candidates(seen, search.num_candidates, self._scene.window))
            outputs = {each.index: (*outputs[each.parent], each.token) for each in search.advance(outputs)}
        found = [each.tokens for each in search.results()]
        assert found == [tuple(self._said[made.request_id, index].tokens) for index in range(len(found))]


def _streams(made: SequenceSpec) -> list[Branch]:
    """Return all that a request asks for, the first included."""
    return [Branch(index=made.index, output=made.output), *made.branches]
