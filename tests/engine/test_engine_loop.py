"""The loop on a made-up model: commands while a step runs, aborts in every state, poison, load; two threads, no sleep.

Shows who is answered when and that nothing leaks. What tokens mean is for the tests with a model.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from engine_runs import ROOT, Heard, assert_at_rest, greedy, run_all, run_until_idle, spec
from made_up_engine import Rig

from pagewire.core.block_hash import chain
from pagewire.core.engine_messages import Add, Bind, Freed, Hold, Join, Keep, Reserve
from pagewire.core.messages import Role
from pagewire.core.sequence_spec import branches
from pagewire.engine.runner import DeviceLost
from pagewire.engine.step import Step

WAIT_S = 10.0


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_sequences_run_to_their_end_and_are_counted(rig: Rig) -> None:
    heard = run_all(rig.loop, [spec(str(i), [i] * 40, greedy(5)) for i in range(3)])
    assert all(heard.tokens[str(i)] == [1] * 5 for i in range(3))
    assert [heard.ends[str(i)].computed_tokens for i in range(3)] == [40, 40, 40]
    load = rig.loop.load()
    assert (load.prompt_tokens_computed, load.output_tokens, load.prompt_tokens_cached) == (120, 15, 0)
    assert load.prefill_s_per_token == pytest.approx(0.001, rel=0.1)
    assert load.step_s == pytest.approx(0.003, rel=0.4)
    assert_at_rest(rig.loop)


@pytest.mark.parametrize("role", [Role.DECODE, Role.PREFILL])
def test_a_step_says_of_how_many_tokens_it_was(role: Role) -> None:
    """Against a count of what it was told to compute: of prompts, and of sequences that drew."""
    rig = Rig(role)
    for i in range(3):
        rig.loop.add(Add(spec=spec(str(i), [i] * (20 + 30 * i), greedy(5, n=2), branches=branches(2))))
    said = []
    while (done := rig.loop.step()) is not None:
        said.append(done.num_tokens)
    counted = []
    for step in rig.model.steps:
        ends = {grant.request_id: grant.start + len(grant.tokens) for grant in step.grants}
        prompts = {grant.request_id: 20 + 30 * int(grant.request_id[0]) for grant in step.grants}
        of_prompts = sum(max(0, min(ends[g.request_id], prompts[g.request_id]) - g.start) for g in step.grants)
        counted.append(of_prompts + sum(len(grant.draws()) for grant in step.grants))
    assert [count for count in said if count] == counted
    load = rig.loop.load()
    assert sum(said) == load.prompt_tokens_computed + load.output_tokens


def test_a_refused_add_gets_its_end(rig: Rig) -> None:
    heard = run_all(rig.loop, [spec("long", [1] * 500, greedy(1)), spec("fine", [1], greedy(1))])
    error = heard.ends["long"].error
    assert error is not None
    assert (error.cause, error.field) == ("invalid_request", "prompt")
    assert heard.ends["fine"].error is None


def test_a_refused_reservation_says_why(rig: Rig) -> None:
    reserved = rig.loop.reserve(Reserve(spec=spec("a", [1] * 500, greedy(1))))
    assert reserved.error is not None
    assert reserved.error.cause == "invalid_request"
    for name in "bcd":
        reserved = rig.loop.reserve(Reserve(spec=spec(name, [1] * 190, greedy(1))))
    assert reserved.error is not None
    assert reserved.error.cause == "overloaded"


@pytest.mark.parametrize("role", [Role.DECODE, Role.PREFILL])
def test_an_abort_in_the_running_step_is_answered_after_it(role: Role) -> None:
    rig = Rig(role)
    answers: list[Freed | None] = []
    held: list[int] = []

    def during(step: Step) -> None:
        answers.append(rig.loop.abort("a"))
        held.append(rig.loop.load().blocks_held)

    rig.model.during = during
    rig.loop.add(Add(spec=spec("a", [1] * 20, greedy(5))))
    done = rig.loop.step()
    assert done is not None
    assert (done.records, done.chunks, done.ends) == ((), (), ())
    assert answers == [None]
    assert held == [2]
    assert rig.loop.take_freed() == (Freed(request_id="a"),)
    assert rig.loop.take_freed() == ()
    assert_at_rest(rig.loop)


def test_an_abort_in_every_other_state_is_answered_at_once(rig: Rig) -> None:
    loop = rig.loop
    loop.add(Add(spec=spec("waiting", [1] * 20, greedy(5))))
    loop.reserve(Reserve(spec=spec("reserved", [2] * 20, greedy(5))))
    loop.reserve(Reserve(spec=spec("bound", [3] * 20, greedy(5))))
    loop.bind(Bind(request_id="bound", num_blocks=2))
    loop.reserve(Reserve(spec=spec("joined", [4] * 20, greedy(5))))
    loop.bind(Bind(request_id="joined", num_blocks=2))
    loop.join(Join(request_id="joined", num_computed=20, output=(1,)))
    for name in ("waiting", "reserved", "bound", "joined", "never heard of"):
        assert loop.abort(name) == Freed(request_id=name)
    assert_at_rest(loop)
    loop.join(Join(request_id="reserved", num_computed=20, output=(1,)))
    assert loop.bind(Bind(request_id="bound", num_blocks=2)).block_ids == ()
    assert run_until_idle(loop).steps == 1  # what the join registered is told
    loop.add(Add(spec=spec("running", [1] * 20, greedy(5))))
    loop.step()
    assert loop.abort("running") == Freed(request_id="running")
    assert_at_rest(loop)


def test_handed_off_blocks_are_held_until_released_or_aborted() -> None:
    loop = Rig(Role.PREFILL).loop
    heard = run_all(loop, [spec("a", [1] * 20, greedy(5)), spec("b", [2] * 20, greedy(5))])
    assert heard.ends == {}
    assert loop.load().blocks_held == 4
    loop.release("a")
    loop.release("a")
    loop.release("nobody")
    assert loop.load().blocks_held == 2
    assert loop.abort("b") == Freed(request_id="b")
    assert_at_rest(loop)


@pytest.mark.parametrize("role", [Role.DECODE, Role.PREFILL])
def test_a_hold_pins_until_it_is_released_or_aborted(role: Role) -> None:
    loop = Rig(role).loop
    run_all(loop, [spec("a", [1] * 100, greedy(1))])
    loop.release("a")  # what a prefill pod computed is held until it is told so
    names = tuple(chain(ROOT, [1] * 100, 16))
    held = loop.hold(Hold(request_id="h", hashes=names[2:]))
    assert len(held.block_ids) == 4
    assert loop.hold(Hold(request_id="g", hashes=names[:2])).block_ids
    assert loop.hold(Hold(request_id="nothing", hashes=(ROOT, *names))).block_ids == ()
    load = loop.load()
    assert (load.blocks_held, load.blocks_orphaned) == (6, 0)
    loop.check()
    loop.release("h")
    loop.release("h")
    assert loop.load().blocks_held == 2
    assert loop.abort("g") == Freed(request_id="g")
    assert_at_rest(loop)


def test_blocks_of_a_running_sequence_can_be_held_beyond_its_life(rig: Rig) -> None:
    loop = rig.loop
    loop.add(Add(spec=spec("a", [1] * 40, greedy(5))))
    names = tuple(chain(ROOT, [1] * 40, 16))
    assert loop.hold(Hold(request_id="too early", hashes=names)).block_ids == ()
    loop.step()
    loop.step()
    assert len(loop.hold(Hold(request_id="h", hashes=names)).block_ids) == 2
    assert loop.abort("a") == Freed(request_id="a")
    assert loop.load().blocks_held == 2
    loop.release("h")
    assert_at_rest(loop)


def test_what_is_kept_is_announced(rig: Rig) -> None:
    loop = rig.loop
    loop.reserve(Reserve(spec=spec("a", [1] * 40, greedy(5))))
    loop.bind(Bind(request_id="a", num_blocks=3))
    loop.keep(Keep(request_id="a", num_computed=40))
    loop.keep(Keep(request_id="nobody", num_computed=40))
    done = loop.step()
    assert done is not None
    assert [block.depth for block in done.stored] == [0, 1]
    assert loop.abort("a") == Freed(request_id="a")
    assert_at_rest(loop)
    assert loop.load().blocks_cached == 2


def test_a_changed_load_is_told_even_when_nothing_steps() -> None:
    loop = Rig(Role.PREFILL).loop
    run_all(loop, [spec("a", [1] * 20, greedy(5))])
    loop.release("a")
    done = loop.step()
    assert done is not None
    assert done.load == loop.load()
    assert done.load.blocks_held == 0
    assert loop.step() is None


def test_a_release_leaves_a_running_sequence_alone(rig: Rig) -> None:
    rig.loop.add(Add(spec=spec("a", [1] * 20, greedy(5))))
    rig.loop.step()
    rig.loop.release("a")
    assert rig.loop.load().num_running == 1


def test_poison_ends_its_request_alone(rig: Rig) -> None:
    rig.model.poison = {"bad"}
    heard = run_all(rig.loop, [spec(name, [1] * 20, greedy(3)) for name in ("good", "bad", "fine")])
    error = heard.ends["bad"].error
    assert error is not None
    assert error.cause == "poisoned"
    assert "bad is poison" in error.message
    assert heard.tokens == {"good": [1] * 3, "fine": [1] * 3}
    assert_at_rest(rig.loop)


def test_a_device_that_fails_for_good_ends_the_engine_and_not_one_request_after_the_other(rig: Rig) -> None:
    rig.loop.add(Add(spec=spec("a", [1] * 20, greedy(3))))
    rig.loop.add(Add(spec=spec("b", [1] * 20, greedy(3))))
    rig.loop.step()
    rig.model.is_broken = True
    with pytest.raises(DeviceLost, match="RuntimeError: the device has failed"):
        rig.loop.step()
    assert len(rig.model.steps) == 3, "all together, then the first"


def test_what_poison_left_to_be_shipped_is_held_until_it_is_released() -> None:
    rig = Rig(Role.PREFILL)
    rig.loop.add(Add(spec=spec("bad", [1] * 100, greedy(3))))
    first = rig.loop.step()
    assert first is not None
    assert len(first.chunks[0].block_ids) == 2
    rig.model.poison = {"bad"}
    second = rig.loop.step()
    assert second is not None
    assert [end.error is not None for end in second.ends] == [True]
    held = set(first.chunks[0].block_ids)
    rig.model.poison = set()
    heard = run_all(rig.loop, [spec("other", [2] * 190, greedy(3))])
    assert not held & {block for chunk in heard.chunks for block in chunk.block_ids}
    assert rig.loop.abort("bad") == Freed(request_id="bad")
    rig.loop.release("other")
    assert_at_rest(rig.loop)


def test_a_batch_that_fails_once_is_retried_one_by_one(rig: Rig) -> None:
    rig.model.unlucky_batches = 1
    heard = run_all(rig.loop, [spec(name, [1] * 20, greedy(3)) for name in ("a", "b")])
    assert [len(step.grants) for step in rig.model.steps[:3]] == [2, 1, 1]
    assert heard.tokens == {"a": [1] * 3, "b": [1] * 3}
    assert all(end.error is None for end in heard.ends.values())


def test_events_between_steps_are_told(rig: Rig) -> None:
    loop = rig.loop
    run_all(loop, [spec("a", [1] * 100, greedy(90))])
    cached = loop.load().blocks_cached
    assert cached > 10
    loop.reserve(Reserve(spec=spec("b", [2] * 190, greedy(5))))
    loop.reserve(Reserve(spec=spec("c", [3] * 190, greedy(5))))
    loop.bind(Bind(request_id="b", num_blocks=13))
    loop.bind(Bind(request_id="c", num_blocks=13))
    done = loop.step()
    assert done is not None
    assert len(done.evicted) == cached - loop.load().blocks_cached > 0
    loop.join(Join(request_id="b", num_computed=64, output=()))
    done = loop.step()
    assert done is not None
    assert [block.depth for block in done.stored][:4] == [0, 1, 2, 3]


def test_commands_are_answered_while_a_step_runs_and_wake_the_loop(rig: Rig) -> None:
    inside, go_on, heard = threading.Event(), threading.Event(), Heard()
    finished = threading.Event()

    def during(step: Step) -> None:
        inside.set()
        assert go_on.wait(WAIT_S)

    def stepping() -> None:
        while rig.loop.wait_for_work(WAIT_S):
            done = rig.loop.step()
            if done is not None:
                heard.hear(done)
            if len(heard.ends) == 2:
                finished.set()

    rig.model.during = during
    thread = threading.Thread(target=stepping)
    thread.start()
    try:
        rig.loop.add(Add(spec=spec("a", [1] * 20, greedy(3))))
        assert inside.wait(WAIT_S)
        assert rig.loop.reserve(Reserve(spec=spec("b", [2] * 20, greedy(3)))).error is None
        assert len(rig.loop.bind(Bind(request_id="b", num_blocks=2)).block_ids) == 2
        go_on.set()
        rig.loop.join(Join(request_id="b", num_computed=20, output=()))
        assert finished.wait(WAIT_S)
    finally:
        go_on.set()
        rig.loop.close()
        thread.join(WAIT_S)
    assert not thread.is_alive()
    assert heard.tokens == {"a": [1] * 3, "b": [1] * 3}
    assert heard.ends["b"].computed_tokens == 1
    assert_at_rest(rig.loop)


def test_who_gave_way_and_left_nobody_running_lets_who_waits_go_on_at_once() -> None:
    """A step that preempts the only one that could advance computes nothing, and there is work all the same."""
    rig = Rig(num_blocks=15)
    rig.scheduler.limits = replace(rig.scheduler.limits, max_num_batched_tokens=512, chunk_size=512, max_model_len=190)

    def come(name: str, num_tokens: int, max_tokens: int, token: int) -> Join:
        asked = spec(name, [token] * num_tokens, greedy(max_tokens))
        assert rig.loop.reserve(Reserve(spec=asked)).error is None
        return Join(request_id=name, num_computed=0, output=())

    rig.loop.join(come("old", 81, 1, 4))
    run_until_idle(rig.loop)
    held = rig.loop.hold(Hold(request_id="h", hashes=tuple(chain(ROOT, [4] * 80, 16))))
    assert len(held.block_ids) == 5
    for asked in (("a", 10, 10, 1), ("c", 94, 20, 3)):
        rig.loop.join(come(*asked))
    last = come("b", 30, 150, 2)
    heard, num_empty = Heard(), 0
    while not rig.scheduler.waiting:
        if (done := rig.loop.step()) is not None:
            heard.hear(done)
    rig.loop.join(last)
    while rig.loop._work:  # as `wait_for_work` looks at it
        num_steps = len(rig.model.steps)
        if (done := rig.loop.step()) is not None:
            heard.hear(done)
        num_empty += len(rig.model.steps) == num_steps
    assert heard.ends.keys() == {"a", "c"}, "c had room once b gave way"
    assert num_empty > 1, "the last one found nothing to do, and one before it preempted alone"
    rig.loop.release("h")
    while (done := rig.loop.step()) is not None:
        heard.hear(done)
    assert len(heard.tokens["b"]) == 150
