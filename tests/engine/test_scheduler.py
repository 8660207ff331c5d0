"""The scheduler on a made-up model: budgets, fairness, preemption, reservations; no tensor anywhere.

The made-up model's next token is a function of the sequence's length, so a sequence that lost its place shows.
"""

from __future__ import annotations

from typing import Any

import pytest
from engine_runs import ROOT, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core.block_hash import BlockHash, chain
from pagewire.core.engine_messages import Join, Keep
from pagewire.core.errors import EngineFailed, InvalidRequest, Overloaded
from pagewire.core.messages import Role
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.engine import hold, progress, reservation
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.limits import Limits
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import State
from pagewire.engine.step import Computed, Step

B = 16
VOCAB = 100


def make(num_blocks: int = 32, role: Role = Role.DECODE, **limits: Any) -> Scheduler:
    defaults: dict[str, Any] = {
        "max_num_batched_tokens": 64, "max_num_seqs": 8, "chunk_size": 32, "block_size": B, "max_model_len": 200,
        "vocab_size": VOCAB, "eos_token_ids": frozenset({99}),
    }  # fmt: skip
    return Scheduler(BlockPool(num_blocks), Limits(**{**defaults, **limits}), policy_of(role))


def params(max_tokens: int = 4, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, **changes})


def token_after(start: int, count: int) -> int:
    return (start + count) % (VOCAB - 1)


def run(scheduler: Scheduler, step: Step) -> list[progress.Progress]:
    """Compute a step with the made-up model, checking what every step must keep."""
    limits = scheduler.limits
    assert 0 < step.num_tokens <= limits.max_num_batched_tokens
    assert len(scheduler.running) <= limits.max_num_seqs
    assert len({grant.request_id for grant in step.grants}) == len(step.grants)
    done = []
    for grant in step.grants:
        sequence = scheduler.sequences[grant.request_id]
        assert len(grant.tokens) <= limits.chunk_size
        assert len(grant.block_ids) == limits.num_blocks(grant.start + len(grant.tokens))
        assert grant.tokens == sequence.tokens(grant.start, grant.start + len(grant.tokens))
        token = token_after(grant.start, len(grant.tokens)) if grant.draw is not None else None
        done.append(progress.commit(scheduler, sequence, grant, {grant.request_id: Computed(token=token)}))
    scheduler.pool.check()
    return done


def run_out(scheduler: Scheduler, max_steps: int = 5000) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for _ in range(max_steps):
        step = scheduler.schedule()
        if step is None:
            return tokens
        for one in run(scheduler, step):
            for record in one.records:
                tokens.setdefault(record.request_id, []).extend(record.tokens)
    raise AssertionError("sequences starve")


@settings(max_examples=300, deadline=None)
@given(
    prompts=st.lists(st.tuples(st.integers(1, 120), st.integers(1, 60), st.integers(0, 2)), min_size=3, max_size=12),
    num_blocks=st.integers(14, 40),
    budget=st.integers(8, 64),
    chunk=st.integers(1, 64),
    seqs=st.integers(1, 8),
)
def test_everybody_finishes_within_the_budget(
    prompts: list[tuple[int, int, int]], num_blocks: int, budget: int, chunk: int, seqs: int
) -> None:
    scheduler = make(num_blocks, max_num_batched_tokens=budget, chunk_size=chunk, max_num_seqs=seqs)
    for number, (length, max_tokens, family) in enumerate(prompts):
        scheduler.add(spec(str(number), [family] * length, params(max_tokens)))
    tokens = run_out(scheduler)
    for number, (length, max_tokens, _) in enumerate(prompts):
        assert tokens[str(number)] == [token_after(length, i) for i in range(max_tokens)]
    pool = scheduler.pool
    assert not scheduler.sequences
    assert (pool.num_held, pool.num_reserved) == (0, 0)
    assert pool.num_free + pool.num_cached == num_blocks


