"""`pagewire run-batch` as a process on a tiny model: every line has its answer, bad ones by name. What goes on beside
its steps is seen in this process.

What the answers say is compared with `LLM`, which is compared with transformers elsewhere.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_model
from engine_runs import assert_at_rest, greedy
from llguidance import LLMatcher
from openai.types import Completion
from openai.types.chat import ChatCompletion

from pagewire.cli.run_batch import Batch, Summary
from pagewire.cli.run_batch import run as run_batches
from pagewire.core.messages import Role
from pagewire.core.sampling import Grammar, SamplingParams
from pagewire.engine import LLM, in_place
from pagewire.engine.config import EngineConfig
from pagewire.engine.grammar_queue import GrammarQueue
from pagewire.engine.grammars import Grammars
from pagewire.engine.in_place import InPlaceEngine
from pagewire.text.tokenizer import Tokenizer

FLAGS = ("--dtype", "float32", "--kv-memory", "4MiB", "--max-model-len", "256", "--threads", "1")
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("model") / "tiny")


def request(custom_id: str, url: str, **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {"temperature": 0, **body}})


def run_batch(model: Path, folder: Path, lines: list[str], *flags: str) -> subprocess.CompletedProcess[str]:
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", "run-batch", "--model", str(model), *FLAGS, *flags]
    command += ["-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def answers(folder: Path) -> dict[str | None, dict[str, Any]]:
    lines = (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    assert len({line["id"] for line in found}) == len(found)
    assert all(set(line) == {"id", "custom_id", "response", "error"} for line in found)
    return {line["custom_id"]: line for line in found}


def test_chats_and_texts_are_answered_as_a_server_would(model: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "naïve café?"}]
    texts = {f"text-{i}": f"Line {i} of many lines" for i in range(6)}
    lines = [
        request("chat", CHAT, messages=messages, max_completion_tokens=9, ignore_eos=True, return_token_ids=True),
        "",
        *(request(name, TEXT, prompt=text, max_tokens=5, ignore_eos=True) for name, text in texts.items()),
        request("tokens", TEXT, prompt=[5, 6, 7], max_tokens=4, ignore_eos=True, return_token_ids=True),
    ]
    done = run_batch(model, tmp_path, lines, "--json")
    assert done.returncode == 0, done.stderr
    found = answers(tmp_path)
    assert set(found) == {"chat", "tokens", *texts}
    summary = json.loads(done.stdout)
    assert (summary["requests"], summary["answered"], summary["failed"]) == (8, 8, 0)
    assert summary["completion_tokens"] == 9 + 6 * 5 + 4
    with LLM(model, dtype="float32", kv_memory_bytes=4 << 20, max_model_len=256) as llm:
        (chat,) = llm.chat(messages, greedy(9))
        told = llm.generate([*texts.values(), [5, 6, 7]], greedy(5))
    body = found["chat"]["response"]["body"]
    ChatCompletion.model_validate(body, strict=False)
    assert body["choices"][0]["message"]["content"] == chat.text
    assert body["choices"][0]["token_ids"] == list(chat.token_ids)
    assert body["usage"]["prompt_tokens"] == len(chat.prompt_token_ids)
    for name, each in zip(texts, told, strict=False):
        body = found[name]["response"]["body"]
        Completion.model_validate(body, strict=False)
        assert body["choices"][0]["text"] == each.text
        assert found[name]["response"]["status_code"] == 200
        assert body["id"] == f"cmpl-{found[name]['response']['request_id']}"
    assert found["tokens"]["response"]["body"]["choices"][0]["token_ids"] == list(told[-1].token_ids[:4])


def test_n_choices_are_those_of_n_outputs(model: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"n": 3, "seed": 5, "temperature": 0.9, "max_tokens": 7, "ignore_eos": True, "logprobs": 0}
    lines = [request("three", TEXT, prompt="Three answers", return_token_ids=True, **asked)]
    done = run_batch(model, tmp_path, lines, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["completion_tokens"] == 3 * 7
    with LLM(model, dtype="float32", kv_memory_bytes=4 << 20, max_model_len=256) as llm:
        params = SamplingParams(n=3, seed=5, temperature=0.9, max_tokens=7, ignore_eos=True)
        (told,) = llm.generate("Three answers", params)
    body = answers(tmp_path)["three"]["response"]["body"]
    Completion.model_validate(body, strict=False)
    assert body["usage"]["completion_tokens"] == 3 * 7
    assert [(choice["index"], choice["text"], choice["token_ids"]) for choice in body["choices"]] == [
        (index, output.text, list(output.token_ids)) for index, output in enumerate(told.outputs)
    ]
    assert all(len(choice["logprobs"]["tokens"]) == 7 for choice in body["choices"])
    assert len({choice["text"] for choice in body["choices"]}) == 3


def test_reasoning_is_told_apart_as_by_a_server(model: Path, tmp_path: Path) -> None:
    thinking = tiny_model.build(tmp_path / "thinking")
    config = json.loads((thinking / "tokenizer_config.json").read_text())
    config["chat_template"] += "<think>"
    (thinking / "tokenizer_config.json").write_text(json.dumps(config))
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "ignore_eos": True}
    lines = [request("apart", CHAT, **chat), request("within", CHAT, **chat, separate_reasoning=False)]
    assert run_batch(thinking, tmp_path, lines).returncode == 0
    apart, within = (answers(tmp_path)[name]["response"]["body"] for name in ("apart", "within"))
    whole = within["choices"][0]["message"]["content"]
    message = apart["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("", whole.lstrip())
    assert apart["usage"]["completion_tokens_details"] == {"reasoning_tokens": 5}
    assert "completion_tokens_details" not in within["usage"]


def test_several_prompts_are_numbered_as_a_server_does(model: Path, tmp_path: Path) -> None:
    """Choices prompt by prompt, one usage; a prompt that fails is the line's one answer."""
    prompts = ["One of two", "Two of two, and longer"]
    asked: dict[str, Any] = {"n": 2, "seed": 5, "temperature": 0.9, "max_tokens": 7, "ignore_eos": True}
    bare = {"max_tokens": 3, "ignore_eos": True}
    lines = [
        request("both", TEXT, prompt=prompts, return_token_ids=True, echo=True, **asked),
        request("tokens", TEXT, prompt=[[5, 6, 7], [8]], **bare),
        request("one is long", TEXT, prompt=["fine", "x" * 300], **bare),
        # The pool has 17 blocks, of which the second prompt takes 15: twelve answers do not fit behind it.
        request("one does not fit", TEXT, prompt=[[1] * 8, [2] * 240], **{**bare, "n": 12}),
        request("last", TEXT, prompt="x", **bare),
    ]
    done = run_batch(model, tmp_path, lines, "--json", "--kv-memory", "204KiB")
    assert done.returncode == 0, done.stderr
    with LLM(model, dtype="float32", kv_memory_bytes=4 << 20, max_model_len=256) as llm:
        params = SamplingParams(n=2, seed=5, temperature=0.9, max_tokens=7, ignore_eos=True)
        told = llm.generate(prompts, params)
    found = answers(tmp_path)
    body = found["both"]["response"]["body"]
    Completion.model_validate(body, strict=False)
    outputs = [(prompt, output) for prompt, answer in zip(prompts, told, strict=True) for output in answer.outputs]
    assert [(choice["index"], choice["text"], choice["token_ids"]) for choice in body["choices"]] == [
        (index, prompt + output.text, list(output.token_ids)) for index, (prompt, output) in enumerate(outputs)
    ]
    num_prompt = sum(len(answer.prompt_token_ids) for answer in told)
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (num_prompt, 4 * 7)
    assert [choice["index"] for choice in found["tokens"]["response"]["body"]["choices"]] == [0, 1]
    assert found["one is long"]["response"]["body"]["error"]["param"] == "prompt"
    assert found["one does not fit"]["response"]["status_code"] == 400
    assert found["last"]["response"]["status_code"] == 200
    summary = json.loads(done.stdout)
    assert (summary["requests"], summary["answered"], summary["failed"]) == (5, 3, 2)
    assert summary["completion_tokens"] == 4 * 7 + 2 * 3 + 3


