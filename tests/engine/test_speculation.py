"""Speculative decoding: no token, log probability or end differs from those without it, whatever is drafted.

In place, on tiny models: what is drafted is looked up, or made up so that it is right to some token and wrong behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lora_folders
import pytest
from engine_runs import assert_at_rest, engine, greedy, run_all, spec
from guesses import Guesses, measured
from hypothesis import given
from hypothesis import strategies as st
from lone_sequences import commit, granted, small_scheduler, warm
from ranked_engines import ranked
from reference import generate

from pagewire.core.engine_messages import Add, StepDone
from pagewire.core.messages import Role
from pagewire.core.sampling import FinishReason, Grammar, GrammarKind, SamplingParams, TokenBias, TokenSequence
from pagewire.core.sequence_spec import SequenceSpec, branches
from pagewire.core.token_record import TokenLogprobs
from pagewire.engine import LLM
from pagewire.engine.assembly import Engine
from pagewire.engine.drafter import Drafter
from pagewire.engine.runner import OnGroup, compute
from pagewire.engine.sequence import Sequence
from pagewire.engine.speculation import Speculation
from pagewire.engine.step import Computed, Step

TinyModel = Callable[[str], Path]

REPEATING = [1, 2, 3, 4, 5, 6, 7] * 5
WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20, "min_p": 0.01, "logprobs": 2},
    {"temperature": 0.8, "typical_p": 0.7},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4, "temperature": 0.7},
    {"logprobs": 3, "prompt_logprobs": 1},
    {"ignore_eos": False, "stop_token_ids": tuple(range(0, 256, 9)), "min_tokens": 20, "temperature": 1.0},
    {"logit_bias": (TokenBias(token=7, bias=3.0),), "bad_words": (TokenSequence(tokens=(7, 7)),)},
    {"allowed_token_ids": tuple(range(40)), "temperature": 0.6},
    {"n": 3, "temperature": 0.9},
    {"grammar": Grammar(kind=GrammarKind.REGEX, text="[a-z]{30,60}"), "ignore_eos": False},
    {"n": 2, "use_beam_search": True, "beam_width": 2},
]


@dataclass(slots=True)
class Said:
    """What one sequence said, and why it ended."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: FinishReason | None = None


def run(built: Engine, asked: list[SequenceSpec], chance: random.Random | None = None) -> dict[tuple[str, int], Said]:
    """Run requests, which come at random where there is a chance; say what each of their sequences said."""
    said: dict[tuple[str, int], Said] = {}

    def hear(done: StepDone) -> None:
        for record in done.records:
            one = said.setdefault((record.request_id, record.index), Said())
            assert record.position == len(one.tokens)
            one.tokens += record.tokens
            one.logprobs += record.logprobs
            one.prompt_logprobs += record.prompt_logprobs
            one.reason = record.finish_reason or one.reason
        assert all(end.error is None for end in done.ends), done.ends

    for grammar in filter(None, {each.sampling.grammar for each in asked}):
        built.grammars.compile(grammar)
    waiting = list(asked)
    while True:
        for _ in range(len(waiting) if chance is None else min(len(waiting), chance.choice([0, 1, 4]))):
            built.loop.add(Add(spec=waiting.pop()))
        done = built.loop.step()
        built.loop.check()
        if done is not None:
            hear(done)
        elif not waiting:
            assert_at_rest(built.loop)
            return said


def requests(seed: int, adapters: tuple[str, ...] = ("",)) -> list[SequenceSpec]:
    """Return requests of all ways, some with prompts that repeat themselves."""
    chance = random.Random(seed)
    asked = []
    for number, way in enumerate(2 * WAYS):
        prompt = chance.choice([REPEATING, [chance.randrange(256) for _ in range(chance.choice([1, 16, 33, 70]))]])
        sampling = greedy(max(chance.choice([1, 2, 17, 40, 70]), way.get("min_tokens", 0)), seed=number, **way)
        asked.append(spec(str(number), prompt, sampling, adapter=chance.choice(adapters)))
    return [replace(each, branches=branches(each.sampling.num_sequences)) for each in asked]


