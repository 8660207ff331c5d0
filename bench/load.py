"""What loads of unkind shapes come to: a soak, three times what fits, slow readers, idle streams, a herd, giants.

Processes of a tiny model (`tests/support/chaos_cluster.py`) whose answers are known token for token; callers are on the
same cores. Each scenario prints a line and is an object of figures; exits with 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path += [str(HERE / "support"), str(HERE.parent / "tests" / "support")]

import psutil  # noqa: E402
import tiny_model  # noqa: E402
from chaos_cluster import ChaosCluster, chaos_cluster  # noqa: E402
from machine import command, machine, versions  # noqa: E402
from open_load import Call, OpenLoad, Question, ask, questions  # noqa: E402

TTFT_S, GAP_S = 1.0, 0.5
LENGTHS = tuple(40 + 17 * number for number in range(18))
MAX_TOKENS, LEAST = 150, 40
MOST_SLOPE = 64 * 1024.0  # bytes of resident memory that a process may grow by with each request, at the soak's end

Figures = dict[str, Any]


class Scenarios:
    """One cluster, and the loads that are tried on it one after the other."""

    def __init__(self, cluster: ChaosCluster, asked: Sequence[Question], soak_s: float) -> None:
        self.cluster = cluster
        self.asked = asked
        self.soak_s = soak_s

    async def _load(self, rate: float, seconds: float, name: str) -> list[Call]:
        load = OpenLoad(lambda: self.cluster.urls, self.asked, rate, f"{name} {time.monotonic()}")
        load.start()
        await asyncio.sleep(seconds)
        return await load.stop()

    async def _rest(self, calls: Sequence[Call]) -> Figures:
        """What every scenario tells: answers, tokens, blocks."""
        return {
            "requests": len(calls),
            "failed": dict(Counter(call.error for call in calls if call.error)),
            "wrong": sum(call.is_wrong for call in calls),
            "leaked": await self.cluster.leaked(),
        }

    # ------------------------------------------------------------------------------------------------------ scenarios

    async def soak(self) -> Figures:
        """Steady requests at two thirds of what fits; memory and descriptors of every process, each second."""
        processes = {name: self.cluster.process(name) for name in names(self.cluster)}
        marks: dict[str, list[tuple[int, int, int]]] = {name: [] for name in processes}  # requests, bytes, descriptors
        load = OpenLoad(lambda: self.cluster.urls, self.asked, 8.0, f"soak {time.monotonic()}")
        load.start()
        began_s = time.monotonic()
        while time.monotonic() - began_s < self.soak_s:
            await asyncio.sleep(1.0)
            for name, process in processes.items():
                marks[name].append((len(load.calls), private_bytes(process), process.num_fds()))
        calls = await load.stop()
        found = await self._rest(calls)
        await asyncio.sleep(2.0)
        found["seconds"] = round(time.monotonic() - began_s)
        found["processes"] = {
            name: {
                "bytes-per-request": round(slope([mark[:2] for mark in said[len(said) // 2 :]])),
                "mib": round(said[-1][1] / 2**20, 1),
                "descriptors": [said[len(said) // 2][2], processes[name].num_fds()],
            }
            for name, said in marks.items()
        }
        grown = [name for name, said in found["processes"].items() if said["bytes-per-request"] > MOST_SLOPE]
        leaky = [
            name for name, said in found["processes"].items() if said["descriptors"][1] > said["descriptors"][0] + 8
        ]
        found["broken"] = [*(f"{name} grows" for name in grown), *(f"{name} leaks descriptors" for name in leaky)]
        return found

    async def overload(self) -> Figures:
        """Goodput at rising rates, and at three times that of its peak; refusals, and how soon they came."""
        steps = []
        peak = 0.0
        rate = 6.0
        while True:
            said = await self._goodput(rate, 5.0)
            steps.append(said)
            if said["goodput"] > peak:
                peak, peak_rate = said["goodput"], rate
            if said["goodput"] < 0.8 * rate or rate > 100:
                break
            rate *= 1.5
        far = await self._goodput(3 * peak, 12.0)
        found = {"steps": [*steps, far], "peak": peak, "peak-rate": peak_rate, "at-three-times": far["goodput"]}
        found["share"] = round(far["goodput"] / peak, 3)
        found |= {
            key: far[key] for key in ("requests", "failed", "wrong", "leaked", "refusal-p99-s", "without-retry-after")
        }
        found["broken"] = [] if found["share"] >= 0.9 else [f"goodput fell to {found['share']:.0%} of its peak"]
        if far["without-retry-after"]:
            found["broken"].append(f"{far['without-retry-after']} refusals without Retry-After")
        return found

    async def _goodput(self, rate: float, seconds: float) -> Figures:
        calls = await self._load(rate, seconds, "overload")
        took_s = seconds
        refused = [call for call in calls if call.status in (429, 503)]
        good = [call for call in calls if not call.error and call.ttft_s <= TTFT_S and call.longest_gap_s <= GAP_S]
        return {
            "rate": round(rate, 1), "goodput": round(len(good) / took_s, 2),
            "answered": sum(not call.error for call in calls),
            "refused": len(refused), "without-retry-after": sum(not call.retry_after for call in refused),
            "refusal-p99-s": quantile([call.end_s - call.begun_s for call in refused], 0.99),
            **await self._rest(calls),
        }  # fmt: skip

    async def slow_readers(self) -> Figures:
        """Every other caller reads a part in 50 ms; the others' pace is held against that without them."""
        calm = await self._load(4.0, 5.0, "calm")
        slow = [self._slow(number) for number in range(24)]
        running = asyncio.gather(*slow)
        beside = await self._load(4.0, 5.0, "beside")
        found = await self._rest([*beside, *await running])
        found |= {"ttft-p99-s": [quantile([call.ttft_s for call in calls], 0.99) for calls in (calm, beside)]}
        return found | {"slow": len(slow), "broken": []}

    async def _slow(self, number: int) -> Call:
        question = self.asked[number % len(self.asked)]
        call = Call(question, time.monotonic(), len(question.answer))
        return await ask(call, self.cluster.urls[number % 2 :], pace_s=0.05, cache_salt=f"slow {time.monotonic()}")

    async def idle_streams(self, number: int = 2000) -> Figures:
        """So many connections that ask nothing, beside requests: memory a connection, and the pace of the others."""
        calm = await self._load(4.0, 5.0, "calm")
        routers = [self.cluster.process(name) for name in names(self.cluster) if name.startswith(("a", "b"))]
        before = sum(map(private_bytes, routers))
        idle = []
        for place in range(number):
            host, _, port = self.cluster.urls[place % 2].removeprefix("http://").partition(":")
            idle.append(await asyncio.open_connection(host, int(port)))
        beside = await self._load(4.0, 5.0, "beside")
        grown = sum(map(private_bytes, routers)) - before
        open_still = sum(not reader.at_eof() for reader, _ in idle)
        for _, writer in idle:
            writer.close()
        return {
            **await self._rest(beside), "idle": number, "open-at-the-end": open_still,
            "bytes-each": round(grown / number),
            "ttft-p99-s": [quantile([call.ttft_s for call in calls], 0.99) for calls in (calm, beside)], "broken": [],
        }  # fmt: skip

    async def herd(self, number: int = 100) -> Figures:
        """So many at once behind one long prefix that nobody has yet: how many tokens of it were computed in all."""
        longest = max(self.asked, key=lambda question: len(question.prompt))
        salt = f"herd {time.monotonic()}"
        computed = await self._computed()
        calls = [Call(longest, time.monotonic(), len(longest.answer)) for _ in range(number)]
        urls = self.cluster.urls
        await asyncio.gather(*(ask(call, urls[place % 2 :], cache_salt=salt) for place, call in enumerate(calls)))
        computed = await self._computed() - computed
        found = await self._rest(calls)
        last_s = max(call.end_s for call in calls) - calls[0].begun_s
        found |= {"prompt": len(longest.prompt), "computed-tokens": computed, "last-s": round(last_s, 2)}
        return found | {"share-computed": round(computed / (number * len(longest.prompt)), 3), "broken": []}

    async def _computed(self) -> int:
        said = [await asyncio.to_thread(self.cluster.live.metrics, pod) for pod in self.cluster.pods.values()]
        return round(sum(each["prompt_tokens_computed_total"] for each in said))

    async def giants(self) -> Figures:
        """The longest prompts, several at once and again and again, among the shortest: how long these waited."""
        short, *_, giant = sorted(self.asked, key=lambda question: len(question.prompt))
        calm = await self._fixed(short, 6.0, 5.0)
        giants = asyncio.create_task(self._fixed(giant, 12.0, 5.0))
        beside = await self._fixed(short, 6.0, 5.0)
        found = await self._rest([*calm, *beside, *await giants])
        found |= {
            f"ttft-{title}-s": [quantile([call.ttft_s for call in calls], share) for calls in (calm, beside)]
            for title, share in (("p50", 0.5), ("p99", 0.99))
        }
        found |= {"tiny": len(short.prompt), "giant": len(giant.prompt), "giants": len(await giants)}
        return found | {"broken": []}

    async def _fixed(self, question: Question, rate: float, seconds: float) -> list[Call]:
        load = OpenLoad(lambda: self.cluster.urls, [question], rate, f"fixed {time.monotonic()}")
        load.start()
        await asyncio.sleep(seconds)
        return await load.stop()


