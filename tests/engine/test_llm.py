"""`LLM` in this process, on tiny models: tokens against transformers' `generate`, text against its tokenizer.

What a server says with the same seeds is compared in `tests/cluster/test_offline.py`.
"""

from __future__ import annotations

import io
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from at_once import AtOnce
from engine_runs import assert_at_rest, greedy
from reference import generate
from transformers import AutoTokenizer

from pagewire.core.errors import InvalidRequest, Poisoned
from pagewire.core.sampling import FinishReason, Grammar, GrammarKind, SamplingParams, TokenSequence
from pagewire.engine import LLM
from pagewire.engine.in_place import InPlaceEngine, Job
from pagewire.engine.runner import OnGroup
from pagewire.engine.step import Computed, Step

TinyModel = Callable[[str], Path]
NUM_TOKENS = 12
TEXTS = ("the capital of France", "x", "naïve café, 東京 and 🦜", "the capital of Japan is a city of many rivers")
SMALL: dict[str, Any] = {"dtype": "float32", "kv_memory_bytes": 40 * 16 * 768, "max_model_len": 256}


@pytest.fixture
def llm(tiny: TinyModel) -> Iterator[LLM]:
    with LLM(tiny("llama"), **SMALL) as loaded:
        yield loaded
        assert_at_rest(loaded._loaded().engine.loop)


def encoded(folder: Path, texts: tuple[str, ...] = TEXTS) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer.encode(text) for text in texts]


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_texts_and_tokens_are_continued_as_transformers_does(tiny: TinyModel, name: str) -> None:
    folder = tiny(name)
    chance = random.Random(0)
    drawn = [[chance.randrange(256) for _ in range(length)] for length in (1, 16, 33, 100)]
    prompts: list[str | list[int]] = [*TEXTS, *drawn]
    expected = generate(folder, [*encoded(folder), *drawn], NUM_TOKENS)
    with LLM(folder, **SMALL, max_num_seqs=2, chunk_size=20, max_num_batched_tokens=40) as llm:
        answers = llm.generate(prompts, greedy(NUM_TOKENS))
    assert [list(answer.prompt_token_ids) for answer in answers] == [*encoded(folder), *drawn]
    assert [list(answer.token_ids) for answer in answers] == expected
    decode = AutoTokenizer.from_pretrained(folder).decode
    assert [answer.text for answer in answers] == [decode(tokens, skip_special_tokens=True) for tokens in expected]
    assert {answer.finish_reason for answer in answers} == {FinishReason.LENGTH}


def test_settings_that_mean_nothing_here_are_refused(tiny: TinyModel) -> None:
    for setting in (
        {"brownout": True},
        {"stall_s": 1.0},
        {"log_level": "debug"},
        {"log_format": "json"},
        {"role": "decode"},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(setting))} is a setting of pods"):
            LLM(tiny("llama"), **setting)
    with pytest.raises(TypeError, match=r"LLM has no setting 'max_seqs'; those it has are .*max_num_seqs"):
        LLM(tiny("llama"), max_seqs=4)


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [
        SamplingParams(max_tokens=3 + i, temperature=0.9, top_p=0.9, seed=i, ignore_eos=True) for i in range(len(TEXTS))
    ]
    together = llm.generate(TEXTS, params)
    assert [len(answer.token_ids) for answer in together] == [3, 4, 5, 6]
    alone = [llm.generate(text, one)[0] for text, one in zip(TEXTS, params, strict=True)]
    assert [answer.token_ids for answer in alone] == [answer.token_ids for answer in together]
    other = SamplingParams(max_tokens=6, temperature=0.9, top_p=0.9, seed=99, ignore_eos=True)
    assert llm.generate(TEXTS[3], other)[0].token_ids != together[3].token_ids


def test_a_stop_string_cuts_the_text_and_frees_the_rest(llm: LLM) -> None:
    whole = llm.generate(list(TEXTS), greedy(40))
    for prompt, answer in zip(TEXTS, whole, strict=True):
        stop = answer.text[5:8]
        cut = llm.generate([prompt], greedy(40, stop=(stop, "never said")))[0]
        assert (cut.finish_reason, cut.stop_reason) == (FinishReason.STOP, stop)
        assert cut.text == answer.text[: answer.text.index(stop)]
        assert cut.token_ids == answer.token_ids[: len(cut.token_ids)]
        assert len(cut.token_ids) < 40
        assert_at_rest(llm._loaded().engine.loop)


