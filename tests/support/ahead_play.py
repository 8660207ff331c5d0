"""Requests of all kinds on a loop whose steps are begun ahead, driven at random while the device computes.

They come, fork, end by a token or by their length, are stopped, aborted, preempted, swapped and cut off by a change of
roles; they bring blocks that others write, and blocks are held for other pods. Every token is held against the function
of all before it, every sequence that nobody cut against its end, every abort against two steps.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, replace

from engine_runs import assert_at_rest, greedy, spec
from guesses import Guesses
from late_device import LateDevice, following

from pagewire.core.block_hash import chain
from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import Add, Bind, Hold, Join, Reserve, Stop
from pagewire.core.messages import Role
from pagewire.core.sequence_spec import SequenceSpec, branches
from pagewire.core.token_record import TokenRecord
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.brownout import Brownout
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.limits import Limits
from pagewire.engine.preemption import Preemption, PreemptionMode
from pagewire.engine.role_policy import policy_of
from pagewire.engine.role_terms import RoleTerms
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import Sequence

BLOCK = 4
REQUESTS = 40
LIMITS = Limits(
    max_num_batched_tokens=24, max_num_seqs=5, chunk_size=9, block_size=BLOCK, max_model_len=60, vocab_size=40
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a play is set in. `fails` is how likely a launched step fails; with `roles` they change."""

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


@dataclass(slots=True)
class Said:
    """What a sequence said, from its first token on."""

    tokens: list[int] = field(default_factory=list)
    has_ended: bool = False


class Play:
    """A loop on a late device, and whoever drives it."""

    def __init__(self, seed: int, scene: Scene = Scene()) -> None:
        self.chance = random.Random(seed)
        self.device = LateDevice(BLOCK, self.chance, scene.window)
        self.device.fails = scene.fails
        self.device.during = self.act
        limits = replace(LIMITS, window=scene.window, max_num_seqs=scene.places)
        preemption = Preemption(PreemptionMode.SWAP) if scene.host_slots else None
        pool = BlockPool(scene.num_blocks, scene.host_slots)
        self.scheduler = Scheduler(pool, limits, policy_of(scene.role), preemption=preemption)
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
        self._said: dict[tuple[str, int], Said] = {}
        self._specs: dict[str, SequenceSpec] = {}
        self._num_made = 0
        self._cut: set[str] = set()  # aborted, stopped in part, or of another role's time
        self._reserved: dict[str, int] = {}
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
        n = chance.choice((1, 1, 1, 2))
        stops = (3, 11, 25) if chance.random() < 0.5 else ()
        sampling = greedy(chance.randint(1, 24), n=n, stop_token_ids=stops)
        return spec(name, tokens, sampling, branches=branches(n))

    def add(self) -> None:
        """Another request."""
        if self._num_made < REQUESTS:
            made = self._spec()
            self._specs[made.request_id] = made
            self.loop.add(Add(spec=made))

    def reserve(self) -> None:
        """Another request, whose blocks another pod is to write."""
        if self._num_made < REQUESTS:
            made = self._spec()
            reserved = self.loop.reserve(Reserve(spec=made))
            if reserved.error is None and not reserved.in_parts:
                self._specs[made.request_id] = made
                self._reserved[made.request_id] = reserved.hit_blocks
            elif reserved.error is None:
                self.loop.abort(made.request_id)

    def join(self) -> None:
        """Write the blocks of one that was reserved, and let it run."""
        if not self._reserved:
            return
        name = self.chance.choice(sorted(self._reserved))
        hits, made = self._reserved.pop(name), self._specs[name]
        table = self.loop.bind(Bind(request_id=name, num_blocks=-(-len(made.tokens) // BLOCK))).block_ids
        self.device.write(table[hits:], made.tokens[hits * BLOCK :])
        if made.branches:
            join = Join(request_id=name, num_computed=len(made.tokens) - 1, output=(), branches=made.branches)
        else:
            output = (self._following(made.tokens, 0),)
            join = Join(request_id=name, num_computed=len(made.tokens), output=output)
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
        said = self._said.setdefault((record.request_id, record.index), Said())
        if not said.tokens and record.position == 1:  # it joined with its first
            said.tokens.append(self._following(self._specs[record.request_id].tokens, 0))
        assert record.position == len(said.tokens), f"{record} after {len(said.tokens)} tokens"
        said.tokens += record.tokens
        said.has_ended |= record.finish_reason is not None

    def check(self) -> None:
        """Hold every token against the function, and every sequence that nobody cut against its end."""
        for (name, index), said in self._said.items():
            tokens = list(self._specs[name].tokens)
            for token in said.tokens:
                assert token == self._following(tokens, index), f"{name}/{index}: {said.tokens}"
                tokens.append(token)
        for name in self._specs.keys() - self._cut:
            for index in range(1 + len(self._specs[name].branches)):
                assert self._said[name, index].has_ended, f"{name}/{index} never ended"