def test_beams_are_those_of_llm(model: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"use_beam_search": True, "n": 3, "max_tokens": 7, "ignore_eos": True}
    more: dict[str, Any] = {"beam_width": 4, "length_penalty": 0.5, "early_stopping": "never"}
    prompt = "Three answers, the best first"
    lines = [
        request("beams", TEXT, prompt=prompt, return_token_ids=True, **asked, **more),
        request("chat", CHAT, messages=[{"role": "user", "content": "x"}], early_stopping=True, **asked),
        request("warm", TEXT, prompt=prompt, **{**asked, "temperature": 0.5}),
        request("streamed", TEXT, prompt=prompt, stream=True, **asked),
        request("scored", TEXT, prompt=prompt, logprobs=1, **asked),
        request("wide", TEXT, prompt=prompt, beam_width=100, **asked),
        request("penalty alone", TEXT, prompt=prompt, length_penalty=0.5),
    ]
    done = run_batch(model, tmp_path, lines, "--json", "--max-num-seqs", "16")
    assert done.returncode == 0, done.stderr
    found = {name: line["response"]["body"] for name, line in answers(tmp_path).items()}
    with LLM(model, dtype="float32", kv_memory_bytes=4 << 20, max_model_len=256) as llm:
        (told,) = llm.generate(prompt, SamplingParams(**asked, **more))
    Completion.model_validate(found["beams"], strict=False)
    assert [(choice["index"], choice["text"], choice["token_ids"]) for choice in found["beams"]["choices"]] == [
        (index, output.text, list(output.token_ids)) for index, output in enumerate(told.outputs)
    ]
    assert found["beams"]["usage"]["completion_tokens"] == 3 * 7
    assert len(found["chat"]["choices"]) == 3
    assert {name: body["error"]["param"] for name, body in found.items() if "error" in body} == {
        "warm": "temperature", "streamed": "stream", "scored": "logprobs", "wide": "beam_width",
        "penalty alone": "length_penalty",
    }  # fmt: skip