def guessing(said: Mapping[tuple[str, int], Said], most: int) -> Guesses:
    """Return what drafts for sequences of which it is known what they will say."""

    def token_of(sequence: Sequence, place: int) -> int:
        known = said[sequence.request_id, sequence.index].tokens
        return known[min(place, len(known) - 1)]

    return Guesses(most, token_of, wrong=100)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_nothing_that_is_said_hangs_on_drafts(tiny: TinyModel, tmp_path: Path, name: str, dtype: str) -> None:
    """Every parameter, in crowds that are preempted, in blocks of few tokens, with adapters."""
    model = tiny(name)
    adapters = [f"all={lora_folders.build(model, tmp_path / 'all', 'all')}"]
    settings: dict[str, Any] = {"dtype": dtype, "deterministic": True, "adapters": adapters, "block_size": 16}
    asked = requests(len(name), ("", "all"))
    alone = engine(model, **settings)
    right: dict[tuple[str, int], Said] = {}
    for each in asked:
        right |= run(alone, [each])
    crowded = engine(
        model, **settings, kv_memory_bytes=15 * alone.ready.layout.block_bytes, max_model_len=200, chunk_size=30,
        max_num_batched_tokens=64, max_num_seqs=12,
    )  # fmt: skip
    for most in (1, 4, 20):
        crowded.scheduler.speculation = speculation = guessing(right, most)
        assert run(crowded, asked, random.Random(most)) == right
        assert 0 < speculation.num_accepted < speculation.num_drafted
    assert crowded.scheduler.num_preemptions > 0 or crowded.scheduler.limits.window, "too much room"


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_neox"])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_what_is_looked_up_is_said_sooner_as_transformers_says_it(tiny: TinyModel, name: str, kv_dtype: str) -> None:
    """Native and general path; greedy answers of tiny models repeat themselves before long."""
    model, prompts = tiny(name), [REPEATING, list(range(40)), [9]]
    settings: dict[str, Any] = {"kv_dtype": kv_dtype, "max_model_len": 200}
    plain, drafting = engine(model, **settings), engine(model, **settings, speculative_tokens=6)
    asked = [spec(str(number), prompt, greedy(120)) for number, prompt in enumerate(prompts)]
    right = run_all(plain.loop, asked)
    assert drafting.scheduler.speculation is not None
    drafting.scheduler.speculation._meter = measured(1, 2, 3)  # so that what is drafted costs nothing
    heard = run_all(drafting.loop, asked)
    assert heard.tokens == right.tokens
    if kv_dtype == "auto":
        assert [heard.tokens[str(i)] for i in range(len(prompts))] == generate(model, prompts, 120)
    load = drafting.loop.load()
    assert 0 < load.draft_tokens_accepted < load.draft_tokens
    assert plain.loop.load().draft_tokens == 0


def test_llm_speculates(tiny: TinyModel) -> None:
    sampling = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True, logprobs=1)
    with LLM(tiny("llama"), dtype="float32", kv_memory_bytes="8MiB") as llm:
        right = llm.generate([REPEATING], sampling)
    with LLM(tiny("llama"), dtype="float32", kv_memory_bytes="8MiB", speculative_tokens=4) as llm:
        said = llm.generate([REPEATING], sampling)
        assert llm._loaded().engine.loop.load().draft_tokens > 0
    assert [each.outputs for each in said] == [each.outputs for each in right]


