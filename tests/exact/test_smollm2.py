"""The real model, disaggregated and colocated, token for token as transformers says it."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import inspect
import itertools
import json
import logging
import statistics
import subprocess
import threading
import unittest.mock
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_cluster import Answer, LiveCluster
from reference import Expected, Reference, is_near_tie
from tokenizers import Tokenizer

pytestmark = [pytest.mark.cluster, pytest.mark.smollm2]

MAX_TOKENS = 32
SHARED = 1900
MODULES = (argparse, inspect, json, logging, threading, subprocess, statistics, difflib, unittest.mock)
NAMES = {module.__name__ for module in MODULES}
SYSTEM = "You are a careful assistant. " + "Answer in plain English, briefly, and say so when you do not know. " * 8
QUESTIONS = [
    "What is the capital of France?",
    "Why is the sky blue?",
    "How many legs does a spider have?",
    "Name three primary colours.",
    "Who wrote Hamlet?",
    "What is 12 times 12?",
    "Explain what a cache is.",
    "Where do penguins live?",
    "What does HTTP stand for?",
    "How is bread made?",
    "What is the largest planet?",
    "Tell me about the moon.",
    "What is a prime number?",
    "Who discovered penicillin?",
    "What is photosynthesis?",
    "How do magnets work?",
    "What is the speed of light?",
    "Why do leaves fall?",
    "What is a router?",
    "Describe a rainbow.",
]
UNICODE = [
    "Übung macht den Meister, sagt man; über",
    "日本の首都は東京です。フランスの首都は",
    "Привет, как дела? Сегодня",
    "Emoji: 🙂🚀🌍 mean",
    "naïve café façade — déjà vu",
    "Γειά σου Κόσμε",
    "שלום עולם",
    "مرحبا بالعالم",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 text \u200b with zero width",
    "line\nbreaks\tand tabs\r\n",
]


def _prose() -> str:
    """English that every Python brings: the docstrings of the standard library."""
    kinds = (inspect.isfunction, inspect.isclass)
    parts = [part for module in MODULES for kind in kinds for _, part in inspect.getmembers(module, kind)]
    docs = [inspect.getdoc(part) or "" for part in parts if getattr(part, "__module__", "") in NAMES]
    return "\n\n".join(doc for doc in docs if len(doc) > 100)


def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Return 64 prompts: short, shared prefixes, unicode, middling, and ten of 2,000 tokens and more."""
    prose = tokenizer.encode(_prose()).ids
    assert len(prose) > 14_000
    shared = prose[:SHARED]
    texts = [*QUESTIONS, *UNICODE, *(SYSTEM + question for question in QUESTIONS[:16])]
    short = [tokenizer.encode(text).ids for text in texts]
    middling = [prose[start : start + length] for start, length in ((11_000, 257), (11_300, 512), (12_000, 640))]
    middling += [prose[13_000 : 13_000 + length] for length in (15, 16, 17, 128, 129)]
    long_alone = [prose[start : start + length] for start, length in ((3200, 2048), (5300, 2161))]
    long_shared = [shared + prose[2000 + 150 * i : 2000 + 150 * i + 110 + 7 * i] for i in range(8)]
    return [*short, *middling, *long_alone, *long_shared]


@pytest.fixture(scope="module")
def asked(smollm2: Path) -> list[list[int]]:
    asked = prompts(Tokenizer.from_file(str(smollm2 / "tokenizer.json")))
    assert len(asked) == 64
    assert sum(len(prompt) >= 2000 for prompt in asked) == 10
    return asked


@pytest.fixture(scope="module")
def expected(smollm2: Path, asked: list[list[int]]) -> list[Expected]:
    reference = Reference(smollm2)
    behind = [prompt for prompt in asked if prompt[:SHARED] == asked[-1][:SHARED]]
    alone = [prompt for prompt in asked if prompt[:SHARED] != asked[-1][:SHARED]]
    assert len(behind) == 8
    return reference.greedy(alone, MAX_TOKENS) + reference.greedy(behind, MAX_TOKENS, shared=SHARED)


def answers_of(cluster: LiveCluster, asked: list[list[int]]) -> list[Answer]:
    """Ask 1, 2, 4 and 8 at a time."""

    async def ask() -> list[Answer]:
        answers: list[Answer] = []
        bounds = [0, 2, 6, 14, len(asked)]
        for concurrency, (start, end) in zip((1, 2, 4, 8), itertools.pairwise(bounds), strict=True):
            answers += await cluster.complete_all(
                asked[start:end], MAX_TOKENS, concurrency=concurrency, ignore_eos=True
            )
        return answers

    return asyncio.run(ask())


@pytest.fixture
def running(smollm2: Path, request: pytest.FixtureRequest) -> Iterator[LiveCluster]:
    cluster = LiveCluster(smollm2, "--dtype", "float32", "--kv-memory", "1GiB", *request.param)
    yield cluster
    assert cluster.stop() == 0


def shape(block_size: int, chunk_size: int, *pods: str) -> tuple[str, ...]:
    return ("--block-size", str(block_size), "--chunk-size", str(chunk_size), *pods)


@pytest.mark.parametrize(
    ("running", "half"),
    [
        pytest.param(shape(16, 256), 0, id="disaggregated-16-256"),
        pytest.param(shape(64, 512), 1, id="disaggregated-64-512"),
    ],
    indirect=["running"],
)
def test_disaggregated_says_what_transformers_says(
    running: LiveCluster, half: int, asked: list[list[int]], expected: list[Expected]
) -> None:
    ours, theirs = asked[half::2], expected[half::2]
    answers = answers_of(running, ours)
    _assert_equal(answers, theirs)
    block_size = 16 if half == 0 else 64
    for prompt, answer in zip(ours, answers, strict=True):
        report = answer.report
        assert report["placement"] == "remote"
        assert report["prefill_cached_tokens"] + report["prefill_computed_tokens"] == len(prompt)
        assert report["decode_computed_tokens"] == 0
        wanted = -(-len(prompt) // block_size) - report["decode_cached_tokens"] // block_size
        assert report["blocks_shipped"] == report["manifest_blocks"] == wanted
    (prefill,), (decode,) = running.said["prefill"], running.said["decode"]
    running.assert_at_rest()
    sent, received = running.metrics(prefill), running.metrics(decode)
    assert sent["prompt_tokens_computed_total"] == sum(a.report["prefill_computed_tokens"] for a in answers)
    assert received["prompt_tokens_computed_total"] == 0
    shipped = sum(a.report["manifest_blocks"] for a in answers)
    assert sent["kv_blocks_sent_total"] == received["kv_blocks_received_total"] == shipped


@pytest.mark.parametrize("running", [shape(32, 128, "--colocated", "1")], indirect=True)
def test_colocated_says_what_transformers_says(
    running: LiveCluster, asked: list[list[int]], expected: list[Expected]
) -> None:
    answers = answers_of(running, asked)
    _assert_equal(answers, expected)
    assert {answer.report["placement"] for answer in answers} == {"local"}
    running.assert_at_rest()


def _assert_equal(answers: list[Answer], expected: list[Expected]) -> None:
    near_ties = sum(is_near_tie(each, answer.tokens) for each, answer in zip(expected, answers, strict=True))
    print(f"{near_ties} near-ties in {len(answers)} prompts")
    assert near_ties <= len(answers) / 100
