"""Several sequences behind one prompt: each says what a request of its own says, and what is common is held once.

Tokens come from tiny models in fp32, compared with one request per index; the sharing is compared with the number of
blocks that the tokens need if equal beginnings are kept once. What any order of commands does to blocks is for
`test_scheduler_machine.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_runs import Heard, assert_at_rest, engine, greedy, run_all, run_until_idle, spec
from made_up_engine import Rig

from pagewire.core.engine_messages import Add, Bind, Join, Reserve, Stop
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.core.sequence_spec import Branch, SequenceSpec, branches
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.step import Step

TinyModel = Callable[[str], Path]
B = 16
BLOCK_BYTES = 16 * 768  # the tiny llama in fp32
LENGTHS = (1, 15, 16, 17, 40, 64)
Tokens = dict[tuple[str, int], list[int]]


class ByIndex(Heard):
    """What was heard, by request and index."""

    def __init__(self) -> None:
        super().__init__()
        self.said: Tokens = {}
        self.why: dict[tuple[str, int], FinishReason] = {}

    def hear(self, done: Any) -> None:
        for record in done.records:
            key = (record.request_id, record.index)
            assert key not in self.why, "a token after the end"
            assert record.position == len(self.said.setdefault(key, [])), f"{record} has a gap or a repeat"
            self.said[key] += record.tokens
            if record.finish_reason is not None:
                self.why[key] = record.finish_reason
        for end in done.ends:
            assert end.request_id not in self.ends
            self.ends[end.request_id] = end


def sampled(number: int, **changes: Any) -> SamplingParams:
    return SamplingParams(
        **{"max_tokens": 9 + 8 * (number % 4), "temperature": 0.9, "seed": number, "ignore_eos": True, **changes}
    )


def prompts(seed: int = 3) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(256) for _ in range(length)] for length in LENGTHS]


def forked(number: int, tokens: list[int], n: int, **changes: Any) -> SequenceSpec:
    return spec(str(number), tokens, sampled(number, **changes), branches=branches(n))


def one_by_one(folder: Path, n: int, kv_dtype: str = "auto", **changes: Any) -> Tokens:
    """Return what requests of one sequence say, each with its index."""
    built = engine(folder, kv_dtype=kv_dtype)
    said: Tokens = {}
    for number, tokens in enumerate(prompts()):
        for index in range(n):
            one = spec(f"{number} {index}", tokens, sampled(number, **changes), index=index)
            said[str(number), index] = run_all(built.loop, [one]).tokens[one.request_id]
    return said


@pytest.mark.parametrize(
    ("blocks", "slots", "settings"),
    [
        (200, 0, {}),
        (200, 0, {"chunk_size": 10, "max_num_batched_tokens": 24, "max_num_seqs": 5}),
        (12, 0, {"preemption": "recompute"}),
        (12, 60, {"preemption": "swap"}),
    ],
)
def test_each_sequence_says_what_a_request_of_its_own_says(
    tiny: TinyModel, blocks: int, slots: int, settings: dict[str, Any]
) -> None:
    expected = one_by_one(tiny("llama"), 4)
    memory: dict[str, Any] = {"kv_memory_bytes": blocks * BLOCK_BYTES, "host_kv_memory_bytes": slots * BLOCK_BYTES}
    built = engine(tiny("llama"), max_model_len=112, **memory, **settings)
    heard = ByIndex()
    for number, tokens in enumerate(prompts()):
        built.loop.add(Add(spec=forked(number, tokens, 4)))
    run_until_idle(built.loop, heard)
    assert heard.said == expected
    assert len({tuple(tokens) for tokens in heard.said.values()}) > 4 * len(LENGTHS) - 3, "they hardly differ"
    load = built.loop.load()
    assert (load.preemptions > 0) == (blocks < 100)
    assert heard.ends.keys() == {str(number) for number in range(len(LENGTHS))}
    if blocks > 100:
        assert [end.computed_tokens for end in heard.ends.values()].count(0) == 0
        assert sum(end.computed_tokens for end in heard.ends.values()) == sum(LENGTHS), "a prompt was computed twice"
    assert_at_rest(built.loop)


@pytest.mark.parametrize(("name", "kv_dtype"), [("gemma2", "auto"), ("mistral", "auto"), ("llama", "int8")])
def test_other_families_and_elements_fork_as_well(tiny: TinyModel, name: str, kv_dtype: str) -> None:
    expected = one_by_one(tiny(name), 3, kv_dtype)
    built = engine(tiny(name), kv_dtype=kv_dtype)
    heard = ByIndex()
    for number, tokens in enumerate(prompts()):
        built.loop.add(Add(spec=forked(number, tokens, 3)))
    run_until_idle(built.loop, heard)
    assert heard.said == expected


def test_penalties_and_log_probabilities_are_each_sequences_own(tiny: TinyModel) -> None:
    asked: dict[str, Any] = {"presence_penalty": 1.5, "repetition_penalty": 1.2, "logprobs": 2, "prompt_logprobs": 1}
    expected = one_by_one(tiny("llama"), 3, **asked)
    built = engine(tiny("llama"))
    heard, scored = ByIndex(), []
    built.loop.add(Add(spec=forked(4, prompts()[4], 3, **asked)))
    while (done := built.loop.step()) is not None:
        heard.hear(done)
        scored += [(record.index, len(record.prompt_logprobs)) for record in done.records if record.prompt_logprobs]
        assert all(len(record.logprobs) == len(record.tokens) for record in done.records)
    assert heard.said == {key: tokens for key, tokens in expected.items() if key[0] == "4"}
    assert {index for index, _ in scored} == {0}
    assert sum(count for _, count in scored) == LENGTHS[4] - 1, "the prompt is scored once"


def pieces(scheduler: Scheduler) -> tuple[int, int]:
    """Return the blocks that all live sequences need with every common beginning kept once, and kept by each."""
    needed: set[tuple[object, ...]] = set()
    alone = 0
    for sequence in scheduler.sequences.values():
        computed, prompt = sequence.num_computed, sequence.num_prompt
        depths = range(-(-computed // B))
        alone += len(depths)
        for depth in depths:
            common = (depth + 1) * B <= prompt or computed <= prompt
            needed.add((sequence.request_id, depth) if common else (sequence.request_id, depth, sequence.index))
    return len(needed), alone


def test_a_mixed_load_holds_no_block_more_than_it_must(tiny: TinyModel) -> None:
    built = engine(tiny("llama"), chunk_size=20, max_num_batched_tokens=48, max_num_seqs=12)
    chance = random.Random(1)
    ask = list(enumerate(prompts() + prompts(7) + prompts(8)))
    claims = saved = 0
    while True:
        if ask and chance.random() < 0.6:
            number, tokens = ask.pop(0)
            built.loop.add(Add(spec=forked(number, tokens, chance.choice([1, 2, 4, 6]))))
        before = built.loop.load()
        done = built.loop.step()
        if done is None and not ask:
            break
        load = built.loop.load()
        needed, alone = pieces(built.scheduler)
        running = [each for each in built.scheduler.sequences.values() if each.block_table]
        whole = all(len(each.block_table) == -(-each.num_computed // B) for each in running)
        if whole:  # a prompt that is computed in chunks owns its blocks before
            assert (load.blocks_held, load.blocks_shared) == (needed, alone - needed)
        claims += load.block_steps - before.block_steps
        saved += load.block_steps_shared - before.block_steps_shared
    load = built.loop.load()
    assert (load.block_steps, load.block_steps_shared) == (claims, saved)
    assert 0.06 < saved / claims < 0.66
    assert_at_rest(built.loop)


def test_the_blocks_of_a_fork_are_the_prompts_and_a_tail_each(tiny: TinyModel) -> None:
    built = engine(tiny("llama"))
    built.loop.add(Add(spec=forked(0, list(range(40)), 5)))
    held = []
    while built.loop.step() is not None:
        held.append((built.loop.load().blocks_held, built.loop.load().blocks_shared))
    assert held[0] == (3, 4 * 3), "forked, and nothing written yet: all hold the same blocks"
    assert held[1] == (2 + 5, 4 * 2), "two full blocks are common, the third is each one's own"
    assert_at_rest(built.loop)


# --------------------------------------------------------------------------------------- commands, on a made-up model


def grow(rig: Rig, heard: ByIndex, steps: int) -> None:
    for _ in range(steps):
        done = rig.loop.step()
        if done is not None:
            heard.hear(done)
        rig.loop.check()


def test_a_group_is_preempted_whole_and_the_newest_first() -> None:
    rig = Rig(num_blocks=14)
    for name, family in (("old", 1), ("new", 2)):
        rig.loop.add(Add(spec=spec(name, [family] * 17, greedy(60), branches=branches(3))))
    heard, alone = ByIndex(), 0
    for _ in range(400):
        preempted = rig.loop.load().preemptions
        grow(rig, heard, 1)
        running = {each.request_id for each in rig.scheduler.running}
        if rig.loop.load().preemptions > preempted and "new" in rig.scheduler.groups:
            assert running == {"old"}
            assert len(rig.scheduler.running) == 3
            alone += 1
    assert alone > 0
    assert {key: len(tokens) for key, tokens in heard.said.items()} == {
        (name, index): 60 for name in ("old", "new") for index in range(3)
    }
    assert_at_rest(rig.loop)


def test_a_group_that_does_not_fit_runs_on_in_parts() -> None:
    rig = Rig(num_blocks=8)
    rig.loop.add(Add(spec=spec("a", [1] * 20, greedy(90), branches=branches(4))))
    heard = ByIndex()
    grow(rig, heard, 500)
    assert rig.loop.load().preemptions > 0
    assert {key: len(tokens) for key, tokens in heard.said.items()} == {("a", index): 90 for index in range(4)}
    assert_at_rest(rig.loop)


def test_one_sequence_is_stopped_and_the_others_go_on() -> None:
    rig = Rig()
    rig.loop.add(Add(spec=spec("a", [1] * 20, greedy(10), branches=branches(3))))
    heard = ByIndex()
    grow(rig, heard, 3)
    rig.loop.stop(Stop(request_id="a", index=0))
    rig.loop.stop(Stop(request_id="a", index=0))
    rig.loop.stop(Stop(request_id="never heard of", index=0))

    def during(_step: Step) -> None:
        rig.loop.stop(Stop(request_id="a", index=2))

    rig.model.during = during
    grow(rig, heard, 1)
    rig.model.during = lambda _step: None
    grow(rig, heard, 20)
    # The last one's step had begun.
    assert {key: len(tokens) for key, tokens in heard.said.items()} == {("a", 0): 3, ("a", 1): 10, ("a", 2): 4}
    assert heard.ends["a"].error is None
    assert_at_rest(rig.loop)


@pytest.mark.parametrize("stopped", [(0,), (1,), (0, 1), (2, 0), (0, 1, 2)])
@pytest.mark.parametrize("num_steps", [0, 1])
def test_those_that_are_stopped_before_the_fork_leave_the_others(stopped: tuple[int, ...], num_steps: int) -> None:
    rig = Rig()
    rig.loop.add(Add(spec=spec("a", [1] * 70, greedy(10), branches=branches(3))))
    heard = ByIndex()
    grow(rig, heard, num_steps)  # a chunk is half of the prompt
    assert heard.said == {}
    for index in stopped:
        rig.loop.stop(Stop(request_id="a", index=index))
    grow(rig, heard, 20)
    left = {("a", index): 10 for index in range(3) if index not in stopped}
    assert {key: len(tokens) for key, tokens in heard.said.items()} == left
    assert heard.ends["a"].error is None
    assert_at_rest(rig.loop)


@pytest.mark.parametrize("stopped", [(0,), (1,), (2,), (0, 1), (2, 0), (0, 1, 2)])
@pytest.mark.parametrize("at", range(4))
def test_those_that_are_stopped_while_a_step_computes_leave_the_others_their_own_tokens(
    stopped: tuple[int, ...], at: int
) -> None:
    """Found by a random fault: the one drawn for who was stopped in the step of the fork became another's."""
    rig = Rig()
    rig.loop.add(Add(spec=spec("a", [1] * 70, greedy(10), branches=branches(3))))  # three chunks, then the fork
    heard = ByIndex()

    def during(step: Step) -> None:
        if len(rig.model.steps) == at + 1:
            for index in stopped:
                rig.loop.stop(Stop(request_id="a", index=index))

    rig.model.during = during
    grow(rig, heard, 20)
    had = max(0, at - 1)  # tokens, the one of the step included; the third chunk's draws the first
    said = {index: had if index in stopped else 10 for index in range(3)}
    assert heard.said == {("a", index): [1 + index] * many for index, many in said.items() if many}
    assert heard.ends["a"].error is None
    assert_at_rest(rig.loop)