def test_bad_lines_become_error_lines_by_name(model: Path, tmp_path: Path) -> None:
    good = request("good", TEXT, prompt="x", max_tokens=2, stop=["\n"])
    lines = [
        "{not json",
        "[1, 2]",
        '"' + "[" * 5,
        json.dumps({"method": "POST", "url": TEXT, "body": {}}),
        json.dumps({"custom_id": "get", "method": "GET", "url": TEXT, "body": {}}),
        json.dumps({"custom_id": "embed", "method": "POST", "url": "/v1/embeddings", "body": {}}),
        json.dumps({"custom_id": "bodiless", "method": "POST", "url": TEXT}),
        good,
        good,
        request("no prompt", TEXT, max_tokens=2),
        request("long", TEXT, prompt=[1] * 300),
        request("tools", CHAT, messages=[{"role": "user", "content": "x"}], tools=[{"type": "function"}]),
        request("streams", TEXT, prompt="x", stream=True),
        request("other model", TEXT, prompt="x", model="gpt-5"),
        request("hot", TEXT, prompt="x", temperature=float("nan")),
        request("broken text", TEXT, prompt="\ud800"),
        request("urgent", TEXT, prompt="x", priority=-5),  # the engine schedules by arrival
        request("\ud800", TEXT, prompt="x"),
        json.dumps({"custom_id": "\ud800", "method": "GET", "url": TEXT, "body": {}}),
    ]
    done = run_batch(model, tmp_path, lines)
    assert done.returncode == 0, done.stderr
    assert "19 requests: 1 answered, 18 failed; 1 prompt tokens" in done.stdout
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(found) == len(lines)
    rejected = [line["error"]["message"] for line in found if line["error"] is not None]
    assert [message.split(":")[0] for message in rejected[:3]] == [
        "line 1 is not JSON", "line 2 is not a JSON object", "line 3 is not JSON",
    ]  # fmt: skip
    assert rejected[3:] == [
        "line 4: custom_id is a text of 1 to 512 characters of Unicode",
        "line 5: method is 'GET', not 'POST'",
        "line 6: url is '/v1/embeddings', not one of /v1/chat/completions, /v1/completions",
        "line 7: body is not an object",
        "line 9: custom_id is that of an earlier line",
        "line 18: custom_id is a text of 1 to 512 characters of Unicode",
        "line 19: custom_id is a text of 1 to 512 characters of Unicode",
    ]
    refused = {line["custom_id"]: line["response"] for line in found if line["response"] is not None}
    assert refused.pop("good")["status_code"] == 200
    named = {name: each["body"]["error"]["param"] for name, each in refused.items()}
    assert named == {
        "no prompt": "prompt", "long": "prompt", "tools": "tools", "streams": "stream", "other model": "model",
        "hot": "body", "broken text": "prompt", "urgent": "priority",
    }  # fmt: skip
    assert refused["other model"]["status_code"] == 404
    assert refused["long"]["status_code"] == 400


