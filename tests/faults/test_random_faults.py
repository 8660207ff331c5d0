"""Requests with a random fault each: the tokens of a single engine, or a named error that fits; nothing stays behind.

Real pods over loopback, 2P2D, those that die replaced by fresh ones, four requests at a time. What is drawn follows
from a seed: `FAULT_SEED=7` takes another. In what order things then happen does not: a failure says what was drawn, and
may take several runs of its part to come again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from engine_runs import greedy
from pods import Colocated, prompt
from request_faults import FAULTS, Case
from wired_pods import Conversation, Fleet, fleet

from pagewire.core.block_hash import BlockHash, root_hash
from pagewire.core.messages import Role

SEED = int(os.environ.get("FAULT_SEED", "20"))
TRANSPORTS = ("grpc", "tcp", "shm", "local", "collective", "nixl")
PARTS = 3  # of the requests by each of them
LEAST, MOST = 25, 75  # requests of a part
ENOUGH = 12  # faults that struck in a part, which goes on until then: 216 in all
AT_ONCE = 4
MAX_TOKENS = 32
N = 3  # sequences of some requests, which are sampled so that they differ
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 3}
Answers = dict[tuple[int, ...], dict[int, list[list[int]]]]
"""By prompt and number of sequences."""
LENGTHS = (1, 15, 16, 17, 33, 48, 60, 64, 81, 97, 100, 112, 130, 150, 177, 200)


@pytest.fixture(scope="module")
def answers(colocated: Colocated) -> Answers:
    """Return prompts of many lengths, none with a near-tie, and their answers: the greedy one, and the sampled ones."""
    found: Answers = {}
    for number, length in enumerate(LENGTHS):
        for seed in range(100 * number, 100 * number + 100):
            tokens = prompt(seed, length)
            try:
                greedy_one = colocated.answer(tokens, MAX_TOKENS)
                sampled = [colocated.answer(tokens, MAX_TOKENS, index=index, **SAMPLED) for index in range(N)]
                found[tuple(tokens)] = {1: [greedy_one], N: sampled}
                break
            except AssertionError:
                continue  # a near-tie
    assert len(found) == len(LENGTHS)
    return found


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of the requests of one transport: the faults that met theirs, and messages of blocks by transport."""

    struck: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)


@pytest.fixture(scope="module")
def tallies() -> dict[str, Tally]:
    """Return one for each transport."""
    return {name: Tally() for name in TRANSPORTS}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_fault_comes_right(
    model: Path, answers: Answers, tallies: dict[str, Tally], transport: str, part: int
) -> None:
    """Some pods know nothing but gRPC, as while a cluster changes; most shipments go by the transport.

    A fault does not strike where its moment never comes: nothing is shipped, or all is over sooner.
    """
    deck = [name for _ in range(MOST) for name in FAULTS][: MOST * PARTS]
    random.Random(f"{SEED}/{transport}").shuffle(deck)
    numbers = range(part, len(deck), PARTS)
    draw, struck = random.Random(f"{SEED}/{transport}/{part}"), Counter[str]()
    both = "grpc" if transport == "grpc" else f"{transport},grpc"
    async with fleet(model, lambda: draw.choice((both, both, both, "grpc"))) as pods:
        for first in range(0, len(numbers), AT_ONCE):
            if first >= LEAST and struck.total() >= ENOUGH:
                break
            await ask({number: deck[number] for number in numbers[first : first + AT_ONCE]}, pods, answers, struck)
        tallies[transport].messages.update(pods.messages)
    tallies[transport].struck.update(struck)
    assert struck.total() >= ENOUGH, struck


async def ask(faults: dict[int, str], pods: Fleet, answers: Answers, struck: Counter[str]) -> None:
    """Ask requests at once, by their numbers, each with its fault; afterwards pods hold nothing for them."""
    async with asyncio.TaskGroup() as tasks:
        for number, fault in faults.items():
            tasks.create_task(run(number, fault, pods, answers, struck))
    try:
        await pods.settle()
    except (AssertionError, TimeoutError) as error:
        error.add_note(f"FAULT_SEED={SEED}, after {faults}")
        raise


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_blocks_did_travel_by_each_transport(tallies: dict[str, Tally], transport: str) -> None:
    """A message may be a whole shipment, or a part of one where a transport's messages are small."""
    messages = tallies[transport].messages
    assert messages[transport] >= 5, messages