def test_the_last_one_that_is_stopped_ends_the_request() -> None:
    rig = Rig()
    rig.loop.add(Add(spec=spec("a", [1] * 20, greedy(10), branches=branches(2))))
    heard = ByIndex()
    grow(rig, heard, 3)
    for index in (1, 0):
        rig.loop.stop(Stop(request_id="a", index=index))
    grow(rig, heard, 1)
    assert heard.ends["a"].error is None
    assert_at_rest(rig.loop)


def test_an_abort_and_poison_end_all_sequences() -> None:
    rig = Rig()
    for name in ("a", "b"):
        rig.loop.add(Add(spec=spec(name, [1] * 20, greedy(10), branches=branches(3))))
    heard = ByIndex()
    grow(rig, heard, 3)

    def during(_step: Step) -> None:
        assert rig.loop.abort("a") is None

    rig.model.during = during
    rig.model.poison = {"b\x1f1"}
    grow(rig, heard, 1)
    assert [freed.request_id for freed in rig.loop.take_freed()] == ["a"]
    error = heard.ends["b"].error
    assert error is not None
    assert error.cause == "poisoned"
    assert not rig.scheduler.sequences
    assert_at_rest(rig.loop)


@pytest.mark.parametrize(
    ("tokens", "changes", "field"),
    [
        (20, {"branches": branches(9)}, "n"),  # 8 places in a batch
        (150, {"branches": branches(2), "output": (1,)}, "n"),
        (20, {"branches": (Branch(index=0),)}, "n"),
        (20, {"branches": (Branch(index=1, output=(1,) * 10),), "output": (1,)}, "max_tokens"),
    ],
)
def test_what_cannot_fork_is_refused_by_name(tokens: int, changes: dict[str, Any], field: str) -> None:
    rig = Rig()
    rig.loop.add(Add(spec=spec("a", [1] * tokens, greedy(10), **changes)))
    error = run_until_idle(rig.loop).ends["a"].error
    assert error is not None
    assert (error.cause, error.field) == ("invalid_request", field)


