"""The main job, shown: two questions behind one long system prompt, over the public HTTP API, with their timelines.

Starts its cluster as a person would, with `pagewire up`, and knows nothing of what is inside it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx

from pagewire.cli.child import Child
from pagewire.core.errors import Unavailable
from pagewire.core.units import format_bytes

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 300.0
MAX_TOKENS = 48

QUESTIONS = ("What is the capital of France?", "What is the capital of Japan?")

CAPITALS = (
    "Argentina Buenos Aires; Austria Vienna; Belgium Brussels; Bolivia Sucre; Brazil Brasilia; Bulgaria Sofia; "
    "Canada Ottawa; Chile Santiago; Colombia Bogota; Croatia Zagreb; Cuba Havana; Cyprus Nicosia; Denmark Copenhagen; "
    "Ecuador Quito; Egypt Cairo; Estonia Tallinn; Ethiopia Addis Ababa; Finland Helsinki; Georgia Tbilisi; "
    "Germany Berlin; Ghana Accra; Greece Athens; Hungary Budapest; Iceland Reykjavik; India New Delhi; "
    "Indonesia Jakarta; Iran Tehran; Iraq Baghdad; Ireland Dublin; Israel Jerusalem; Italy Rome; Jamaica Kingston; "
    "Jordan Amman; Kenya Nairobi; Latvia Riga; Lebanon Beirut; Lithuania Vilnius; Luxembourg Luxembourg; "
    "Madagascar Antananarivo; Malaysia Kuala Lumpur; Malta Valletta; Mexico Mexico City; Mongolia Ulaanbaatar; "
    "Morocco Rabat; Nepal Kathmandu; Netherlands Amsterdam; Norway Oslo; Oman Muscat; Pakistan Islamabad; "
    "Panama Panama City; Peru Lima; Philippines Manila; Poland Warsaw; Portugal Lisbon; Qatar Doha; Romania Bucharest; "
    "Senegal Dakar; Serbia Belgrade; Slovakia Bratislava; Slovenia Ljubljana; Spain Madrid; Sweden Stockholm; "
    "Switzerland Bern; Thailand Bangkok; Tunisia Tunis; Turkey Ankara; Uganda Kampala; Ukraine Kyiv; "
    "Uruguay Montevideo; Vietnam Hanoi; Zambia Lusaka; Zimbabwe Harare"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the last part of a stream said about it: usage, and Pagewire's own report and timelines."""

    usage: dict[str, Any]
    report: dict[str, Any]
    timelines: list[dict[str, Any]]


async def run(model: str) -> int:
    """Run the demo and return the exit code. Raises Unavailable where the cluster or an answer fails."""
    async with _cluster(model) as cluster:
        url = cluster["router"]["http"]
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=ANSWER_TIMEOUT_S) as http:
            for question in QUESTIONS:
                print(f"\nQ: {question}\nA: ", end="", flush=True)
                told = await _ask(http, question)
                print("\n\n" + "\n".join(table(told)), flush=True)
    print("\nBoth questions were answered; the cluster is stopped.", flush=True)
    return 0


def system_prompt() -> str:
    """Return the long prompt that both questions share: some geography, without France and Japan."""
    lines = []
    for entry in CAPITALS.split("; "):
        country, _, capital = entry.partition(" ")
        lines.append(f"The capital of {country} is {capital}.")
    return "You are a helpful assistant. You answer questions on geography in one short sentence.\n" + "\n".join(lines)


def table(told: Told) -> list[str]:
    """Return the lines that tell where a request ran, what moved, and where its time went."""
    report, usage, spans = told.report, told.usage, _router_spans(told.timelines)
    ttft_s, rest_s, later = spans["ttft"], spans["rest"], usage["completion_tokens"] - 1
    rows = [
        ("placement", f"{report['placement']}: {report['prefill_pod'] or '-'} -> {report['decode_pod']}"),
        ("prompt", f"{usage['prompt_tokens']} tokens, {usage['prompt_tokens_details']['cached_tokens']} cached"),
        ("chunks", str(report["chunks"])),
        ("shipped", f"{report['blocks_shipped']} blocks, {format_bytes(report['bytes_shipped'])}{_by(report)}"),
        ("transfer hidden", _hidden(report)),
        ("TTFT", f"{ttft_s * 1e3:.1f} ms"),
        ("TPOT", f"{rest_s / later * 1e3:.1f} ms over {later} tokens" if later > 0 else "one token only"),
    ]
    return [f"  {name:<16} {value}" for name, value in rows] + [*_timeline_lines(told.timelines)]


