"""What a router adds: to the time to the first byte, and to each token, at 1, 32 and 128 streams, on two cores.

Behind each router stands a server that makes tokens up at a set pace, so all that is measured is the router and the
wire: Pagewire's speaks links (a step's tokens for all requests are one frame), that of `--peer vllm-router=PYTHON`
speaks OpenAI's streams. Both stamp when a request came and when each token left on the clock that the client reads too.
`bare` is uvicorn and a gRPC stream with nothing between them, the floor under a router of these libraries; `direct` is
the peer's server without a router: what client, kernel and event loop cost by themselves. Rounds alternate; figures are
over the requests of all rounds, and the spread is that of the rounds' medians.

    ttfb       first token's bytes at the client - request sent, less what the server took from its arrival to the token
    token      a later token's bytes at the client - it left the server: the delay of each token
    tpot       (last token - first token) / tokens between, less the same at the server: what each token takes longer

    CPU        the router's processor time over the tokens, requests included

    one        requests one after the other
    poisson    a new request 50 times a second, 32 at once
    burst      32 requests in one moment
    crowd      128 streams at once
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).with_name("support")))

import router_systems
import uvloop
from origin import parser_of, write_figures
from paced_answers import token_texts
from peer_python import python_of, versions
from processes import leave_on_signals
from router_systems import Stamps, System
from stream_client import Stream, StreamClient

from pagewire.core.local_models import find

PEER = "vllm-router"
ARRIVALS_PER_S = 50.0
PROMPT_WORDS = 96
SCENARIOS = ("one", "poisson", "burst", "crowd")
MUST = {"one": 2e-3, "poisson": 6e-3, "burst": 20e-3}
AIM = {"one": 0.7e-3, "poisson": 2e-3, "burst": 10e-3}
MUST_TOKEN, AIM_TOKEN = 0.4e-3, 0.15e-3


@dataclass(frozen=True, slots=True)
class Added:
    """What was added to one request, in seconds."""

    ttfb_s: float
    inbound_s: float  # of that, until the server had the request
    tokens_s: tuple[float, ...]  # the delay of each token after the first
    tpot_s: float


def added(stream: Stream, stamps_s: Sequence[float], texts: Sequence[str]) -> Added:
    """Compare what the client saw with what the server did. Raises RuntimeError where tokens are missing."""
    arrived_s, *left_s = stamps_s
    here_s = stream.token_times_s(texts)
    if len(here_s) != len(left_s):
        raise RuntimeError(f"request {stream.number}: {len(left_s)} tokens left, {len(here_s)} came")
    gaps = len(left_s) - 1
    return Added(
        ttfb_s=(here_s[0] - stream.sent_s) - (left_s[0] - arrived_s),
        inbound_s=arrived_s - stream.sent_s,
        tokens_s=tuple(here - left for here, left in zip(here_s[1:], left_s[1:], strict=True)),
        tpot_s=((here_s[-1] - here_s[0]) - (left_s[-1] - left_s[0])) / gaps,
    )


class Load:
    """Runs the scenarios against one system. `numbers` are those of its requests, never used twice."""

    def __init__(self, system: System, options: argparse.Namespace) -> None:
        self.system = system
        self._options = options
        self._number = 0
        self._client = StreamClient(system.url)
        self._random = random.Random(options.seed)

    async def run(self, scenario: str) -> list[Stream]:
        """Return the streams of one round of a scenario."""
        count, length = self._options.requests, self._options.output
        match scenario:
            case "one":
                await self._client.open(1)
                return [await self._stream(length // 2) for _ in range(self._options.singles)]
            case "poisson":
                await self._client.open(32)
                return await self._poisson(count, length)
            case "burst":
                await self._client.open(32)
                return [each for _ in range(count // 32) for each in await self._at_once(32, length)]
            case "crowd":
                await self._client.open(128)
                return await self._at_once(128, length)
        raise ValueError(scenario)

    async def _at_once(self, count: int, length: int) -> list[Stream]:
        return list(await asyncio.gather(*(self._stream(length) for _ in range(count))))

    async def _poisson(self, count: int, length: int) -> list[Stream]:
        room = asyncio.Semaphore(32)
        loop = asyncio.get_running_loop()
        at_s, streams = loop.time(), []

        async def one() -> Stream:
            async with room:
                return await self._stream(length)

        for _ in range(count):
            at_s += self._random.expovariate(ARRIVALS_PER_S)
            await asyncio.sleep(at_s - loop.time())
            streams.append(asyncio.create_task(one()))
        return list(await asyncio.gather(*streams))

    async def _stream(self, length: int) -> Stream:
        self._number += 1
        words = " ".join(f"word{(self._number * 7 + place) % 1000}" for place in range(PROMPT_WORDS // 3))
        return await self._client.stream(self._number, f"{self._number} {words}", length)

    def close(self) -> None:
        """Hang up."""
        self._client.close()


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of a scenario came to; `cpu_s` is the router's processor time."""

    added: tuple[Added, ...]
    cpu_s: float