@pytest.mark.parametrize("landed", [40, 32, 0])
def test_a_shipment_that_lands_is_shared_by_all(tiny: TinyModel, landed: int) -> None:
    """The prompt's KV came whole, or in part, with all first tokens; two of them were the last."""
    expected = one_by_one(tiny("llama"), 5)
    source, target = engine(tiny("llama")), engine(tiny("llama"))
    tokens = prompts()[4]
    run_all(source.loop, [spec("source", tokens, greedy(1))])
    held = run_held(source, tokens)
    asked = forked(4, tokens, 5)
    assert target.loop.reserve(Reserve(spec=asked)).error is None
    assert target.loop.load().blocks_reserved == 2 + 5 * 2
    table = target.loop.bind(Bind(request_id="4", num_blocks=3)).block_ids
    for mine, theirs in zip(table[: -(-landed // B)], held, strict=False):
        target.cache.pool[mine] = source.cache.pool[theirs]
    first = {index: expected["4", index][0] for index in range(5)}
    target.loop.join(
        Join(
            request_id="4", num_computed=landed, output=(first[1],), index=1,
            branches=tuple(Branch(index=index, output=(first[index],)) for index in (2, 4)),
        )
    )  # fmt: skip
    heard = ByIndex()
    heard.said = {("4", index): [first[index]] for index in (1, 2, 4)}
    run_until_idle(target.loop, heard)
    assert heard.said == {("4", index): expected["4", index] for index in (1, 2, 4)}
    assert heard.ends["4"].fetched_tokens == landed
    assert_at_rest(target.loop)


def run_held(source: Any, tokens: list[int]) -> list[int]:
    """Compute a prompt and return its blocks, tail included, which stay as they are until the next step."""
    source.loop.add(Add(spec=spec("held", tokens, greedy(3))))
    source.loop.step()
    return list(source.scheduler.sequences["held"].block_table)
