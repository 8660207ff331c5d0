"""A small recording in each format, made up by us and shipped: for a first try, and as an example of the format.

Invariant: what is shipped is what `write` writes (`make slo-samples`); no line is from anybody's traffic.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.formats.mooncake import write_mooncake
from pagewire.slo.workloads.made_up import Lengths, Shape, made_up
from pagewire.slo.workloads.processes import Process
from pagewire.slo.workloads.transforms import retimed
from pagewire.slo.workloads.workload import PIECE_TOKENS, Workload, num_pieces

FOLDER = Path(__file__).parent / "recordings"
FILES = {
    "mooncake": "mooncake.jsonl",
    "azure": "azure.csv",
    "burstgpt": "burstgpt.csv",
    "sharegpt": "sharegpt.json",
}
SEED = 20_251
REQUESTS = 200
BEGIN = datetime(2025, 1, 1, 12)
THINGS = ("a lighthouse", "the tide", "an old clock", "a railway bridge", "rye bread", "the northern lights", "a kite")
ASKED = ("What is {} made of?", "Tell me a short story about {}.", "Who first wrote of {}?", "And why?", "In one line?")
SAID = "There is more to {} than one would think: {} parts, each older than the next, and a good deal of patience."


def sample(name: str) -> Path:
    """Return the recording of a format; raises ValueError on an unknown name."""
    if name not in FILES:
        raise ValueError(f"there is no sample {name!r}: there are {', '.join(FILES)}")
    return FOLDER / FILES[name]


def write(folder: Path) -> None:
    """Write all of them into a folder."""
    write_mooncake(_conversations(), folder / FILES["mooncake"])
    shape = Shape(input=Lengths(16, 4096), output=Lengths(1, 512))
    azure = _drawn("azure", shape, Process(rate=2.0))
    with (folder / FILES["azure"]).open("w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
        for at_s, turn in _requests(azure):
            rows.writerow((f"{BEGIN + timedelta(seconds=at_s)}", turn.input_tokens, turn.output_tokens))
    bursts = _drawn("burst", shape, Process(rate=1.0, cv=3.0))
    with (folder / FILES["burstgpt"]).open("w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"))
        for number, (at_s, turn) in enumerate(_requests(bursts)):
            answer = 0 if number % 40 == 39 else turn.output_tokens  # as some failed, in the real one
            rows.writerow((round(at_s), "made-up", turn.input_tokens, answer, turn.input_tokens + answer, "API log"))
    text = json.dumps(_chats(random.Random(SEED)), indent=1)
    (folder / FILES["sharegpt"]).write_text(text + "\n", encoding="utf-8")


def _conversations() -> Workload:
    """Return prompts in blocks of Mooncake's: all begin with one system prompt, and most go on with an earlier one."""
    shape = Shape(input=Lengths(100, 2500), output=Lengths(1, 800))
    drawn = _drawn("mooncake", shape, Process(rate=3.0))

    def source() -> Iterator[Arrival]:
        chance = random.Random(SEED)
        begun: list[tuple[int, ...]] = [(0,)]  # the full blocks of prompts so far
        fresh = 1
        for at_s, turn in _requests(drawn):
            before = chance.choice(begun) if chance.random() < 0.7 else begun[0]
            wanted = num_pieces(turn.input_tokens, PIECE_TOKENS)
            pieces = (*before, *range(fresh, fresh + wanted))
            fresh += wanted
            begun.append(pieces[:-1])
            input_tokens = len(before) * PIECE_TOKENS + turn.input_tokens
            told = Turn(input_tokens=input_tokens, output_tokens=turn.output_tokens, pieces=pieces)
            yield Arrival(at_s=at_s, turns=(told,))

    return Workload(name="mooncake", source=source)


def _drawn(name: str, shape: Shape, process: Process) -> Workload:
    return retimed(made_up(name, shape, num_arrivals=REQUESTS, seed=SEED), process, SEED)


def _requests(workload: Workload) -> Iterator[tuple[float, Turn]]:
    return ((arrival.at_s, arrival.turns[0]) for arrival in workload)


def _chats(chance: random.Random) -> list[dict[str, object]]:
    return [{"id": f"talk-{number}", "conversations": _talk(chance)} for number in range(40)]


def _talk(chance: random.Random) -> list[dict[str, str]]:
    thing, said = chance.choice(THINGS), []
    for question in chance.sample(ASKED, chance.randint(1, 4)):
        said.append({"from": "human", "value": question.format(thing)})
        answer = " ".join(SAID.format(thing, part) for part in range(2, 2 + chance.randint(1, 5)))
        said.append({"from": "gpt", "value": answer})
    return said
