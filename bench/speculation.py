"""What drafted tokens are worth: answers to real questions a second, with them and without, beside peers.

Questions of four kinds: to change a text, to say what is in one, to list things, to tell a story. Greedy, ended by the
model or by 200 tokens, alone and eight at a time. Engines in processes of their own take turns, as in
`bench/engine.py`; each turn's questions begin with its number, so that no cache knows them. Every engine runs twice,
with drafts and without: vLLM with its n-gram lookup, transformers (questions one by one) with its prompt lookup.
`--model` is a Hugging Face folder with a chat template. Output tokens a second, medians and quartiles; and, without
peers, what the engine drafted of each kind and how much of it was right, and the same of answers that follow a JSON
schema, which forces much of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

from engine_process import EngineProcess, peer_named
from origin import parser_of, write_figures
from repeats import by_turns, told
from transformers import AutoTokenizer

from pagewire.core.sampling import Grammar, GrammarKind, SamplingParams
from pagewire.engine import LLM

OUTPUT = 200
PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 20}, "last_name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 18, "maximum": 99}, "city": {"type": "string", "maxLength": 20},
        "occupation": {"enum": ["teacher", "carpenter", "physician", "gardener"]},
    },
    "required": ["first_name", "last_name", "age", "city", "occupation"], "additionalProperties": False,
}  # fmt: skip
PEOPLE = json.dumps({"type": "array", "items": PERSON, "minItems": 3, "maxItems": 3})
AT_ONCE = (1, 8)
CODE = """def read_settings(path):
    settings = {}
    with open(path) as handle:
        for number, line in enumerate(handle, 1):
            name, found, value = line.partition("=")
            if not found:
                raise ValueError(f"{path}:{number}: no value for {name.strip()}")
            settings[name.strip()] = value.strip()
    return settings"""
LETTER = """Dear Mrs Hall, thank you for your letter of the second of May. The two lamps that you ordered left our
workshop on the fourth of May and should have been with you on the seventh. The carrier tells us that nobody was at
home, and that the parcel lies at the post office in Mill Lane until the twentieth of May. Please bring your letter
along. With kind regards, John Marsh, Marsh and Sons, lamp makers."""
MINUTES = """Present: Ann Lee, Tom Reed, Eva Stone. Ann Lee reported that the new bridge will cost four million and
open in June. Tom Reed asked whether the old bridge stays open until then. Ann Lee said that it does, for cars alone.
Eva Stone will write to the bus company. Tom Reed will ask the school about the path by the river. The next meeting is
on the ninth of March."""
QUESTIONS = {
    "change": (
        f"Rename the variable settings to options in this Python function. Answer with the code alone.\n\n{CODE}",
        f"Add a docstring to this Python function. Answer with the code alone.\n\n{CODE}",
        f"Repeat this letter, but let it be three lamps.\n\n{LETTER}",
        f"Repeat these minutes as a list, one sentence on a line.\n\n{MINUTES}",
    ),
    "say what is in": (
        f"Who ordered what from whom, and where is it now?\n\n{LETTER}",
        f"Summarise these minutes in three sentences.\n\n{MINUTES}",
        f"What does this function do, line by line?\n\n{CODE}",
        f"Who will do what after this meeting?\n\n{MINUTES}",
    ),
    "list": (
        "Write a JSON list of six people with the fields name, age and city.",
        "List ten facts about the planet Mars, each in one sentence.",
        "Write the multiplication table of seven, one product on a line.",
        "Name ten European capitals, each with its country, as a table.",
    ),
    "tell": (
        "Tell a short story about the keeper of a lighthouse who finds a message in a bottle.",
        "Describe a walk through a forest in autumn.",
        "Explain to a child why the sky is blue.",
        "Write a letter to a friend about a journey by train through the mountains.",
    ),
}


def asked(tokenizer: Any, kind: str, turn: int) -> list[list[int]]:
    """Return a turn's questions of a kind, as tokens."""
    return [
        tokenizer.apply_chat_template(
            [{"role": "system", "content": f"{turn}. You are helpful."}, {"role": "user", "content": question}],
            add_generation_prompt=True, return_dict=False,
        )
        for question in QUESTIONS[kind]
    ]  # fmt: skip


def rate(engine: EngineProcess, tokenizer: Any, kind: str, at_once: int, turn: int) -> float:
    """Return output tokens a second of a turn's questions."""
    prompts = asked(tokenizer, kind, turn)
    if at_once > len(prompts):  # two of each, which differ from the first token on
        prompts += asked(tokenizer, kind, turn + 1000)
    batches = [prompts[first : first + at_once] for first in range(0, len(prompts), at_once)]
    with engine.alone():
        answers = [engine.answer(batch, OUTPUT) for batch in batches]
    return sum(tokens for _, tokens in answers) / sum(seconds for seconds, _ in answers)


