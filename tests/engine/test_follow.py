"""Steps that are begun before the tokens of those before them are known: what is said is what it would be without.

On a device that computes as late as it may, whose tokens are a function of all that a sequence's blocks hold.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from unittest import mock

import pytest
from engine_play import BLOCK, LIMITS, Play, Scene
from engine_runs import assert_at_rest, greedy, spec
from late_device import LateDevice, following

from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import Add, Reserve
from pagewire.core.messages import Role
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.flight import launch
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.step import Step

SCENES = {
    "room": Scene(),
    "short": Scene(num_blocks=17),
    "failing": Scene(fails=0.2),
    "swapping": Scene(num_blocks=17, host_slots=20),
    "swapping-failing": Scene(num_blocks=17, host_slots=12, fails=0.2),
    "much-host": Scene(num_blocks=14, host_slots=40),
    "window": Scene(window=7),
    "window-short": Scene(window=7, num_blocks=17),
    "window-failing": Scene(window=6, fails=0.3),
    "roles": Scene(roles=True),
    "roles-swapping-failing": Scene(roles=True, fails=0.2, host_slots=10, num_blocks=20),
    "brownout": Scene(brownout=True, host_slots=60, num_blocks=24),
    "few-places": Scene(places=2, num_blocks=20),
}


def ahead_of(seeds: range, scene: Scene) -> int:
    """Run and check plays; return how many steps were begun ahead."""
    num_ahead = 0
    for seed in seeds:
        play = Play(seed, scene)
        play.run()
        play.check()
        num_ahead += play.device.num_ahead
    return num_ahead


@pytest.mark.parametrize("name", SCENES)
def test_tokens_are_what_they_would_be(name: str) -> None:
    assert ahead_of(range(25), SCENES[name]) > 50


def test_nothing_is_begun_ahead_where_nothing_launches() -> None:
    assert ahead_of(range(5), Scene(launches=False)) == 0


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("most", [1, 9])
def test_tokens_are_what_they_would_be_where_they_are_drafted(name: str, most: int) -> None:
    """Nothing is begun ahead, for nobody knows yet what to draft."""
    assert ahead_of(range(10), replace(SCENES[name], most_drafted=most)) == 0


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
    play, said, refused = Play(0, Scene(num_blocks=6)), list[int](), list[bool]()
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
    play = Play(0, Scene(role=Role.PREFILL))
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


def test_a_lost_rank_ends_the_engine_and_no_sequence() -> None:
    play = Play(0)

    def lost() -> None:
        raise RankLost("rank 1 ended")

    play.loop.add(Add(spec=spec("a", range(5), greedy(9))))
    play.loop.step()  # the prompt
    play.device.during = lost
    with pytest.raises(RankLost):
        play.loop.step()
    with mock.patch.object(play.device, "launch", side_effect=RankLost("rank 1 ended")), pytest.raises(RankLost):
        launch(play.device, Step(grants=()))