def test_n_outputs_are_those_of_n_indices_and_each_has_its_own_end(llm: LLM) -> None:
    params = SamplingParams(n=4, max_tokens=30, temperature=0.9, seed=7, ignore_eos=True, logprobs=1)
    answers = llm.generate(TEXTS, params)
    for answer in answers:
        assert len({output.token_ids for output in answer.outputs}) == 4
        assert [len(output.logprobs) for output in answer.outputs] == [30] * 4
        assert (answer.text, answer.token_ids) == (answer.outputs[0].text, answer.outputs[0].token_ids)
    assert [answer.token_ids for answer in llm.generate(TEXTS, replace(params, n=1))] == [
        answer.token_ids for answer in answers
    ]
    whole = answers[1].outputs
    stop = whole[2].text[6:9]
    cut = llm.generate(TEXTS[1], replace(params, stop=(stop,)))[0].outputs
    for before, after in zip(whole, cut, strict=True):
        assert after.text == before.text.split(stop)[0]
        assert (after.finish_reason is FinishReason.STOP) == (stop in before.text)
    assert cut[2].stop_reason == stop
    assert any(output.finish_reason is FinishReason.LENGTH for output in cut)


def test_beams_come_best_first_with_their_scores(llm: LLM) -> None:
    params = SamplingParams(n=3, use_beam_search=True, beam_width=6, max_tokens=9, length_penalty=0.5, ignore_eos=True)
    answers = llm.generate(TEXTS, params)
    for answer in answers:
        assert len({output.token_ids for output in answer.outputs}) == 3
        scores = [output.score for output in answer.outputs if output.score is not None]
        assert scores == sorted(scores, reverse=True)
        for output, score in zip(answer.outputs, scores, strict=True):
            assert output.cumulative_logprob == pytest.approx(score * len(output.token_ids) ** 0.5)
    # The log probability of a hypothesis is what the model says of its tokens, as a prompt.
    prompt, best = answers[1].prompt_token_ids, answers[1].outputs[0]
    scored = llm.generate([[*prompt, *best.token_ids]], greedy(1, prompt_logprobs=0))[0].prompt_logprobs[
        len(prompt) - 1 :
    ]
    assert sum(each.logprob for each in scored) == pytest.approx(best.cumulative_logprob, abs=1e-4)
    alone = llm.generate(TEXTS[2], replace(params, n=1, prompt_logprobs=1))[0]
    assert alone.outputs == answers[2].outputs[:1]
    assert len(alone.prompt_logprobs) == len(alone.prompt_token_ids) - 1
    assert llm.generate(TEXTS[2], greedy(9))[0].outputs[0].score is None


def test_more_sequences_than_run_at_once_are_refused_before_anything_runs(tiny: TinyModel) -> None:
    with LLM(tiny("llama"), **SMALL, max_num_seqs=2) as llm:
        for n, message in ((3, "2 sequences run at once"), (0, "n must be"), (129, "n must be")):
            with pytest.raises(InvalidRequest, match=message) as refused:
                llm.generate(TEXTS, SamplingParams(n=n))
            assert refused.value.field == "n"


def test_a_stop_token_is_named_and_not_spoken(llm: LLM) -> None:
    whole = llm.generate("x", greedy(20))[0]
    stop = whole.token_ids[4]
    cut = llm.generate("x", greedy(20, stop_token_ids=(stop,)))[0]
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]
    assert (cut.finish_reason, cut.stop_reason) == (FinishReason.STOP, stop)