def _by(report: dict[str, Any]) -> str:
    return f" by {report['transport']}" if report["transport"] else ""


def _hidden(report: dict[str, Any]) -> str:
    transfer_s, exposed_s = report["transfer_s"], report["exposed_s"]
    if report["blocks_shipped"] == 0:
        return "nothing moved"
    waited = f"decoding waited {exposed_s * 1e3:.1f} ms for bytes"
    if report["chunks"] == 1 and exposed_s >= transfer_s:  # nor did layer groups hide anything
        waited += "; a single chunk has no next one to hide behind"
    if transfer_s == 0:
        return f"the bytes were as fast as their announcement; {waited}"
    return f"{max(0.0, 1 - exposed_s / transfer_s):.0%} of {transfer_s * 1e3:.1f} ms; {waited}"


def _router_spans(timelines: list[dict[str, Any]]) -> dict[str, float]:
    # Two stamps of one process only: the clocks of two differ. The router sees both ends of a request.
    for timeline in timelines:
        at = {stamp["phase"]: stamp["at_s"] for stamp in timeline["stamps"]}
        if "received" in at and "first_token" in at:
            last = at.get("last_token", at["first_token"])
            return {"ttft": at["first_token"] - at["received"], "rest": last - at["first_token"]}
    raise Unavailable("the answer came without the router's timeline")


def _timeline_lines(timelines: list[dict[str, Any]]) -> Iterator[str]:
    for timeline in timelines:
        stamps = sorted(timeline["stamps"], key=lambda stamp: stamp["at_s"])
        steps = [f"+{1e3 * (b['at_s'] - a['at_s']):.1f} ms {b['phase']}" for a, b in pairwise(stamps)]
        if stamps:
            yield f"  {timeline['process']:<16} {' '.join([stamps[0]['phase'], *steps])}"


async def _ask(http: httpx.AsyncClient, question: str) -> Told:
    messages = [{"role": "system", "content": system_prompt()}, {"role": "user", "content": question}]
    body = {
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "pagewire": {"timeline": True},
    }
    usage: dict[str, Any] | None = None
    own: dict[str, Any] | None = None
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != httpx.codes.OK:
            raise Unavailable(f"the router answered {answer.status_code}: {(await answer.aread()).decode()}")
        async for part in _parts(answer):
            if "error" in part:
                raise Unavailable(f"the stream ended in an error: {part['error']}")
            for choice in part["choices"]:
                print(choice["delta"].get("content") or "", end="", flush=True)
            usage, own = part.get("usage") or usage, part.get("pagewire") or own
    if usage is None or own is None or own["report"] is None:
        raise Unavailable("the stream ended without usage or without its report")
    return Told(usage=usage, report=own["report"], timelines=own["timelines"])


async def _parts(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON of each server-sent event."""
    async for line in answer.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


@asynccontextmanager
async def _cluster(model: str) -> AsyncIterator[dict[str, Any]]:
    """Run `pagewire up` and yield what it says; it is told to stop, and waited for, at the end.

    It is in a session of its own: an interrupt at the terminal reaches this process, which stops it, once.
    """
    command = [sys.executable, "-m", "pagewire.cli.main", "up", "--model", model, "--port", "0", "--grpc-port", "0"]
    child = await Child.start("pagewire up", "cluster", command, {**os.environ, "PYTHONSAFEPATH": "1"})
    try:
        yield await child.ready(START_TIMEOUT_S)
    finally:
        await child.stop(STOP_TIMEOUT_S)
    if child.exit_code != 0:
        raise Unavailable(f"pagewire up ended with exit code {child.exit_code}")
