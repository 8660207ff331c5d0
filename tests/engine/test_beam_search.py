"""Beam search is transformers' `generate(num_beams=...)`: its tokens and its scores, whatever the pool does meanwhile.

Tiny models with random weights in fp32, every few tokens an end, so that hypotheses finish at all lengths. What beams
hold is compared with the tree of their common beginnings after every step.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import assert_at_rest, engine, run_until_idle, spec
from made_up_engine import Rig
from transformers import AutoModelForCausalLM, GenerationConfig

from pagewire.core.block_hash import BlockHash
from pagewire.core.engine_messages import Add, Reserve
from pagewire.core.errors import InvalidRequest
from pagewire.core.messages import Role
from pagewire.core.sampling import FinishReason, SamplingParams, TokenBias, TokenSequence
from pagewire.core.sequence_spec import SequenceSpec, branches
from pagewire.core.token_record import TokenRecord
from pagewire.engine.assembly import Engine
from pagewire.engine.scheduler import Scheduler

TinyModel = Callable[[str], Path]
B = 16
BLOCK_BYTES = 16 * 768  # the tiny llama in fp32
LENGTHS = (1, 15, 16, 33)
ENDS = tuple(range(0, 256, 9))
Found = list[tuple[list[int], float]]


def prompts(seed: int = 3, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(256) for _ in range(length)] for length in lengths]


def beams(n: int, **changes: Any) -> SamplingParams:
    asked = {"max_tokens": 12, "use_beam_search": True, "stop_token_ids": ENDS, "ignore_eos": True, **changes}
    return SamplingParams(n=n, **asked)


def asked(name: str, prompt: list[int], sampling: SamplingParams) -> SequenceSpec:
    return spec(name, prompt, sampling, branches=branches(sampling.num_beams))


def load(folder: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    return model


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> Any:
    return load(tiny("llama"))


def theirs(model: Any, prompt: list[int], sampling: SamplingParams, **more: Any) -> Found:
    """Return transformers' hypotheses and their scores."""
    tokens = torch.tensor([prompt])
    stopping = {"true": True, "false": False, "never": "never"}[sampling.early_stopping]
    with torch.inference_mode():
        out = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            num_beams=sampling.num_beams,
            num_return_sequences=sampling.n,
            length_penalty=sampling.length_penalty,
            early_stopping=stopping,
            max_new_tokens=sampling.max_tokens,
            eos_token_id=list(sampling.stop_token_ids) or None,
            return_dict_in_generate=True,
            output_scores=True,
            **more,
        )
    found = []
    for row, score in zip(out.sequences[:, len(prompt) :].tolist(), out.sequences_scores.tolist(), strict=True):
        end = next((place for place, token in enumerate(row) if token in sampling.stop_token_ids), len(row) - 1)
        found.append((row[: end + 1], score))
    return found


def hear(built: Engine, after_step: Callable[[], None] = lambda: None) -> dict[str, list[TokenRecord]]:
    """Run to the end; return the answers of each request."""
    heard: dict[str, list[TokenRecord]] = {}
    steps: Counter[str] = Counter()  # in which the beams of each went on
    while (done := built.loop.step()) is not None:
        built.loop.check()
        after_step()
        for record in done.records:
            if not record.tokens:
                steps[record.request_id] += 1
                continue
            heard.setdefault(record.request_id, []).append(record)
        for end in done.ends:
            assert end.error is None, end
            assert steps[end.request_id] >= max(len(each.tokens) for each in heard[end.request_id]) - 1
            assert [each.index for each in heard[end.request_id]] == list(range(len(heard[end.request_id])))
    assert_at_rest(built.loop)
    return heard


def same(ours: list[TokenRecord], expected: Found, sampling: SamplingParams) -> None:
    assert [list(each.tokens) for each in ours] == [tokens for tokens, _ in expected]
    for record, (tokens, score) in zip(ours, expected, strict=True):
        # A negative penalty multiplies by the length: there fp32 itself is no better than a millionth.
        assert record.score == pytest.approx(score, abs=1e-4, rel=1e-6)
        assert record.cumulative_logprob == pytest.approx(score * len(tokens) ** sampling.length_penalty, abs=1e-4)
        ended = tokens[-1] in sampling.stop_token_ids
        assert record.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)