def test_chat_uses_the_models_template(llm: LLM, tiny: TinyModel) -> None:
    chats = [[{"role": "user", "content": text}] for text in TEXTS]
    tokenizer = AutoTokenizer.from_pretrained(tiny("llama"))
    expected = [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False, tokenize=True)
        for chat in chats
    ]
    answers = llm.chat(chats, greedy(4))
    assert [list(answer.prompt_token_ids) for answer in answers] == expected
    assert [list(answer.token_ids) for answer in answers] == generate(tiny("llama"), expected, 4)
    assert llm.chat(chats[0], greedy(4))[0].token_ids == answers[0].token_ids


def test_blocks_filled_by_decoding_serve_the_next_turn(llm: LLM, tiny: TinyModel) -> None:
    prompt = list(range(20))
    said = llm.generate([prompt], greedy(40))[0]
    following = [*prompt, *said.token_ids, 7, 8, 9]
    answer = llm.generate([following], greedy(8))[0]
    # 59 of the 60 tokens have their KV: three whole blocks, one of the prompt and two that only decoding filled.
    assert answer.cached_tokens == 48
    assert list(answer.token_ids) == generate(tiny("llama"), [following], 8)[0]


def test_what_was_computed_is_kept_for_its_own_salt(llm: LLM) -> None:
    prompt = list(range(100))
    first = llm.generate([prompt], greedy(4))[0]
    again = llm.generate([prompt], greedy(4))[0]
    other = llm.generate([prompt], greedy(4), cache_salt="somebody else")[0]
    assert [each.cached_tokens for each in (first, again, other)] == [0, 96, 0]
    assert first.token_ids == again.token_ids == other.token_ids
    load = llm.load()
    assert (load.prompt_tokens_cached, load.prompt_tokens_computed, load.output_tokens) == (96, 204, 12)