Runs = dict[str, dict[str, list[Round]]]  # by scenario, by system


def measure(systems: Sequence[System], options: argparse.Namespace) -> Runs:
    """Let the systems take turns, scenario by scenario."""
    found: Runs = {scenario: defaultdict(list) for scenario in options.scenarios}
    texts = token_texts(options.model)

    async def all_rounds() -> None:
        loads = [Load(system, options) for system in systems]
        for load in loads:  # code that has never run, connections that are not open
            await load.run("burst")
            load.system.stamps()
        for round_number in range(options.rounds):
            for scenario in options.scenarios:
                for load in loads if round_number % 2 == 0 else loads[::-1]:
                    before_s = load.system.cpu_s()
                    streams = await _undisturbed(load, scenario)
                    cpu_s = load.system.cpu_s() - before_s
                    stamps: Stamps = load.system.stamps()
                    results = tuple(added(stream, stamps[stream.number], texts) for stream in streams)
                    found[scenario][load.system.name].append(Round(results, cpu_s))
                print(f"round {round_number} of {scenario}", file=sys.stderr, flush=True)
        for load in loads:
            load.close()

    uvloop.run(all_rounds())
    return found


async def _undisturbed(load: Load, scenario: str) -> list[Stream]:
    gc.collect()
    gc.disable()
    try:
        return await load.run(scenario)
    finally:
        gc.enable()


def figures_of(found: Runs) -> dict[str, Any]:
    """Return the figures of each scenario and system, in milliseconds."""
    return {
        scenario: {name: _figures(rounds) for name, rounds in by_system.items()}
        for scenario, by_system in found.items()
    }


def _figures(rounds: Sequence[Round]) -> dict[str, Any]:
    every = [one for each in rounds for one in each.added]
    tokens = sum(1 + len(one.tokens_s) for one in every)
    return {
        "requests": len(every),
        "ttfb-ms": _summary([[one.ttfb_s for one in each.added] for each in rounds]),
        "inbound-ms": _summary([[one.inbound_s for one in each.added] for each in rounds]),
        "token-ms": _summary([[token for one in each.added for token in one.tokens_s] for each in rounds]),
        "tpot-ms": _summary([[one.tpot_s for one in each.added] for each in rounds]),
        "cpu-ms-per-token": round(sum(each.cpu_s for each in rounds) * 1e3 / tokens, 4),
    }


