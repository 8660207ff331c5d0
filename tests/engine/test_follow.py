"""Steps that are begun before the tokens of those before them are known: what is said is what it would be without.

On a device that computes as late as it may, with requests that come, fork, end by a token or by their length, are
stopped, aborted, preempted, and that bring blocks which others write; each token against the function of all before it.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from engine_runs import Heard, assert_at_rest, greedy, spec
from late_device import LateDevice, following

from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import Add, Bind, Join, Reserve, Stop
from pagewire.core.messages import Role
from pagewire.core.sequence_spec import SequenceSpec, branches
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.limits import Limits
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduler import Scheduler

BLOCK = 4
LIMITS = Limits(
    max_num_batched_tokens=24, max_num_seqs=5, chunk_size=9, block_size=BLOCK, max_model_len=60, vocab_size=40
)


class Play:
    """A loop on a late device, and whoever drives it."""

    def __init__(
        self, seed: int, *, num_blocks: int = 30, fails: float = 0.0, launches: bool = True, role: Role = Role.COLOCATED
    ) -> None:
        self.chance = random.Random(seed)
        self.device = LateDevice(BLOCK, self.chance)
        self.device.fails = fails
        self.scheduler = Scheduler(BlockPool(num_blocks), LIMITS, policy_of(role))
        launcher = self.device if launches else None
        self.loop = EngineLoop(self.scheduler, self.device, ManualClock(), self.device, launcher=launcher)
        self.heard: dict[str, Heard] = {}
        self.specs: dict[str, SequenceSpec] = {}
        self.cut: set[str] = set()  # aborted, or stopped in part
        self.reserved: dict[str, int] = {}
        self.device.during = self.act

    def act(self) -> None:
        """Do something that others may do at any time."""
        for _ in range(self.chance.choice((0, 0, 1, 1, 2))):
            self.chance.choice((self.add, self.add, self.reserve, self.ship, self.join, self.abort, self.stop))()

    def _spec(self) -> SequenceSpec:
        name, chance = f"r{len(self.specs)}", self.chance
        common = [chance.choice((1, 2)) for _ in range(chance.choice((0, 4, 8)))]
        tokens = common + [chance.randrange(40) for _ in range(chance.randint(1, 14))]
        n = chance.choice((1, 1, 1, 2))
        stops = (3, 11, 25) if chance.random() < 0.5 else ()
        sampling = greedy(chance.randint(1, 24), n=n, stop_token_ids=stops)
        made = spec(name, tokens, sampling, branches=branches(n))
        self.specs[name] = made
        return made

    def add(self) -> None:
        """Another request."""
        if len(self.specs) < 40:
            self.loop.add(Add(spec=self._spec()))

    def reserve(self) -> None:
        """Another request, whose blocks another pod is to write."""
        if len(self.specs) < 40:
            made = self._spec()
            reserved = self.loop.reserve(Reserve(spec=made))
            if reserved.error is None:
                self.reserved[made.request_id] = reserved.hit_blocks
            else:
                del self.specs[made.request_id]
                self.specs[f"gone-{made.request_id}"] = made
                self.cut.add(f"gone-{made.request_id}")

    def join(self) -> None:
        """Write the blocks of one that was reserved, and let it run."""
        if not self.reserved:
            return
        name = self.chance.choice(sorted(self.reserved))
        hits, made = self.reserved.pop(name), self.specs[name]
        table = self.loop.bind(Bind(request_id=name, num_blocks=-(-len(made.tokens) // BLOCK))).block_ids
        self.device.write(table[hits:], made.tokens[hits * BLOCK :])
        self.loop.join(
            Join(request_id=name, num_computed=len(made.tokens), output=(following(made.tokens, 0),))
            if len(made.branches) == 0
            else Join(request_id=name, num_computed=len(made.tokens) - 1, output=(), branches=made.branches)
        )

    def ship(self) -> None:
        """Another request, whose blocks another pod writes in no time."""
        self.reserve()
        self.join()

    def abort(self) -> None:
        """End one of the requests."""
        name = self.chance.choice(sorted(self.specs)) if self.specs else None
        if name is not None and self.chance.random() < 0.5:
            self.cut.add(name)
            self.reserved.pop(name, None)
            self.loop.abort(name)

    def stop(self) -> None:
        """End one sequence of a request."""
        name = self.chance.choice(sorted(self.specs)) if self.specs else None
        if name is not None and name not in self.reserved and self.chance.random() < 0.5:
            self.cut.add(name)
            self.loop.stop(Stop(request_id=name, index=self.chance.randrange(2)))

    def run(self) -> None:
        """Step and act until all is said."""
        self.add()
        for _ in range(3000):
            done = self.loop.step()
            self.loop.check()
            if done is not None:
                for record in done.records:
                    one = self.heard.setdefault(f"{record.request_id}/{record.index}", Heard())
                    known = one.tokens.setdefault("", list(self._first(record.request_id, record.position)))
                    assert record.position == len(known)
                    known.extend(record.tokens)
                    if record.finish_reason is not None:
                        one.reasons[""] = record.finish_reason
            elif len(self.specs) >= 40 and not self.reserved:
                break
            else:
                self.act()
        for name in sorted(self.reserved):
            self.loop.abort(name)
        assert_at_rest(self.loop)

    def _first(self, name: str, position: int) -> list[int]:
        return [following(self.specs[name].tokens, 0)][:position]

    def check(self) -> None:
        """Hold every token against the function, and every sequence that nobody cut against its end."""
        for key, one in self.heard.items():
            name, _, index = key.partition("/")
            tokens, said = list(self.specs[name].tokens), one.tokens[""]
            for token in said:
                assert token == following(tokens, int(index)), f"{key}: {said}"
                tokens.append(token)
        for name, made in self.specs.items():
            if name not in self.cut:
                for each in range(1 + len(made.branches)):
                    assert self.heard[f"{name}/{each}"].reasons, f"{name}/{each} never ended"


def ahead_of(seeds: range, **settings: Any) -> int:
    """Run and check plays; return how many steps were begun ahead."""
    num_ahead = 0
    for seed in seeds:
        play = Play(seed, **settings)
        play.run()
        play.check()
        num_ahead += play.device.num_ahead
    return num_ahead


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_tokens_are_what_they_would_be(first: int) -> None:
    assert ahead_of(range(first, first + 20)) > 200


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_where_blocks_run_short(first: int) -> None:
    assert ahead_of(range(first, first + 20), num_blocks=17) > 200


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_what_fails_once_it_is_launched_is_computed_again(first: int) -> None:
    assert ahead_of(range(first, first + 20), fails=0.2) > 100


def test_nothing_is_begun_ahead_where_nothing_launches() -> None:
    assert ahead_of(range(5), launches=False) == 0


def ending(name: str) -> SequenceSpec:
    """Return a request that its third token ends, which its length does not tell."""
    tokens = [1, 2, 3]
    for _ in range(3):
        tokens.append(following(tokens, 0))
    assert tokens[5] not in tokens[3:5]
    return spec(name, tokens[:3], greedy(20, stop_token_ids=(tokens[5],)))


def test_an_id_that_comes_again_is_not_given_the_tokens_of_who_had_it() -> None:
    """The request ends while a step is computed ahead for it; its next life is queued before that is over."""
    play, lives = Play(0), [list[int]()]

    def again() -> None:
        if len(lives) == 1 and len(lives[0]) == 3:
            lives.append([])
            play.loop.add(Add(spec=ending("a")))

    play.device.during = again
    play.loop.add(Add(spec=ending("a")))
    while (done := play.loop.step()) is not None:
        for record in done.records:
            lives[-1] += record.tokens
    expected = [following([1, 2, 3, *lives[0][:at]], 0) for at in range(3)]
    assert lives == [expected, expected]
    assert_at_rest(play.loop)


def test_blocks_of_one_that_ended_wait_for_the_step_that_writes_them() -> None:
    play, said, refused = Play(0, num_blocks=6), list[int](), list[bool]()
    wide = spec("wide", range(17), greedy(1))

    def reserve() -> None:
        if len(said) == 3:
            refused.append(play.loop.reserve(Reserve(spec=wide)).error is not None)

    play.device.during = reserve
    play.loop.add(Add(spec=ending("a")))
    while (done := play.loop.step()) is not None:
        said += [token for record in done.records for token in record.tokens]
    reserve()
    assert refused == [True, False]


def test_what_is_handed_off_is_not_gone_on_with() -> None:
    """A prompt of one token is launched as a decode is."""
    play = Play(0, role=Role.PREFILL)
    play.device.during = lambda: None
    play.loop.add(Add(spec=spec("a", [1], greedy(5))))
    done = play.loop.step()
    assert done is not None
    assert [record.tokens for record in done.records] == [(following([1], 0),)]
    assert (play.device.num_launched, play.device.num_ahead) == (1, 0)
    play.loop.release("a")
    assert_at_rest(play.loop)


def steps_to_the_third(*, launches: bool) -> int:
    """Return how many steps three requests for two places take to the first token of the last."""
    device = LateDevice(BLOCK, random.Random(0))
    scheduler = Scheduler(BlockPool(30), replace(LIMITS, max_num_seqs=2), policy_of(Role.COLOCATED))
    loop = EngineLoop(scheduler, device, ManualClock(), device, launcher=device if launches else None)
    for name, length, output in (("a", 4, 5), ("b", 5, 20), ("c", 6, 5)):
        loop.add(Add(spec=spec(name, range(length), greedy(output))))
    steps = itertools.count(1)
    while (done := loop.step()) is not None:
        number = next(steps)
        if any(record.request_id == "c" for record in done.records):
            return number
    raise AssertionError("the third was never heard of")


def test_who_waits_for_a_place_that_is_known_to_come_free_waits_no_longer() -> None:
    assert steps_to_the_third(launches=True) == steps_to_the_third(launches=False)


def test_no_command_waits_for_the_device() -> None:
    """Every new block evicts one to a host tier, whose copy waits for what was launched before it."""
    device, waited = LateDevice(BLOCK, random.Random(3)), list[bool]()
    scheduler = Scheduler(BlockPool(12, 30), LIMITS, policy_of(Role.COLOCATED))
    loop = EngineLoop(scheduler, device, ManualClock(), device, launcher=device)

    def move(_moves: object) -> None:
        waited.append(device.is_busy)

    with mock.patch.object(device, "move", move):
        for number in range(4):
            loop.add(Add(spec=spec(f"r{number}", [number * 3 + at % 7 for at in range(9)], greedy(30))))
            while loop.step() is not None:
                pass
    assert device.num_ahead > 0
    assert waited, "nothing was evicted"
    assert not any(waited)


def test_nothing_is_left_of_a_loop_that_no_longer_steps() -> None:
    """A step is ahead as it stops, in which one that has ended still is."""
    play, said = Play(0), list[int]()
    play.device.during = lambda: None
    play.loop.add(Add(spec=ending("a")))
    while len(said) < 3:
        done = play.loop.step()
        said += [token for record in (done.records if done is not None else ()) for token in record.tokens]
    assert play.device.is_busy, "a step is ahead"
    play.loop.settle()
    assert not play.device.is_busy
    assert_at_rest(play.loop)