def test_the_next_run_on_a_folder_finds_what_this_one_cached(model: Path, tmp_path: Path) -> None:
    flags = ("--json", "--host-kv-memory", "4MiB", "--host-kv-dir", str(tmp_path / "kept"))
    lines = [request(str(i), TEXT, prompt=[*range(i, i + 70)], max_tokens=4, ignore_eos=True) for i in range(3)]
    said = []
    for cached in (0, 3 * 64):
        done = run_batch(model, tmp_path, lines, *flags)
        assert json.loads(done.stdout)["cached_tokens"] == cached, done.stderr
        said.append([answers(tmp_path)[str(i)]["response"]["body"]["choices"] for i in range(3)])
    assert said[0] == said[1]


def test_the_input_is_not_overwritten(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "in.jsonl")
    done = run_batch(model, tmp_path, [request("a", TEXT, prompt="x")])
    assert (done.returncode, "needs a file of its own" in done.stderr) == (1, True)
    assert (tmp_path / "in.jsonl").read_text() != ""


def test_what_comes_by_a_pipe_is_answered_as_a_file_is(model: Path, tmp_path: Path) -> None:
    lines = [request(name, TEXT, prompt="Once", max_tokens=3) for name in ("one", "two")]
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", "run-batch", "--model", str(model), *FLAGS]
    command += ["-i", "/dev/stdin", "-o", str(tmp_path / "out.jsonl")]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {name: line["response"]["status_code"] for name, line in answers(tmp_path).items()} == {
        "one": 200,
        "two": 200,
    }


def test_a_file_that_grows_once_it_was_counted_is_answered_whole(engine: InPlaceEngine, tmp_path: Path) -> None:
    (source := tmp_path / "in.jsonl").touch()

    def load() -> InPlaceEngine:
        lines = (request(name, TEXT, prompt="Once", max_tokens=3) for name in ("one", "two"))
        source.write_text("\n".join(lines), encoding="utf-8")
        return engine

    told: list[float] = []
    summary, is_whole = run_batches(load, source, tmp_path / "out.jsonl", lambda _, done: told.append(done))
    assert (summary.answered, is_whole) == (2, True)
    assert set(answers(tmp_path)) == {"one", "two"}
    assert all(0 <= done <= 1 for done in told)