def test_ranks_compute_drafts_as_one_process_does(tiny: TinyModel) -> None:
    asked = [spec(str(number), prompt, greedy(40)) for number, prompt in enumerate([REPEATING, list(range(40))])]
    right = run(engine(tiny("llama")), asked)
    with ranked(tiny("llama")) as built:
        built.scheduler.speculation = speculation = guessing(right, 5)
        assert run(built, asked) == right
    assert speculation.num_accepted > 0


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_prefill_pod_drafts_nothing(role: Role) -> None:
    """Not even where one token is left of its prompt."""
    scheduler = small_scheduler(role=role)
    scheduler.speculation = Speculation(4, measured(1))
    scheduler.add(spec("r", [1, 2, 3, 1, 2, 3, 1], greedy(20)))
    drafted = []
    for _ in range(2):
        (grant,) = granted(scheduler)
        drafted.append(len(grant.checks))
        commit(scheduler, [grant])
    assert drafted == [0, 0 if role is Role.PREFILL else 4]


def test_nothing_is_evicted_for_a_draft() -> None:
    scheduler = small_scheduler(num_blocks=3)
    cached = warm(scheduler, range(80, 84))
    scheduler.speculation = Speculation(6, measured(1))
    scheduler.add(spec("r", [1, 2, 3, 1, 2, 3, 1], greedy(20)))
    commit(scheduler, granted(scheduler))
    assert (scheduler.pool.num_free, scheduler.pool.num_available) == (0, 1)
    (grant,) = granted(scheduler)
    assert len(grant.checks) == 1  # what is left of its own block
    assert scheduler.pool.num_unreferenced(cached) == len(cached)


@given(free=st.integers(0, 3), room=st.integers(1, 12))
def test_drafts_go_where_nobody_else_would(free: int, room: int) -> None:
    """Into blocks that are free beside what the step needs, in the rest of its budget; what was in vain comes back."""
    scheduler = small_scheduler(num_blocks=2 + free, max_num_batched_tokens=8)
    scheduler.speculation = speculation = Speculation(20, measured(1))
    speculation._largest = 20
    scheduler.add(spec("r", [5, 6, 7, 8, 9], greedy(20)))
    (prompt,) = granted(scheduler)
    sequence = scheduler.sequences["r"]
    sequence.num_computed, sequence.output = 5, [1]
    sequence.drafter = Drafter([1] * 30)
    step = scheduler.schedule(room)
    assert step is not None
    (grant,) = step.grants
    # The block has two more slots, and others are taken where there are some.
    assert len(grant.checks) == min(2 + 4 * free, room, 7)
    assert len(grant.block_ids) == 2 + -(-max(0, len(grant.checks) - 2) // 4)
    assert scheduler.pool.num_free == free + 2 - len(grant.block_ids)
    scheduler.trim(sequence)
    assert (scheduler.pool.num_free, len(sequence.block_table)) == (free, 2)
    scheduler.pool.check()
    assert prompt.checks == ()


class Failing:
    """A runner that fails wherever anything is drafted."""

    def __init__(self) -> None:
        self.num_recaptures = 0
        self.num_runs = 0

    def rehearse(self) -> None:
        """Compute nothing."""

    def run(self, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        """Draw 50 for whoever draws."""
        self.num_runs += 1
        if any(grant.checks for grant in step.grants):
            raise MemoryError("no room for drafts")
        return {name: Computed(token=50) for grant in step.grants for name in grant.draws()}


def test_what_fails_with_drafts_is_computed_without() -> None:
    scheduler = small_scheduler()
    scheduler.speculation = Guesses(4, lambda _sequence, _place: 50, wrong=50)
    scheduler.add(spec("r", [1, 2, 3], greedy(20)))
    scheduler.schedule()
    sequence = scheduler.sequences["r"]
    sequence.num_computed, sequence.output = 3, [50]
    while True:
        step = scheduler.schedule()
        assert step is not None
        if step.grants[0].checks:
            break
    runner = Failing()
    computed, errors = compute(runner, step, lambda _step, _group: None)
    assert (list(computed), errors, runner.num_runs) == (["r"], {}, 2)
    (done,) = commit(scheduler, step.grants, computed)
    assert done.records[0].tokens == (50,)
    assert scheduler.speculation.num_drafted == 0, "nothing is known of drafts that were not computed"