async def test_each_fault_did_strike(model: Path, answers: Answers, tallies: dict[str, Tally]) -> None:
    """One whose moment did not come once is asked for again."""
    struck = sum((tally.struck for tally in tallies.values()), Counter[str]())
    number = MOST * PARTS
    async with fleet(model, lambda: "grpc") as pods:
        while (missing := [name for name in FAULTS if not struck[name]]) and number < MOST * PARTS + MOST:
            await ask({number + n: name for n, name in enumerate(missing[:AT_ONCE])}, pods, answers, struck)
            number += AT_ONCE
    print(f"{struck.total()} faults struck: {dict(struck)}")
    assert not missing, f"{missing} of {dict(struck)}"


async def run(number: int, fault: str, pods: Fleet, answers: Answers, struck: Counter[str]) -> None:
    """Ask one request, with its fault, and judge how it ended."""
    draw = random.Random(f"{SEED}/{number}")
    case = await begin(number, draw, pods, answers)
    FAULTS[fault](case)
    asked = case.asked
    asked.on_submit = lambda: case.came("submit", 0)
    asked.on_token = lambda num_tokens: case.came("token", num_tokens)
    pods.spoilers[asked.name] = case.read
    try:
        await pods.converse(asked)
        await case.finish()
        struck[fault] += case.has_struck
        # A request whose own pod was lost may come to one that refuses: nobody waits here as a router does.
        refused = {"overloaded"} if asked.pod is not None and asked.pod.pod_id in pods.refusing else set[str]()
        assert asked.cause in case.may_end | refused | {""}, f"an error that does not fit: {asked.cause}"
        for index, whole in enumerate(answers[tuple(asked.prompt)][asked.sampling.n]):
            tokens, right = asked.streams[index], whole[: asked.sampling.max_tokens]
            assert tokens == right[: len(tokens)], f"wrong tokens of {index}, right: {right}"
            if not (asked.cause or (case.may_be_short and index == 0)):
                assert tokens == right
    except BaseException as error:
        asked.is_over = True
        error.add_note(f"FAULT_SEED={SEED}, request {number}: {fault} at {case.moment}, struck: {case.has_struck}")
        error.add_note(f"{len(asked.prompt)} in, {asked.sampling}, {asked.prefill}, {asked.history}")
        raise
    finally:
        logging.getLogger(__name__).info("%s: %s, struck: %s: %s", number, fault, case.has_struck, asked.history)
        del pods.spoilers[asked.name]


async def begin(number: int, draw: random.Random, pods: Fleet, answers: Answers) -> Case:
    """Draw a request; for some, have another pod hold a beginning of its prompt."""
    tokens = draw.choice(list(answers))
    decode, prefill = pods.of(Role.DECODE), pods.of(Role.PREFILL)
    draw.shuffle(prefill)
    asked = Conversation(
        name=f"r{number}",
        prompt=tokens,
        sampling=greedy(draw.randint(1, MAX_TOKENS), **draw.choice(({}, {"n": N, **SAMPLED}))),
        root=new_root(number),
        on=draw.choice(decode),
        candidates=[pod.candidate for pod in prefill[: draw.randint(1, 2)]],
        prefill=draw.choice(("remote", "remote", "auto", "local")),
    )
    case = Case(asked=asked, fleet=pods, draw=draw)
    num_held = draw.randint(1, len(tokens))
    if draw.random() < 0.4:
        case.holder = draw.choice([pod for pod in (*decode, *prefill[-1:]) if pod is not asked.on])
        await hold(number, tokens[:num_held], case, pods)
        asked.sources = (case.holder.source(num_held),)
    return case


async def hold(number: int, tokens: tuple[int, ...], case: Case, pods: Fleet) -> None:
    """Have the case's holder compute these tokens."""
    holder, root = case.holder, case.asked.root
    assert holder is not None
    warm = Conversation(
        name=f"w{number}", prompt=tokens, sampling=greedy(1), root=root, prefill="local", candidates=()
    )  # fmt: skip
    if holder.role is Role.DECODE:
        warm.on = holder
    else:
        warm.prefill, warm.candidates = "remote", [holder.candidate]
    await pods.converse(warm)
    assert warm.cause == "", warm.history


def new_root(number: int) -> BlockHash:
    """Return a hash chain of its own for a request: what others left in caches is not its."""
    return root_hash(model_digest="tiny", kv_fingerprint="tiny", salt=str(number))