def test_an_output_that_cannot_be_written_is_found_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(request("one", TEXT, prompt="x"))
    for target, error in ((tmp_path / "none" / "out.jsonl", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error):
            run_batches(no_model, tmp_path / "in.jsonl", target, lambda _what, _done: None)
    (tmp_path / "out.jsonl").write_text("before")
    with pytest.raises(ValueError, match="no model"):
        run_batches(no_model, tmp_path / "in.jsonl", tmp_path / "out.jsonl", lambda _what, _done: None)
    assert (tmp_path / "out.jsonl").read_text() == "before"


def no_model() -> InPlaceEngine:
    raise ValueError("no model")


def test_an_interrupted_batch_keeps_what_was_answered(model: Path, tmp_path: Path) -> None:
    lines = [request(str(i), TEXT, prompt=f"Line {i}", max_tokens=4, ignore_eos=True) for i in range(400)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", "run-batch", "--model", str(model), *FLAGS]
    command += ["-i", str(tmp_path / "in.jsonl"), "-o", "/dev/stdout", "--max-num-seqs", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        rest, stderr = process.stdout.read(), process.stderr.read()
    assert process.returncode == 130, stderr
    *kept, summary = rest.splitlines()
    whole = [first, *(json.loads(line) for line in kept)]
    assert all(line["response"]["status_code"] == 200 for line in whole)
    assert len(whole) < len(lines)
    assert f"{len(whole)} answered, 0 failed" in summary
    assert "Traceback" not in stderr


def test_scores_and_guided_answers_come_as_from_a_server(model: Path, tmp_path: Path) -> None:
    lines = [
        request("scored", TEXT, prompt="ab", max_tokens=3, ignore_eos=True, logprobs=1, echo=True),
        request("guided", TEXT, prompt="ab", max_tokens=9, guided_choice=["yes", "no"]),
        request("bad", TEXT, prompt="ab", max_tokens=9, guided_regex="(("),
    ]
    run_batch(model, tmp_path, lines)
    found = {name: line["response"]["body"] for name, line in answers(tmp_path).items()}
    (choice,) = found["scored"]["choices"]
    assert choice["text"].startswith("ab")
    assert (choice["logprobs"]["tokens"][:2], len(choice["logprobs"]["tokens"])) == (["a", "b"], 5)
    assert choice["logprobs"]["text_offset"][:3] == [0, 1, 2]
    assert all(offset <= len(choice["text"]) for offset in choice["logprobs"]["text_offset"])
    assert [each is None for each in choice["logprobs"]["token_logprobs"]] == [True, False, False, False, False]
    assert Completion.model_validate(found["guided"]).choices[0].text in ("yes", "no")
    assert found["bad"]["error"]["param"] == "guided_regex"


@pytest.fixture
def engine(model: Path) -> Iterator[InPlaceEngine]:
    config = EngineConfig(
        model=str(model), role=Role.COLOCATED, dtype="float32", kv_memory_bytes=4 << 20, max_model_len=256, threads=1
    )
    tokenizer = Tokenizer(model)
    with closing(tokenizer), closing(InPlaceEngine.load(config, tokenizer)) as loaded:
        yield loaded


def batched(engine: InPlaceEngine, lines: list[str], on_line: Callable[[Summary], None]) -> dict[str, dict[str, Any]]:
    out = io.StringIO()
    Batch(engine, out, on_line).run(line.encode() for line in lines)
    return {line["custom_id"]: line["response"] for line in map(json.loads, out.getvalue().splitlines())}


def test_steps_go_on_while_grammars_are_compiled(engine: InPlaceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guided lines come first, and their grammar is ready only when the others have been answered."""
    compile_grammar, others_are_there = Grammars.compile, threading.Event()
    compilers: list[threading.Thread] = []

    def late(self: Grammars, grammar: Grammar) -> LLMatcher:
        if not self.knows(grammar):
            compilers.append(threading.current_thread())
            assert others_are_there.wait(5), "nothing was answered meanwhile"
        return compile_grammar(self, grammar)

    def heard(done: Summary) -> None:
        if done.answered == 3:
            others_are_there.set()

    monkeypatch.setattr(Grammars, "compile", late)
    guided = [request(f"guided {i}", TEXT, prompt="ab", max_tokens=9, guided_choice=["yes", "no"]) for i in range(2)]
    guided.append(request("two prompts", TEXT, prompt=["ab", "b"], max_tokens=9, guided_regex="(("))
    plain = [request(f"plain {i}", TEXT, prompt="ab", max_tokens=9) for i in range(3)]
    found = batched(engine, [*guided, *plain], heard)
    assert {name: each["status_code"] for name, each in found.items()} == {
        "guided 0": 200, "guided 1": 200, "two prompts": 400, "plain 0": 200, "plain 1": 200, "plain 2": 200,
    }  # fmt: skip
    assert [*found][:3] == ["plain 0", "plain 1", "plain 2"]
    assert {found[f"guided {i}"]["body"]["choices"][0]["text"] for i in range(2)} <= {"yes", "no"}
    assert found["two prompts"]["body"]["error"]["param"] == "guided_regex"
    assert len(compilers) == 2
    assert threading.main_thread() not in compilers
    assert_at_rest(engine.engine.loop)


def test_a_grammar_that_takes_too_long_is_its_lines_error(
    engine: InPlaceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(in_place, "GrammarQueue", partial(GrammarQueue, deadline_s=0.2))
    monkeypatch.setattr(Grammars, "compile", lambda _self, _grammar: is_over.wait(5))
    lines = [request("slow", TEXT, prompt="ab", guided_regex="a+"), request("plain", TEXT, prompt="ab", max_tokens=9)]
    try:
        found = batched(engine, lines, lambda _: None)
    finally:
        is_over.set()
    assert found["plain"]["status_code"] == 200
    error = found["slow"]["body"]["error"]
    assert (error["param"], error["message"]) == ("guided_regex", "guided_regex takes more than 0.2 s to compile")
    assert_at_rest(engine.engine.loop)


def test_an_engine_is_told_all_that_a_pod_is_told_of_its_own(model: Path, tmp_path: Path) -> None:
    """A prompt larger than the pool, and flags before variables before defaults."""
    flags = [*("--kv-memory", "96KiB", "--host-kv-memory", "1MiB", "--chunk-size", "32", "--block-size", "32")]
    flags += ["--max-num-batched-tokens", "64", "--scheduling", "srpt", "--preemption", "swap", "--max-num-seqs", "4"]
    prompt = list(range(1, 201))
    done = run_batch(
        model,
        tmp_path,
        [request("a", TEXT, prompt=prompt, max_tokens=6, ignore_eos=True, return_token_ids=True)],
        *flags,
    )
    assert done.returncode == 0, done.stderr
    with LLM(model, dtype="float32", kv_memory_bytes=4 << 20, max_model_len=256, threads=1) as llm:
        [expected] = llm.generate([prompt], greedy(6), progress=False)
    assert answers(tmp_path)["a"]["response"]["body"]["choices"][0]["token_ids"] == list(expected.token_ids)
    shown = run_batch(model, tmp_path, [], *flags, "--show-config")
    assert shown.returncode == 0, shown.stderr
    rows = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert "1048576 bytes  [--host-kv-memory]" in rows["host_kv_memory"]
    assert "False  [default]" in rows["deterministic"]
    assert not {"source", "target", "role"} & set(rows)


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--kv-memory", "96KiB", "--host-kv-memory", "1MiB", "--deterministic"), 1, "where deterministic is set"),
        (("--block-size", "17"), 1, "block_size 17 is not one of"),
        (("--preemption", "swap"), 1, "set host_kv_memory"),
        (("--scheduling", "lifo"), 2, "expected one of fcfs, priority, srpt"),
    ],
)
def test_wrong_settings_are_named(model: Path, tmp_path: Path, flags: tuple[str, ...], code: int, message: str) -> None:
    done = run_batch(model, tmp_path, [request("a", TEXT, prompt="x")], *flags)
    assert done.returncode == code
    assert message in done.stderr.splitlines()[-1]