def _summary(rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    every = sorted(value * 1e3 for each in rounds for value in each)
    return {
        "p50": round(statistics.median(every), 4),
        "p90": round(every[int(len(every) * 0.9)], 4),
        "p99": round(every[int(len(every) * 0.99)], 4),
        "p50-of-rounds": [round(statistics.median(each) * 1e3, 4) for each in rounds],
    }


def targets_of(figures: dict[str, Any]) -> dict[str, Any]:
    """Return what targets are set for, of each system: milliseconds."""
    found: dict[str, Any] = defaultdict(dict)
    for scenario, by_system in figures.items():
        for name, each in by_system.items():
            if scenario in MUST:
                found[name][f"added-ttfb-{scenario}-ms"] = each["ttfb-ms"]["p50"]
            found[name][f"added-per-token-{scenario}-ms"] = each["token-ms"]["p50"]
            found[name][f"added-tpot-{scenario}-ms"] = each["tpot-ms"]["p50"]
    return found


def table(figures: dict[str, Any]) -> Iterator[str]:
    """Return the lines for people: medians, the 99th percentile in brackets, milliseconds."""
    heads = f"{'added TTFB ms':>20} {'of that in':>10} {'a token later by ms':>22} {'TPOT + ms':>10} {'CPU ms':>7}"
    yield f"{'':8} {'':12} {heads}"
    for scenario, by_system in figures.items():
        for name, found in by_system.items():
            ttfb, inbound, token, tpot = (found[f"{what}-ms"] for what in ("ttfb", "inbound", "token", "tpot"))
            yield (
                f"{scenario:8} {name:12} {ttfb['p50']:9.2f} ({ttfb['p99']:7.2f}) {inbound['p50']:10.2f} "
                f"{token['p50']:11.3f} ({token['p99']:7.2f}) {tpot['p50']:10.3f} {found['cpu-ms-per-token']:7.3f}"
            )
        if scenario in MUST:
            yield (
                f"{'':8} {'must / aim':12} {MUST[scenario] * 1e3:9.2f} / {AIM[scenario] * 1e3:.1f}"
                f"{'':17} {MUST_TOKEN * 1e3:11.3f} / {AIM_TOKEN * 1e3:.3f}"
            )


def _model(text: str) -> Path:
    """Return the folder of a model named as Pagewire names it, or the folder itself."""
    return find(text) or Path(text)


def main() -> None:
    """Start, measure, print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=_model, default=_model("smollm2"), help="local model, for its tokenizer alone")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=SCENARIOS)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system in each scenario")
    parser.add_argument("--requests", type=int, default=96, help="of one round of poisson and of burst")
    parser.add_argument("--singles", type=int, default=8, help="requests of one round of one, of half the tokens")
    parser.add_argument("--output", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--step-ms", type=float, default=20.0, help="between two tokens of an answer")
    parser.add_argument("--peer", type=python_of(PEER), action="append", default=[], metavar=f"{PEER}=PYTHON")
    parser.add_argument("--only-pagewire", action="store_true", help="nothing beside it")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals")
    options = parser.parse_args()
    leave_on_signals()
    with tempfile.TemporaryDirectory(prefix="pagewire-bench-") as scratch, ExitStack() as stack:
        folder = Path(scratch)
        starts = [partial(router_systems.pagewire, options.model, options.step_ms, folder)]
        if not options.only_pagewire:
            starts += [
                partial(router_systems.vllm_router, p, options.model, options.step_ms, folder) for p in options.peer
            ]
            starts.append(partial(router_systems.bare, options.model, options.step_ms, folder))
            starts.append(partial(router_systems.direct, options.model, options.step_ms, folder))
        systems: list[System] = []
        for start in starts:
            systems.append(start())
            stack.callback(systems[-1].stop)
        os.sched_setaffinity(0, {router_systems.cores()[1]})
        figures = figures_of(measure(systems, options))
    print("\n".join(table(figures)), flush=True)
    told = {"figures": figures, "targets": targets_of(figures)}
    peers = {name: version for python in options.peer for name, version in versions(python, PEER).items()}
    write_figures(options.json, told, "grpcio", "protobuf", "uvloop", "uvicorn", peers=peers)


if __name__ == "__main__":
    main()