GRID = [
    beams(n, beam_width=width, length_penalty=penalty, early_stopping=stopping)
    for n, width in ((1, 2), (2, 0), (3, 5), (4, 0), (8, 0))
    for penalty in (0.0, 1.0, 2.0, -1.0)
    for stopping in (False, True, "never")
]


def test_tokens_and_scores_are_those_of_transformers(tiny: TinyModel, model: Any) -> None:
    """A part of the grid for each prompt, all at once on one engine."""
    built = engine(tiny("llama"), max_num_seqs=64, max_num_batched_tokens=256)
    expected, params = {}, {}
    for number, prompt in enumerate(prompts()):
        for place, sampling in enumerate(GRID):
            if place % 4 == number:
                name = f"{number} {place}"
                expected[name], params[name] = theirs(model, prompt, sampling), sampling
                built.loop.add(Add(spec=asked(name, prompt, sampling)))
    ours = hear(built)
    assert ours.keys() == expected.keys()
    for name, found in expected.items():
        same(ours[name], found, params[name])
    lengths = {len(tokens) for found in expected.values() for tokens, _ in found}
    assert lengths >= {1, 2, 3, 12}, "hypotheses end at all lengths"
    for number in range(4):
        said = {str([tokens for tokens, _ in found]) for name, found in expected.items() if name[0] == str(number)}
        assert len(said) > 8, "the parameters make a difference"