def beside_peers(options: argparse.Namespace, tokenizer: Any) -> dict[str, dict[str, list[float]]]:
    """Measure all engines by turns, print, return the rates by what is asked and the engine."""
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        engines = {
            f"{name}{', drafts' if drafted else ''}": stack.enter_context(
                EngineProcess(name, python, options.model, options.threads, speculative_tokens=drafted)
            )
            for name, python in [("pagewire", sys.executable), *options.peer]
            for drafted in (0, options.drafted)
        }
        cases = [(kind, at_once) for kind in QUESTIONS for at_once in AT_ONCE]
        for kind, at_once in cases:
            ways = {name: partial(rate, engine, tokenizer, kind, at_once) for name, engine in engines.items()}
            rates = by_turns(ways, options.turns)
            case = f"{kind}, {at_once} at a time"
            print(f"{case}: {told(rates)} tokens/s", flush=True)
            found[case] = rates
    return found


def drafts(options: argparse.Namespace, tokenizer: Any) -> dict[str, dict[str, int]]:
    """Say what is drafted of each kind alone, and that answers are those without."""
    found: dict[str, dict[str, int]] = {}
    sampling = SamplingParams(max_tokens=OUTPUT, temperature=0.0)
    settings: dict[str, Any] = {"threads": options.threads, "kv_memory_bytes": 1 << 30}
    answers: list[list[tuple[int, ...]]] = []
    for drafted in (0, options.drafted):
        with LLM(options.model, **settings, speculative_tokens=drafted) as llm:
            said: list[tuple[int, ...]] = []
            before = llm.load()
            for kind in QUESTIONS:
                one_by_one = [llm.generate([prompt], sampling)[0] for prompt in asked(tokenizer, kind, 0)]
                said += [each.token_ids for each in one_by_one]
                now = llm.load()
                found[kind] = {
                    "output": now.output_tokens - before.output_tokens,
                    "drafted": now.draft_tokens - before.draft_tokens,
                    "right": now.draft_tokens_accepted - before.draft_tokens_accepted,
                }
                before = now
            answers.append(said)
    if answers[0] != answers[1]:
        raise RuntimeError("answers differ with drafts")
    for kind, counts in found.items():
        print(f"{kind}: {counts['drafted']} tokens drafted, {counts['right']} right, of {counts['output']}")
    return found


def guided(options: argparse.Namespace, tokenizer: Any) -> dict[str, dict[str, list[float]]]:
    """Measure answers that follow a schema, engines by turns, print, return the rates by how many at a time."""
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, text=PEOPLE)
    sampling = SamplingParams(max_tokens=2 * OUTPUT, temperature=0.0, grammar=grammar)
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(
                LLM(options.model, threads=options.threads, kv_memory_bytes=1 << 30, speculative_tokens=drafted)
            )
            for name, drafted in (("pagewire", 0), ("pagewire, drafts", options.drafted))
        }
        for at_once in AT_ONCE:
            rates: dict[str, list[float]] = {name: [] for name in engines}
            for turn in range(options.turns + 1):
                prompts = [asked(tokenizer, "list", 100 * turn + number)[0] for number in range(at_once)]
                said: list[list[tuple[int, ...]]] = []
                for name, llm in engines.items():
                    start_s = time.perf_counter()
                    answers = llm.generate(prompts, sampling, progress=False)
                    seconds = time.perf_counter() - start_s
                    said.append([answer.token_ids for answer in answers])
                    if turn:
                        rates[name].append(sum(map(len, said[-1])) / seconds)
                if said[0] != said[1]:
                    raise RuntimeError("guided answers differ with drafts")
            print(f"JSON by a schema, {at_once} at a time: {told(rates)} tokens/s", flush=True)
            found[f"JSON by a schema, {at_once} at a time"] = rates
    return found


def main() -> None:
    """Parse, measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--drafted", type=int, default=5, help="tokens that a step drafts of an answer at most")
    parser.add_argument("--threads", type=int, default=2, help="of the engines")
    parser.add_argument("--peer", type=peer_named, action="append", default=[], help="transformers, or vllm=PYTHON")
    parser.add_argument("--turns", type=int, default=3, help="of each engine")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    counts = drafts(options, tokenizer)
    rates = guided(options, tokenizer) | beside_peers(options, tokenizer)
    write_figures(options.json, {"drafts": counts, "tokens-per-s": rates}, "torch", "transformers")


if __name__ == "__main__":
    main()