SCENARIOS: dict[str, Callable[[Scenarios], Awaitable[Figures]]] = {
    "soak": Scenarios.soak,
    "overload": Scenarios.overload,
    "slow readers": Scenarios.slow_readers,
    "idle streams": Scenarios.idle_streams,
    "herd": Scenarios.herd,
    "giants": Scenarios.giants,
}


def names(cluster: ChaosCluster) -> list[str]:
    """Return the processes that there are, by name."""
    pods = [part for name in cluster.pods for part in (name, f"{name} engine")]
    return [*pods, "a", "b", "b worker", "redis"]


def private_bytes(process: psutil.Process) -> int:
    """Return the memory that a process shares with nobody: what is shared is the pool, which has its size."""
    return int(process.memory_full_info().uss)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return by how much the second grows with the first, by least squares."""
    xs, ys = zip(*points, strict=True)
    return statistics.linear_regression(xs, ys).slope if len(set(xs)) > 1 else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile, 0 of nothing."""
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 3) if values else 0.0


async def measure(folder: Path, only: re.Pattern[str], soak_s: float) -> dict[str, Figures]:
    """Try all scenarios whose names match, one after the other."""
    model = tiny_model.build(folder / "model")
    asked = questions(model, LENGTHS, MAX_TOKENS, LEAST)
    found: dict[str, Figures] = {}
    async with chaos_cluster(model, folder) as cluster:
        scenarios = Scenarios(cluster, asked, soak_s)
        await scenarios._load(6.0, 2.0, "warm")
        for name, scenario in SCENARIOS.items():
            if only.search(name):
                said = found[name] = await scenario(scenarios)
                told = {"overloaded", "unavailable"} if name == "overload" else set()
                if unforeseen := {code: many for code, many in said["failed"].items() if code not in told}:
                    said["broken"].append(f"failed: {unforeseen}")
                said["broken"] += [f"{what}: {said[what]}" for what in ("wrong", "leaked") if said[what]]
                print(name, json.dumps(said), flush=True)
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), help="scenarios whose names match this")
    parser.add_argument("--soak-s", type=float, default=60.0, help="seconds of the soak")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagewire-load-") as folder:
        found = asyncio.run(measure(Path(folder), arguments.only, arguments.soak_s))
    said = {
        "machine": machine(), "versions": versions("torch"), "command": command(sys.argv),
        "slo": {"ttft-s": TTFT_S, "gap-s": GAP_S}, "scenarios": found,
    }  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(said, indent=1) + "\n")
    sys.exit(any(said["broken"] for said in found.values()))


if __name__ == "__main__":
    main()