def followed(model: Any, prompt: list[int], sampling: SamplingParams) -> list[int]:
    """Return the tokens that are likeliest each time by log probabilities, of which those said before are penalised."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + sampling.max_tokens and tokens[-1] not in (ENDS if tokens != prompt else ()):
        with torch.inference_mode():
            logits = model(torch.tensor([tokens])).logits[0, -1]
        logprobs = logits.clone().log_softmax(-1)
        logprobs[list(set(tokens))] *= sampling.repetition_penalty
        tokens.append(int(logprobs.argmax()))
    return tokens[len(prompt) :]


def test_one_beam_is_greedy_but_for_what_a_repetition_penalty_is_applied_to(tiny: TinyModel, model: Any) -> None:
    """transformers has no beams at `num_beams=1`: it penalises logits there, and log probabilities of two and more."""
    built = engine(tiny("llama"))
    plain, penalised = beams(1), beams(1, repetition_penalty=1.3)
    for number, prompt in enumerate(prompts()):
        built.loop.add(Add(spec=asked(f"plain {number}", prompt, plain)))
        built.loop.add(Add(spec=asked(f"penalised {number}", prompt, penalised)))
    ours = {name: list(record.tokens) for name, (record,) in hear(built).items()}
    for number, prompt in enumerate(prompts()):
        tokens = torch.tensor([prompt])
        with torch.inference_mode():
            greedy = model.generate(
                tokens, attention_mask=torch.ones_like(tokens), num_beams=1, max_new_tokens=12, eos_token_id=list(ENDS)
            )
        assert ours[f"plain {number}"] == greedy[0, len(prompt) :].tolist()
        assert ours[f"penalised {number}"] == followed(model, prompt, penalised)


@pytest.mark.parametrize("name", ["qwen3", "mistral", "gemma2"])
def test_other_families_search_as_well(tiny: TinyModel, name: str) -> None:
    model, built = load(tiny(name)), engine(tiny(name))
    sampling = beams(4, beam_width=5)
    for number, prompt in enumerate(prompts()):
        built.loop.add(Add(spec=asked(str(number), prompt, sampling)))
    ours = hear(built)
    for number, prompt in enumerate(prompts()):
        same(ours[str(number)], theirs(model, prompt, sampling), sampling)


def test_the_models_own_end_ends_a_beam(tiny: TinyModel, model: Any) -> None:
    built = engine(tiny("llama"))
    bias = (TokenBias(token=256, bias=6.0), TokenBias(token=258, bias=5.0))  # its two ends
    sampling = beams(3, stop_token_ids=(), ignore_eos=False, logit_bias=bias)
    built.loop.add(Add(spec=asked("a", prompts()[3], sampling)))
    (ours,) = hear(built).values()
    reference = beams(3, stop_token_ids=(256, 258))
    same(ours, theirs(model, prompts()[3], reference, sequence_bias={(256,): 6.0, (258,): 5.0}), reference)
    assert any(len(each.tokens) < 12 for each in ours)


def test_what_is_done_to_log_probabilities_is_what_transformers_does(tiny: TinyModel, model: Any) -> None:
    prompt = prompts()[3]
    unchanged = theirs(model, prompt, beams(4))
    plain = unchanged[0][0]
    bad = [plain[:1], plain[1:3]]
    allowed = [token for token in range(0, 256, 3) if token not in bad[0]]
    asked_of: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"repetition_penalty": 1.6}, {"repetition_penalty": 1.6}),
        ({"bad_words": tuple(TokenSequence(tokens=tuple(each)) for each in bad)}, {"bad_words_ids": bad}),
        ({"min_tokens": 7}, {"min_new_tokens": 7}),
        (
            {"allowed_token_ids": tuple(allowed), "logit_bias": (TokenBias(token=allowed[2], bias=3.0),)},
            {"prefix_allowed_tokens_fn": lambda *_: allowed, "sequence_bias": {(allowed[2],): 3.0}},
        ),
        ({"repetition_penalty": 1.3, "min_tokens": 4}, {"repetition_penalty": 1.3, "min_new_tokens": 4}),
    ]
    built = engine(tiny("llama"))
    for number, (ours, _) in enumerate(asked_of):
        built.loop.add(Add(spec=asked(str(number), prompt, beams(4, **ours))))
    heard = hear(built)
    for number, (_, more) in enumerate(asked_of):
        expected = theirs(model, prompt, beams(4), **more)
        same(heard[str(number)], expected, beams(4))
        assert expected != unchanged


def test_fewer_tokens_than_beams(tiny: TinyModel) -> None:
    """Two tokens are allowed, and one of them ends: there are two beams at most, and so many hypotheses as steps."""
    built = engine(tiny("llama"))
    sampling = beams(4, allowed_token_ids=(3, 9), stop_token_ids=(9,), max_tokens=3)
    built.loop.add(Add(spec=asked("a", [1, 2, 3], sampling)))
    (found,) = hear(built).values()
    assert {each.tokens for each in found} == {(9,), (3, 9), (3, 3, 9), (3, 3, 3)}
    built.loop.add(Add(spec=asked("b", [1, 2, 3], beams(8, allowed_token_ids=(3, 4), max_tokens=3))))
    (found,) = hear(built).values()
    assert len({each.tokens for each in found}) == 8, "all there are: the beams grow from two to four"
    banned = (TokenSequence(tokens=(3, 4)), TokenSequence(tokens=(3, 3)), TokenSequence(tokens=(4, 4)))
    sampling = beams(2, allowed_token_ids=(3, 4), bad_words=banned, max_tokens=2)
    built.loop.add(Add(spec=asked("c", [1, 2], sampling)))
    (found,) = hear(built).values()
    assert [each.tokens for each in found] == [(4, 3)]
    sampling = beams(2, allowed_token_ids=(3,), bad_words=banned, max_tokens=3)
    built.loop.add(Add(spec=asked("d", [1, 2], sampling)))
    ends = [end for _ in range(5) if (done := built.loop.step()) is not None for end in done.ends]
    assert [end.error.field for end in ends if end.error is not None] == ["sampling"]
    assert_at_rest(built.loop)


# ------------------------------------------------------------------------------------------------------------ blocks


@pytest.mark.parametrize(
    ("blocks", "slots", "settings"),
    [
        (200, 0, {"chunk_size": 10, "max_num_batched_tokens": 24, "max_num_seqs": 5}),
        (18, 0, {"preemption": "recompute"}),
        (18, 60, {"preemption": "swap"}),
        (18, 60, {"preemption": "swap", "chunk_size": 10, "max_num_batched_tokens": 24, "max_num_seqs": 16}),
    ],
)
def test_preemption_and_chunks_change_nothing(
    tiny: TinyModel, blocks: int, slots: int, settings: dict[str, Any]
) -> None:
    asked_of = [
        (str(number), prompt, beams(3 + number % 2, max_tokens=25, early_stopping="never", length_penalty=2.0))
        for number, prompt in enumerate(prompts(5, (1, 15, 16, 33, 40, 31)))
    ]
    alone: dict[str, list[TokenRecord]] = {}
    for name, prompt, sampling in asked_of:
        built = engine(tiny("llama"))
        built.loop.add(Add(spec=asked(name, prompt, sampling)))
        alone |= hear(built)
    memory: dict[str, Any] = {"kv_memory_bytes": blocks * BLOCK_BYTES, "host_kv_memory_bytes": slots * BLOCK_BYTES}
    built = engine(tiny("llama"), max_model_len=112, **memory, **settings)
    for name, prompt, sampling in asked_of:
        built.loop.add(Add(spec=asked(name, prompt, sampling)))
    heard = hear(built)
    assert {name: [each.tokens for each in found] for name, found in heard.items()} == {
        name: [each.tokens for each in found] for name, found in alone.items()
    }
    load = built.loop.load()
    assert (load.preemptions > 0) == (blocks < 100)
    assert (load.preemptions_swapped > 0) == (slots > 0)


def nodes(scheduler: Scheduler) -> tuple[int, int] | None:
    """Return how many blocks the tree of all computed beginnings has, and how many all beams have one by one.

    None while some beam of a request has less computed than the others: what it recomputes comes back bit by bit.
    """
    tree: set[tuple[str, tuple[int, ...]]] = set()
    alone = 0
    for sequence in scheduler.sequences.values():
        if any(each.num_computed != sequence.num_computed for each in sequence.group.members):
            return None
        if len(sequence.block_table) != -(-sequence.num_computed // B):  # a prompt computed in chunks owns its blocks
            return None
        for depth in range(len(sequence.block_table)):
            alone += 1
            tree.add((sequence.request_id, sequence.tokens(0, min((depth + 1) * B, sequence.num_computed))))
    return len(tree), alone


@pytest.mark.parametrize("blocks", [200, 30])
def test_beams_hold_no_block_more_than_the_tree_of_their_beginnings(
    tiny: TinyModel, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = engine(tiny("llama"), max_num_seqs=32, max_model_len=160, kv_memory_bytes=blocks * BLOCK_BYTES)
    scheduler, copied = built.scheduler, 0
    own = scheduler.pool.own

    def counted(block_id: int) -> int:
        nonlocal copied
        copied += 1
        return own(block_id)

    monkeypatch.setattr(scheduler.pool, "own", counted)
    for number, prompt in enumerate(prompts(9, (5, 16, 40, 30, 47, 48))):
        sampling = beams(2 + number % 4, max_tokens=40, stop_token_ids=ENDS[:2], length_penalty=2.0)
        built.loop.add(Add(spec=asked(str(number), prompt, sampling)))
    seen = shared = 0
    while True:
        due, preempted = diverging(scheduler), scheduler.num_preemptions
        before = copied
        done = built.loop.step()
        if done is None:
            break
        built.loop.check()
        assert all(end.error is None for end in done.ends)
        if scheduler.num_preemptions == preempted and nodes(scheduler) is not None:
            assert copied - before <= due, "a block was copied that nobody else writes into"
        if (counts := nodes(scheduler)) is not None:
            load = built.loop.load()
            assert (load.blocks_held, load.blocks_shared) == (counts[0], counts[1] - counts[0])
            seen, shared = seen + 1, shared + load.blocks_shared
    assert seen > 30
    assert shared > 0
    assert copied > 0
    load = built.loop.load()
    assert (load.preemptions > 0) == (blocks < 100)
    assert load.block_steps_shared / load.block_steps > 0.3
    assert_at_rest(built.loop)


def diverging(scheduler: Scheduler) -> int:
    """Return how many copies the next tokens of all beams need: all but one of those that write into one block."""
    written = [
        each.block_table[each.num_computed // B]
        for each in scheduler.running
        if each.num_computed // B < len(each.block_table)
    ]
    return len(written) - len(set(written))


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"temperature": 0.7}, "temperature"),
        ({"top_k": 5}, "top_k"),
        ({"top_p": 0.9}, "top_p"),
        ({"min_p": 0.1}, "min_p"),
        ({"typical_p": 0.9}, "typical_p"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logprobs": 1}, "logprobs"),
        ({"stop": ("x",)}, "stop"),
        ({"beam_width": 3}, "beam_width"),  # below n
        ({"length_penalty": 11.0}, "length_penalty"),
        ({"use_beam_search": False, "length_penalty": 0.5}, "length_penalty"),
        ({"use_beam_search": False, "beam_width": 4}, "beam_width"),
        ({"use_beam_search": False, "early_stopping": True}, "early_stopping"),
    ],
)
def test_what_does_not_go_with_beams_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    beams(4).validate()
    beams(4, temperature=0.0, seed=3).validate()
    with pytest.raises(InvalidRequest) as refused:
        beams(4, **changes).validate()
    assert refused.value.field == field


def test_early_stopping_has_three_values() -> None:
    assert [SamplingParams(early_stopping=each).early_stopping.value for each in (True, False, "never")] == [  # type: ignore[arg-type]
        "true", "false", "never",
    ]  # fmt: skip
    with pytest.raises(InvalidRequest, match="maybe"):
        SamplingParams(early_stopping="maybe")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("role", "changes", "sampling", "field"),
    [
        (Role.PREFILL, {}, {}, "use_beam_search"),
        (Role.DECODE, {"output": (1,)}, {}, "use_beam_search"),
        (Role.DECODE, {"branches": branches(3)}, {}, "use_beam_search"),
        (Role.DECODE, {"branches": branches(9)}, {"beam_width": 9}, "beam_width"),  # 8 places in a batch
        (Role.DECODE, {}, {"max_tokens": 150}, "max_tokens"),  # 4 x 11 blocks of 32
    ],
)
def test_what_an_engine_cannot_search_is_refused_by_name(
    role: Role, changes: dict[str, Any], sampling: dict[str, Any], field: str
) -> None:
    rig = Rig(role)
    one = spec("a", [1] * 20, beams(4, stop_token_ids=(), **sampling), **{"branches": branches(4), **changes})
    rig.loop.add(Add(spec=one))
    error = run_until_idle(rig.loop).ends["a"].error
    assert error is not None
    assert (error.cause, error.field) == ("invalid_request", field)
    assert rig.loop.reserve(Reserve(spec=one)).error == error


def test_pinned_blocks_are_none_that_a_search_may_count_on() -> None:
    rig = Rig(num_blocks=32)
    one = spec("a", [1] * 20, beams(4, max_tokens=44, stop_token_ids=()), branches=branches(4))
    rig.loop.add(Add(spec=one))
    rig.loop.abort("a")
    pool = rig.scheduler.pool
    held = pool.allocate(16)
    pool.register(held, [BlockHash(bytes([depth]) * 16) for depth in range(len(held))])
    pool.pin(held)
    pool.release(held)
    rig.loop.add(Add(spec=one))
    error = run_until_idle(rig.loop).ends["a"].error
    assert error is not None
    assert (error.cause, error.field) == ("invalid_request", "max_tokens")