@pytest.mark.parametrize(
    ("prompts", "sampling", "message"),
    [
        (["fine", []], None, r"prompts\[1\] has 0 tokens; 1 to 255 may be"),
        (["fine", [1] * 256], None, r"prompts\[1\] has 256 tokens"),
        (["fine", [1, 259]], None, r"prompts\[1\] holds a token id that is not between 0 and 258"),
        (
            ["fine", [1] * 200],
            [greedy(2), greedy(60, n=30)],
            r"prompts\[1\]: 30 sequences behind the prompt need 42 blocks; the KV pool has 40",
        ),
        (
            ["fine", "too wide"],
            [greedy(2), SamplingParams(n=4, use_beam_search=True, max_tokens=200)],
            r"prompts\[1\]: 4 beams of up to 200 tokens may need 56 blocks; the KV pool has 40",
        ),
        (["fine", 7], None, r"prompts\[1\] is neither a text nor a list of token ids"),
        ([["fine"]], None, r"prompts\[0\] is neither a text nor a list"),
        (["fine"], [SamplingParams(), SamplingParams()], "2 sampling parameters for 1 prompts"),
        (["fine"], SamplingParams(top_p=0.0), "top_p must be in"),
        (["fine", "a\ud800b"], None, r"prompts\[1\] is not valid Unicode: it holds half of a surrogate pair"),
        ([b"abc"], None, r"prompts\[0\] is neither a text nor a list of token ids"),
        (7, None, "prompts is a text or a list of prompts, not 7"),
        ({"prompt": 1}, None, r"prompts is a text or a list of prompts, not \{'prompt': 1\}"),
        (["fine"], 7, "sampling is SamplingParams, not 7"),
        (["fine"], SamplingParams(logit_bias={"42": 1.0}), "logit_bias is of type int, not '42'"),  # type: ignore[arg-type]
        (["fine"], SamplingParams(repetition_penalty=1e-38), "repetition_penalty must be between 0.01 and 100"),
        (
            ["fine"],
            SamplingParams(grammar=Grammar(kind="foo", text="a")),  # type: ignore[arg-type]
            "grammar: the kind of a grammar is one of json_schema, regex, lark, not 'foo'",
        ),
        (
            ["fine"],
            SamplingParams(grammar=Grammar(kind=GrammarKind.JSON_SCHEMA, text={"type": "object"})),  # type: ignore[arg-type]
            "grammar: a grammar is a text .a schema too: JSON., not {'type'",
        ),
    ],
)
def test_what_is_wrong_is_named_before_anything_runs(llm: LLM, prompts: Any, sampling: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate(prompts, sampling)
    assert llm.load().output_tokens == 0


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"priority": [5, -5]}, "priority", "priority means nothing where scheduling is fcfs"),
        ({"priority": [1]}, "priority", "a number for each of 2 prompts"),
        ({"priority": 3}, "priority", "a number for each of 2 prompts"),
        ({"priority": [0, 101]}, "priority", "between -100 and 100, not 101"),
        ({"priority": [0, 0.5]}, "priority", "a whole number"),
        ({"cache_salt": 5}, "cache_salt", "cache_salt is a text, not 5"),
        ({"cache_salt": "\ud800"}, "cache_salt", "half of a surrogate pair"),
    ],
)
def test_what_is_wrong_about_a_call_is_named_too(llm: LLM, options: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        llm.generate(["a", "b"], greedy(2), **options)
    assert refused.value.field == field
    with pytest.raises(InvalidRequest, match=r"conversations\[0\] is not valid Unicode"):
        llm.chat([{"role": "user", "content": "a\ud800"}])
    wrong: Any
    for wrong in (5, None, [5], [None], ["a"], [""], [{}, {}, 5], [[{}], {}]):
        with pytest.raises(InvalidRequest, match=r"messages") as refused:
            llm.chat(wrong)
        assert refused.value.field in ("conversations", "messages")
    assert llm.load().output_tokens == 0
    assert [len(answer.token_ids) for answer in llm.generate(["a", "b"], greedy(2), priority=[0, 0])] == [2, 2]


def test_priorities_are_heeded_where_the_engine_schedules_by_them(tiny: TinyModel) -> None:
    with LLM(tiny("llama"), **SMALL, scheduling="priority", max_num_seqs=1) as llm:
        engine = llm._loaded()
        jobs = [Job(prompt=(1, 2, number), sampling=greedy(2), priority=-number) for number in range(2)]
        assert [number for number, _ in engine.run(jobs)] == [1, 0]
        llm.generate(["a", "b"], greedy(2), priority=[5, -5])


def test_bad_words_are_texts_or_lists_of_tokens(llm: LLM) -> None:
    whole = llm.generate("x", greedy(12))[0]
    first, second = whole.token_ids[2:4]
    cut = llm.generate("x", greedy(12, bad_words=[[first, second]]))[0]
    assert (cut.token_ids[:3], cut.token_ids[3] != second) == (whole.token_ids[:3], True)
    ids = llm._tokenizer.encode_now
    words = [TokenSequence(tokens=tuple(ids(text))) for text in ("ab", " ab", " ", "c", " c")]
    assert llm.bad_words(["ab", " ", " c", "ab"]) == tuple(words)
    assert llm.bad_words("ab") == tuple(words[:2])
    banned = llm.bad_words([chr(byte) for byte in range(ord("a"), ord("z"))])
    text = llm.generate("x", SamplingParams(max_tokens=60, seed=3, bad_words=banned))[0].text
    assert not set(text) & set(map(chr, range(ord("a"), ord("z"))))
    for wrong in ([""], [5], ["a\ud800"]):
        with pytest.raises(InvalidRequest) as refused:
            llm.bad_words(wrong)  # type: ignore[arg-type]
        assert refused.value.field == "bad_words"


def test_a_model_may_be_named_and_sizes_have_units(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEWIRE_MODELS_DIR", str(tmp_path))
    (tmp_path / "named").symlink_to(tiny("llama"))
    settings = {**SMALL, "kv_memory_bytes": "2MiB", "host_kv_memory_bytes": "1 MiB"}
    with LLM("named", **settings) as llm:
        assert llm._loaded().engine.cache.layout.block_bytes * llm.load().blocks_total == pytest.approx(
            2 << 20, rel=0.01
        )
    with pytest.raises(FileNotFoundError, match=r"nameless is neither a folder .* nor a local model \(named\)"):
        LLM("nameless", **SMALL)
    for wrong in ("much", 1.5, None):
        with pytest.raises(ValueError, match=r"kv_memory_bytes.*(such as|not)"):
            LLM("named", **{**SMALL, "kv_memory_bytes": wrong})


def test_nothing_asked_is_nothing_answered(llm: LLM) -> None:
    assert llm.generate([]) == llm.chat([]) == []


def test_ctrl_c_leaves_nothing_and_the_next_call_is_whole(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = llm.generate(TEXTS, greedy(30))
    runner, steps = llm._loaded().engine.runner, 0
    run = type(runner).run

    def interrupt(self: Any, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        nonlocal steps
        steps += 1
        if steps == 4:
            signal.raise_signal(signal.SIGINT)  # in the middle of a step
        return run(self, step, on_group)

    monkeypatch.setattr(type(runner), "run", interrupt)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(TEXTS, greedy(30))
    assert steps == 4
    assert signal.getsignal(signal.SIGINT) is handler
    load = llm.load()
    assert (load.num_running, load.num_waiting) == (0, 0)
    assert_at_rest(llm._loaded().engine.loop)
    again = llm.generate(TEXTS, greedy(30))
    assert [answer.token_ids for answer in again] == [answer.token_ids for answer in expected]


def test_a_sequence_that_breaks_a_step_is_an_error_and_the_rest_end(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = llm._loaded().engine.runner
    run = type(runner).run

    def break_one(self: Any, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        if any(7 in grant.tokens for grant in step.grants):
            raise RuntimeError("seven")
        return run(self, step, on_group)

    monkeypatch.setattr(type(runner), "run", break_one)
    with pytest.raises(Poisoned, match="seven"):
        llm.generate([[1, 2, 3], [5, 7, 9]], greedy(30))
    assert (llm.load().num_running, llm.load().num_waiting) == (0, 0)


def test_jobs_are_pulled_as_there_is_room(llm: LLM) -> None:
    engine: InPlaceEngine = llm._loaded()
    places = 2 * engine.engine.scheduler.limits.max_num_seqs
    pulled = 0

    def jobs() -> Iterator[Job]:
        nonlocal pulled
        for number in range(3 * places):
            pulled += 1
            yield Job(prompt=(number % 250, 1, 2), sampling=greedy(2))

    run = engine.run(jobs())
    next(run)
    assert pulled <= places + 1
    with pytest.raises(RuntimeError, match="another run"):
        next(engine.run([Job(prompt=(1,), sampling=greedy(1))]))
    ended = {number for number, _ in run}
    assert len(ended) == 3 * places - 1
    assert pulled == 3 * places


def test_a_run_that_nobody_wants_any_more_leaves_nothing(llm: LLM) -> None:
    engine: InPlaceEngine = llm._loaded()
    jobs = [Job(prompt=(number, 1, 2), sampling=greedy(1 + 20 * number)) for number in range(8)]
    run = engine.run(jobs)
    assert next(run)[0] == 0
    run.close()
    load = llm.load()
    assert (load.num_running, load.num_waiting) == (0, 0)
    assert_at_rest(engine.engine.loop)
    too_long = Job(prompt=(1,) * 300, sampling=greedy(1))
    (refused,) = engine.run([too_long])
    assert isinstance(refused[1], InvalidRequest)
    assert [number for number, _ in engine.run(jobs)] == [*range(8)]


def test_without_prefix_caching_every_prompt_is_computed_whole_and_nothing_stays(tiny: TinyModel) -> None:
    folder, prompt = tiny("llama"), [7 * place % 256 for place in range(70)]
    asked = greedy(NUM_TOKENS, n=2)
    with LLM(folder, **SMALL) as caching:
        expected = [caching.generate([prompt], asked, progress=False)[0] for _ in range(2)]
        load = caching.load()
        assert (load.prompt_tokens_cached, load.blocks_cached > 0) == (64, True)
    # Twelve blocks hold two such sequences while they have five blocks each: with their sixth, one preempts the other.
    small = {**SMALL, "kv_memory_bytes": 12 * 12288, "max_model_len": 128}
    with LLM(folder, **small, prefix_caching=False, host_kv_memory_bytes=1 << 20) as llm:
        found = [llm.generate([prompt], asked, progress=False)[0] for _ in range(2)]
        load = llm.load()
        assert (load.prompt_tokens, load.prompt_tokens_cached, load.blocks_cached, load.blocks_host) == (140, 0, 0, 0)
        several = llm.generate([prompt] * 4, greedy(40), progress=False)
        assert llm.load().preemptions > 0
        assert_at_rest(llm._loaded().engine.loop)
        assert llm.load().blocks_free == llm.load().blocks_total
    tokens = [[each.token_ids for each in answer.outputs] for answer in (*expected, *found)]
    assert tokens == tokens[:1] * 4
    assert [answer.token_ids for answer in several] == [several[0].token_ids] * 4
    assert several[0].token_ids[:NUM_TOKENS] == expected[0].token_ids


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_is_for_terminals_and_can_be_off(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    for stderr, progress, shows in ((Terminal(), True, True), (Terminal(), False, False), (io.StringIO(), True, False)):
        monkeypatch.setattr(sys, "stderr", stderr)
        llm.generate(["a", "b"], greedy(1), progress=progress)
        assert ("2/2" in stderr.getvalue()) is shows


def test_a_closed_llm_says_so(tiny: TinyModel) -> None:
    llm = LLM(tiny("llama"), **SMALL)
    llm.close()
    with pytest.raises(ValueError, match="this LLM is closed"):
        llm.generate("x")


def test_the_package_brings_no_torch_before_llm_is_named() -> None:
    code = (
        "import sys, pagewire.engine as engine; assert 'torch' not in sys.modules; "
        "engine.SamplingParams; assert 'torch' not in sys.modules; engine.LLM; assert 'torch' in sys.modules; engine.x"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.splitlines()[-1] == "AttributeError: module 'pagewire.engine' has no attribute 'x'"


def test_what_the_sampler_can_do_is_there_offline(llm: LLM) -> None:
    yes = Grammar(kind=GrammarKind.REGEX, text="yes|no")
    asked = [SamplingParams(max_tokens=9, grammar=yes, seed=1), greedy(5, logprobs=2, prompt_logprobs=1)]
    guided, scored = llm.generate(TEXTS[:2], asked)
    assert guided.text in ("yes", "no")
    assert guided.finish_reason is FinishReason.STOP
    assert [each.token for each in scored.logprobs] == list(scored.token_ids)
    assert all(each.rank == 1 and each.top_tokens[0] == each.token for each in scored.logprobs)
    assert [each.token for each in scored.prompt_logprobs] == list(scored.prompt_token_ids[1:])


def test_a_bad_grammar_is_said_before_anything_runs(llm: LLM) -> None:
    bad = SamplingParams(grammar=Grammar(kind=GrammarKind.REGEX, text="(("))
    before = llm.load().output_tokens
    with pytest.raises(InvalidRequest) as refused:
        llm.generate(TEXTS[:2], [greedy(5), bad])
    assert refused.value.field == "grammar"
    assert llm.load().output_tokens == before


def test_steps_that_are_begun_ahead_change_no_answer(tiny: TinyModel) -> None:
    """Whatever ends an answer: its length, a token, a string that only the text shows, one of several sequences."""
    with LLM(tiny("llama"), **SMALL) as llm:
        said = llm.generate(TEXTS, greedy(40))
        ways = [
            greedy(9),
            greedy(40, stop=(said[1].text[4:6],)),
            greedy(40, stop_token_ids=(said[2].token_ids[5],)),
            SamplingParams(max_tokens=12, temperature=0.9, seed=3, n=2, ignore_eos=True, stop=(said[3].text[2:4], "e")),
        ]
        expected = [answer.outputs for answer in llm.generate(TEXTS, ways)]
    assert [outputs[0].finish_reason for outputs in expected[:3]] == ["length", "stop", "stop"]
    with LLM(tiny("llama"), **SMALL) as llm:
        engine = llm._loaded().engine
        engine.loop._launcher = launcher = AtOnce(engine.runner)
        assert [answer.outputs for answer in llm.generate(TEXTS, ways)] == expected
        alone = [llm.generate(text, way)[0].outputs for text, way in zip(TEXTS, ways, strict=True)]
        assert alone == expected
        assert launcher.num_ahead > 20
        assert_at_rest(engine.loop)