@settings(max_examples=300, deadline=None)
@given(data=st.data(), num_blocks=st.integers(14, 30))
def test_commands_in_any_order_leak_nothing(data: st.DataObject, num_blocks: int) -> None:
    role = data.draw(st.sampled_from([Role.DECODE, Role.PREFILL]))
    scheduler = make(num_blocks, role)
    reserved: list[str] = []
    held: dict[str, list[BlockHash]] = {}
    for number in range(data.draw(st.integers(1, 25))):
        name, length = str(number), data.draw(st.integers(1, 100))
        match data.draw(
            st.sampled_from(["add", "reserve", "bind", "keep", "join", "remove", "hold", "release", "step"])
        ):
            case "add":
                scheduler.add(spec(name, [1] * length, params(20)))
            case "reserve":
                try:
                    reservation.reserve(scheduler, spec(name, [length % 3] * length, params(20)))
                    reserved.append(name)
                except Overloaded:
                    assert name not in scheduler.sequences
            case "bind" if reserved:
                target = data.draw(st.sampled_from(reserved))
                count = data.draw(st.integers(0, 8))
                bound = reservation.bind(scheduler, target, count)
                assert len(bound) == len(scheduler.sequences[target].block_table)
            case "keep" if reserved:
                target = data.draw(st.sampled_from(reserved))
                sequence = scheduler.sequences[target]
                before = sequence.num_computed
                reservation.keep(scheduler, Keep(request_id=target, num_computed=data.draw(st.integers(0, 200))))
                progress.register_full_blocks(scheduler, sequence)
                assert before <= sequence.num_computed < sequence.num_tokens
                assert sequence.num_computed <= len(sequence.block_table) * B
                names = sequence.chain(sequence.num_computed // B)
                assert len(scheduler.pool.match(names)) == len(names)
            case "hold":
                names = chain(ROOT, [length % 3] * length, B)[data.draw(st.integers(0, 2)) :]
                found, available = scheduler.pool.match(names), scheduler.pool.num_available
                block_ids = hold.hold(scheduler, name, names)
                assert list(block_ids) == found[: len(block_ids)]
                assert len(block_ids) == len(found) or scheduler.pool.num_unreferenced(found[len(block_ids) :])
                assert scheduler.pool.num_available >= 0 <= available
                if block_ids:
                    held[name] = names
            case "release" if held:
                assert hold.release(scheduler, held.popitem()[0])
            case "join" if reserved:
                target = reserved.pop(data.draw(st.integers(0, len(reserved) - 1)))
                sequence = scheduler.sequences[target]
                most = min(sequence.num_prompt, len(sequence.block_table) * B)
                landed = data.draw(st.integers(sequence.group.cached_tokens or 0, most))
                output = data.draw(st.sampled_from([(), (5,)])) if role is Role.DECODE else ()
                reservation.join(scheduler, Join(request_id=target, num_computed=landed, output=output))
                progress.register_full_blocks(scheduler, sequence)
            case "remove" if scheduler.sequences:
                target = data.draw(st.sampled_from(sorted(scheduler.sequences)))
                reserved = [name for name in reserved if name != target]
                scheduler.remove(scheduler.sequences[target])
            case _:
                step = scheduler.schedule()
                if step is not None:
                    run(scheduler, step)
        scheduler.pool.check()
        assert scheduler.pool.num_orphaned(scheduler.tables()) == 0
        assert scheduler.pool.num_reserved == sum(s.promised for s in scheduler.sequences.values())
        assert held.keys() == scheduler.holds.keys()
    for name in held:
        hold.release(scheduler, name)
    for name in reserved:
        scheduler.remove(scheduler.sequences[name])
    for _ in range(len(scheduler.sequences) + 1):
        run_out(scheduler)
        for sequence in [s for s in scheduler.sequences.values() if s.state is State.HANDED_OFF]:
            scheduler.remove(sequence)
    assert not scheduler.sequences
    assert (scheduler.pool.num_held, scheduler.pool.num_reserved) == (0, 0)


def test_decodes_go_before_prompts_and_prompts_take_what_is_left() -> None:
    scheduler = make(max_num_batched_tokens=20, chunk_size=16)
    scheduler.add(spec("old", [1] * 10, params(10)))
    first = scheduler.schedule()
    assert first is not None
    run(scheduler, first)
    scheduler.add(spec("new", [2] * 40, params(2)))
    scheduler.add(spec("newest", [3] * 40, params(2)))
    step = scheduler.schedule()
    assert step is not None
    assert [(grant.request_id, len(grant.tokens)) for grant in step.grants] == [("old", 1), ("new", 16), ("newest", 3)]


def test_the_newest_is_preempted_and_comes_back() -> None:
    scheduler = make(num_blocks=5, max_model_len=70)
    scheduler.add(spec("old", [1] * 30, params(30)))
    scheduler.add(spec("new", [2] * 14, params(30)))
    tokens = run_out(scheduler)
    assert scheduler.num_preemptions > 0
    assert tokens == {"old": [token_after(30, i) for i in range(30)], "new": [token_after(14, i) for i in range(30)]}


def test_a_cache_hit_leaves_the_last_token_to_compute() -> None:
    scheduler = make()
    scheduler.add(spec("a", range(48), params(1)))
    run_out(scheduler)
    scheduler.add(spec("b", range(48), params(1)))
    step = scheduler.schedule()
    assert step is not None
    assert [(grant.start, len(grant.tokens)) for grant in step.grants] == [(32, 16)]
    (done,) = run(scheduler, step)
    assert done.end is not None
    assert (done.end.cached_tokens, done.end.computed_tokens) == (32, 16)


def test_blocks_filled_while_decoding_are_cached() -> None:
    scheduler = make()
    scheduler.add(spec("a", [1] * 10, params(30)))
    answer = run_out(scheduler)["a"]
    follow_up = spec("b", [1] * 10 + answer + [3] * 9, params(1))
    scheduler.add(follow_up)
    run_out(scheduler)
    assert scheduler.num_cached_tokens == 32  # 10 + 29 computed tokens fill two blocks


def test_chunks_are_announced_in_order_with_the_tail_last() -> None:
    scheduler = make(role=Role.PREFILL, chunk_size=20)
    scheduler.add(spec("a", range(1, 51), params(5)), first_block=1)
    chunks = []
    while (step := scheduler.schedule()) is not None:
        chunks += [done.chunk for done in run(scheduler, step) if done.chunk is not None]
    sequence = scheduler.sequences["a"]
    assert [(c.first_block, len(c.block_ids), c.is_last) for c in chunks] == [(1, 1, False), (2, 2, True)]
    assert [b for c in chunks for b in c.block_ids] == list(sequence.block_table[1:])
    assert (chunks[-1].cached_tokens, chunks[-1].computed_tokens) == (0, 50)
    assert sequence.state is State.HANDED_OFF
    assert scheduler.pool.num_held == 4
    scheduler.remove(sequence)
    assert scheduler.pool.num_cached == 3


def test_a_cached_prompt_is_announced_in_one_event() -> None:
    scheduler = make(role=Role.PREFILL)
    for name in ("a", "b"):
        scheduler.add(spec(name, range(49), params(5)))
        chunks = []
        while (step := scheduler.schedule()) is not None:
            chunks += [done.chunk for done in run(scheduler, step) if done.chunk is not None]
    assert [(c.first_block, len(c.block_ids), c.is_last) for c in chunks] == [(0, 4, True)]
    assert (chunks[0].cached_tokens, chunks[0].computed_tokens) == (48, 1)


def test_a_prompt_that_its_first_token_ends_ships_nothing() -> None:
    scheduler = make(role=Role.PREFILL)
    scheduler.add(spec("a", range(40), params(1)))
    last = None
    while (step := scheduler.schedule()) is not None:
        (last,) = run(scheduler, step)
    assert last is not None
    assert last.chunk is not None
    (record,) = last.records
    assert (last.chunk.block_ids, last.chunk.is_last) == ((), True)
    assert record.finish_reason is FinishReason.LENGTH
    # A group of its layers may be on its way: its blocks are nobody else's until whoever ships says so.
    assert last.end is not None
    assert scheduler.sequences["a"].state is State.HANDED_OFF
    assert scheduler.pool.num_held == 3
    assert scheduler.schedule() is None


@pytest.mark.parametrize(
    ("landed", "output", "grants"),
    [
        (0, (), [(0, 32), (32, 8)]),
        (40, (), [(39, 1)]),
        (40, (7,), [(40, 1)]),
        (32, (7,), [(32, 9)]),
        (20, (7,), [(20, 21)]),
    ],
)
def test_a_join_computes_what_did_not_land(landed: int, output: tuple[int, ...], grants: list[tuple[int, int]]) -> None:
    scheduler = make()
    assert reservation.reserve(scheduler, spec("a", range(40), params(5))) == 0
    assert scheduler.pool.num_reserved == 4
    assert len(reservation.bind(scheduler, "a", 3)) == 3
    assert reservation.join(scheduler, Join(request_id="a", num_computed=landed, output=output)) is not None
    assert scheduler.pool.num_reserved == 0
    seen: list[tuple[int, int]] = []
    tokens: list[int] = []
    while (step := scheduler.schedule()) is not None:
        seen += [(grant.start, len(grant.tokens)) for grant in step.grants]
        tokens += [t for done in run(scheduler, step) for record in done.records for t in record.tokens]
    assert seen[: len(grants)] == grants
    assert list(output) + tokens == [*output, *(token_after(40, i) for i in range(len(output), 5))]


def test_a_reservation_pins_what_is_cached() -> None:
    scheduler = make(num_blocks=6, max_model_len=90)
    scheduler.add(spec("a", range(40), params(1)))
    run_out(scheduler)
    assert reservation.reserve(scheduler, spec("b", range(40), params(5))) == 2
    assert scheduler.pool.num_held == 2
    assert scheduler.pool.num_reserved == 2
    with pytest.raises(Overloaded) as caught:
        reservation.reserve(scheduler, spec("c", [7] * 40, params(5)))
    assert caught.value.retry_after_s > 0
    assert len(reservation.bind(scheduler, "b", 99)) == 4
    assert reservation.bind(scheduler, "nobody", 1) == ()


@pytest.mark.parametrize(("landed", "output"), [(31, ()), (49, (1,)), (80, (1,))])
def test_a_join_that_cannot_be_is_an_error_and_frees(landed: int, output: tuple[int, ...]) -> None:
    scheduler = make()
    scheduler.add(spec("a", range(40), params(1)))
    run_out(scheduler)
    reservation.reserve(scheduler, spec("b", range(40), params(5)))
    reservation.bind(scheduler, "b", 3)
    with pytest.raises(EngineFailed, match="landed"):
        reservation.join(scheduler, Join(request_id="b", num_computed=landed, output=output))
    assert not scheduler.sequences
    assert (scheduler.pool.num_held, scheduler.pool.num_reserved) == (0, 0)


def test_what_a_pod_cannot_run_is_refused_with_the_bound() -> None:
    scheduler = make(num_blocks=8, max_model_len=100)
    for tokens, sampling, field, bound in (
        ([], params(), "prompt", "at least 1"),
        ([1] * 100, params(), "prompt", "99"),
        ([VOCAB], params(), "prompt", "99"),
        ([1], params(0), "max_tokens", "1"),
        ([1], params(top_p=0.0), "top_p", "(0, 1]"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            scheduler.add(spec("a", tokens, sampling))
        assert caught.value.field == field
        assert bound in caught.value.message
    scheduler.add(spec("a", [1], params()))
    with pytest.raises(InvalidRequest, match="here already"):
        scheduler.add(spec("a", [1], params()))
    with pytest.raises(InvalidRequest, match="used up"):
        scheduler.add(spec("b", [1], params(2), output=(3, 4)))


def test_a_prompt_that_can_never_fit_is_invalid_not_overloaded() -> None:
    scheduler = make(num_blocks=4, max_model_len=200)
    with pytest.raises(InvalidRequest):
        reservation.reserve(scheduler, spec("a", [1] * 60, params()))
    with pytest.raises(InvalidRequest):
        scheduler.add(spec("a", [1] * 64, params()))


def test_a_budget_below_the_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="max_num_seqs"):
        make(max_num_batched_tokens=4)


def test_a_prefill_pod_runs_what_was_not_fetched_and_reports_all_of_it() -> None:
    scheduler = make(role=Role.PREFILL)
    scheduler.add(spec("before", range(20), params(1)))
    run_out(scheduler)
    assert reservation.reserve(scheduler, spec("a", range(70), params(5)), first_block=2) == 1
    assert scheduler.pool.num_reserved == 4, "a sequence that hands off needs no room to decode"
    reservation.bind(scheduler, "a", 4)
    reservation.join(scheduler, Join(request_id="a", num_computed=64, output=()))
    chunks = []
    while (step := scheduler.schedule()) is not None:
        chunks += [done.chunk for done in run(scheduler, step) if done.chunk is not None]
    (chunk,) = chunks
    sequence = scheduler.sequences["a"]
    assert (chunk.first_block, chunk.block_ids, chunk.is_last) == (2, tuple(sequence.block_table[2:]), True)
    assert (chunk.cached_tokens, chunk.fetched_tokens, chunk.computed_tokens) == (16, 48, 6)
    assert sequence.state is State.HANDED_OFF


def test_a_prefill_pod_that_has_no_room_refuses_a_reservation_and_goes_on() -> None:
    scheduler = make(num_blocks=6, role=Role.PREFILL, max_model_len=90)
    reservation.reserve(scheduler, spec("waits for its fetch", range(60), params(5)))
    with pytest.raises(Overloaded):
        reservation.reserve(scheduler, spec("b", [7] * 40, params()))
    scheduler.add(spec("large", [8] * 40, params(5)))
    assert scheduler.schedule() is None, "it waits for promised blocks"
    scheduler.remove(scheduler.sequences["waits for its fetch"])
    run_out(scheduler)
    assert scheduler.sequences["large"].state is State.HANDED_OFF


def test_what_is_kept_can_be_held_before_its_sequence_joins() -> None:
    scheduler = make()
    names = chain(ROOT, range(40), B)
    reservation.reserve(scheduler, spec("a", range(40), params(2)))
    table = reservation.bind(scheduler, "a", 3)
    for num_computed, count in ((15, 0), (31, 1), (40, 2)):
        sequence = reservation.keep(scheduler, Keep(request_id="a", num_computed=num_computed))
        assert sequence is not None
        progress.register_full_blocks(scheduler, sequence)
        assert hold.hold(scheduler, "h", names) == table[:count]
        hold.release(scheduler, "h")
    assert hold.hold(scheduler, "h", names[1:]) == table[1:2]
    scheduler.remove(scheduler.sequences["a"])
    assert scheduler.pool.num_held == 1
    assert reservation.keep(scheduler, Keep(request_id="a", num_computed=40)) is None
    assert hold.release(scheduler, "h")
    assert not hold.release(scheduler, "h")
    assert (scheduler.pool.num_held, scheduler.pool.num_cached) == (0, 2)


def test_a_sequence_is_not_kept_beyond_what_is_bound_and_its_last_token_stays_to_compute() -> None:
    scheduler = make()
    reservation.reserve(scheduler, spec("a", range(48), params(2)))
    reservation.bind(scheduler, "a", 2)
    sequence = reservation.keep(scheduler, Keep(request_id="a", num_computed=48))
    assert sequence is not None
    assert sequence.num_computed == 32
    reservation.bind(scheduler, "a", 3)
    reservation.keep(scheduler, Keep(request_id="a", num_computed=48))
    assert sequence.num_computed == 47
    reservation.join(scheduler, Join(request_id="a", num_computed=40, output=()))
    assert (sequence.num_computed, sequence.group.fetched_tokens) == (47, 47)


def test_a_hold_has_an_id_of_its_own_and_breaks_no_promise() -> None:
    scheduler = make(num_blocks=6, max_model_len=90)
    names = chain(ROOT, range(64), B)
    scheduler.add(spec("a", range(64), params(1)))
    run_out(scheduler)
    assert len(hold.hold(scheduler, "h", names)) == 4
    assert hold.hold(scheduler, "h", names) == ()
    with pytest.raises(InvalidRequest, match="here already"):
        scheduler.add(spec("h", [1], params()))
    hold.release(scheduler, "h")
    reservation.reserve(scheduler, spec("b", [7] * 40, params(5)))  # 4 of 6 are promised
    assert len(hold.hold(scheduler, "h", names)) == 2
    assert len(reservation.bind(scheduler, "b", 4)) == 4
    assert hold.hold(scheduler, "b", names) == ()
    assert hold.hold(scheduler, "c", chain(ROOT, [9] * 32, B)) == ()
    assert scheduler.holds.keys() == {"h"}


@pytest.mark.parametrize("length", [16, 17, 40])
def test_the_next_turn_of_a_chat_finds_the_answer_that_a_joined_sequence_decoded(length: int) -> None:
    scheduler = make()
    prompt = [1] * length
    reservation.reserve(scheduler, spec("a", prompt, params(30)))
    reservation.bind(scheduler, "a", 3)
    sequence = reservation.join(scheduler, Join(request_id="a", num_computed=length, output=(7,)))
    assert sequence is not None
    progress.register_full_blocks(scheduler, sequence)
    turn = [*prompt, 7, *run_out(scheduler)["a"], *[3] * 20]
    scheduler.add(spec("b", turn, params(1)))
    run_out(scheduler)
    assert scheduler.num_cached_tokens == (length + 29) // B * B  # all but the last token of the answer have KV


def test_the_next_turn_finds_an_answer_that_was_preempted_on_the_way() -> None:
    scheduler = make(num_blocks=6, max_model_len=90)
    scheduler.add(spec("old", [1] * 30, params(30)))
    scheduler.add(spec("new", [2] * 14, params(30)))
    tokens = run_out(scheduler)
    assert scheduler.num_preemptions > 0
    before = scheduler.num_cached_tokens
    scheduler.add(spec("b", [2] * 14 + tokens["new"] + [3] * 20, params(1)))
    run_out(scheduler)
    assert scheduler.num_cached_tokens - before == (14 + 29) // B * B


def test_a_chain_whose_beginning_leaves_the_cache_is_known_by_its_own_blocks_again() -> None:
    scheduler = make(num_blocks=9, max_num_seqs=2)
    for name in ("a", "b"):  # both compute the same first block: b's own is not the one that is known
        scheduler.add(spec(name, range(16), params(20 if name == "b" else 1)))
    for _ in range(4):
        step = scheduler.schedule()
        assert step is not None
        run(scheduler, step)
    fillers = scheduler.pool.allocate(scheduler.pool.num_available)
    assert scheduler.pool.match(chain(ROOT, range(16), B)) == []
    scheduler.pool.release(fillers)
    answer = [token_after(16, i) for i in range(20)]
    run_out(scheduler)
    scheduler.add(spec("c", [*range(16), *answer], params(1)))
    run_out(scheduler)
    assert scheduler.num_cached_tokens == 32


def test_tokens_that_a_continued_sequence_came_with_are_counted() -> None:
    scheduler = make()
    scheduler.add(spec("a", [1] * 20, params(30), output=(4,) * 10))
    ends = []
    while (step := scheduler.schedule()) is not None:
        ends += [done.end for done in run(scheduler, step) if done.end is not None]
    (end,) = ends
    assert (end.cached_tokens, end.fetched_tokens, end.computed_tokens) == (0, 0, 30)
