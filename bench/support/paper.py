"""The tables of docs/experiments/paper-tables.md: which clusters play which loads, and what is made of it.

Knows settings and figures; how they are played is in `turns.py`. Pods are of one thread, but for a cluster of a single
one, which has both cores: `pagewire up` shares them out so by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from turns import Figures, Load, chosen, median, spread

from pagewire.slo.sweeps.configuration import Configuration, configurations
from pagewire.slo.workloads.made_up import parse_lengths
from pagewire.slo.workloads.workload_config import WorkloadConfig

COMMON = ("model=smollm2", "max_model_len=2048", "kv_memory=128MiB")
ALONE, FEW, USERS = "1 user", "4 users", "6 users"
SHARES = (0.0, 0.3, 0.6, 0.9)
ANSWERS = (1, 16, 96)
BLOCKS = (16, 32, 64, 128)
ON, OFF = "1 colocated prefix_caching=true", "1 colocated prefix_caching=false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: its clusters, its loads, and the lines that it is shown in."""

    configurations: tuple[Configuration, ...]
    loads: tuple[Load, ...]
    lines: Callable[[Sequence[Figures]], Iterator[str]]


def closed(users: int, requests: int, prompt: str, answer: str, share: float = 0.0) -> WorkloadConfig:
    """Return a closed loop of so many users."""
    lengths = {"input": parse_lengths(prompt), "output": parse_lengths(answer)}
    return WorkloadConfig(concurrency=users, requests=requests, prefix_share=share, **lengths)


def tables() -> dict[str, Table]:
    """Return all that are played by turns, by name."""
    mixed = [
        Load(name=ALONE, config=closed(1, 3, "384", "32")),
        Load(name=FEW, config=closed(4, 12, "128-512", "16-48")),
    ]
    long = [Load(name=FEW, config=closed(4, 8, "384-640", "32"))]
    shapes = [Load(name=USERS, config=closed(6, 18, "100-500", "32-96"))]
    open_loop = WorkloadConfig(rate=1.5, duration_s=8.0, input=parse_lengths("32-512"), output=parse_lengths("16-48"))
    adaptive = [
        Load(name="short, alone", config=closed(1, 4, "32-64", "24")),
        Load(name="mixed, 1.5/s", config=open_loop),
    ]
    return {
        "compositions": _table(["pods=1 colocated,2 colocated,1P:1D,3 colocated,2P:1D,1P:2D"], mixed, by_composition),
        "chunks": _table(["pods=2 colocated,1P:1D", "chunk_size=64,256,1024"], long, by_chunk),
        "blocks": _table(["pods=1 colocated", f"block_size={','.join(map(str, BLOCKS))}"], shapes, by_block),
        "prefixes": _table(["pods=1 colocated", "prefix_caching=true,false"], _prefix_loads(), by_prefix),
        "adaptive": _table(["pods=1P:1D", "prefill_mode=remote,local,auto"], adaptive, by_mode),
    }


def _prefix_loads() -> list[Load]:
    """Return every length of answer with every share, on the cache; without it the share is nothing to anybody."""
    found = []
    for answer, share in itertools.product(ANSWERS, SHARES):
        config = closed(4, 13, "384", str(answer), share)
        found.append(Load(name=_prefix_name(answer, share), config=config, ahead=1, on="" if share == 0.0 else ON))
    return found


def _prefix_name(answer: int, share: float) -> str:
    return f"{answer} out, {share:.0%} shared"


# ---------------------------------------------------------------------------------------------------------------- lines


def by_composition(runs: Sequence[Figures]) -> Iterator[str]:
    """Yield what one user and what several see of each composition."""
    yield from _head(
        *("cluster", "1 user: TTFT, ms", "TPOT, ms", "4 users: TTFT, ms", "p90", "TPOT, ms", "p90"),
        *("longest gap, ms", "tokens out/s", "over 2 colocated"),
    )
    for name in _names(runs):
        one, many = chosen(runs, name, ALONE), chosen(runs, name, FEW)
        cells = [
            spread(one, "ttft_p50_ms"), spread(one, "tpot_p50_ms", ".1f"), spread(many, "ttft_p50_ms"),
            spread(many, "ttft_p90_ms"), spread(many, "tpot_p50_ms", ".1f"), spread(many, "tpot_p90_ms", ".1f"),
            spread(many, "gap_max_ms"), spread(many, "output_tokens_per_s", ".1f"),
            _over(many, chosen(runs, "2 colocated", FEW)),
        ]  # fmt: skip
        yield _row(name, *cells)


def by_chunk(runs: Sequence[Figures]) -> Iterator[str]:
    """Yield what larger chunks do to those who wait for a prompt, and to those who decode beside it."""
    yield from _head(
        "cluster", "chunk", "TTFT, ms", "TPOT, ms", "90th percentile of gaps, ms", "longest gap, ms", "tokens out/s"
    )
    for name in _names(runs):
        pods, _, chunk = name.partition(" chunk_size=")
        many = chosen(runs, name, FEW)
        cells = [
            spread(many, "ttft_p50_ms"), spread(many, "tpot_p50_ms", ".1f"), spread(many, "gap_p90_ms"),
            spread(many, "gap_max_ms"), spread(many, "output_tokens_per_s", ".1f"),
        ]  # fmt: skip
        yield _row(pods, chunk, *cells)


def by_block(runs: Sequence[Figures]) -> Iterator[str]:
    """Yield what larger blocks waste and whether they are quicker."""
    yield from _head(
        *("block", "slots not filled", "last blocks alone, by arithmetic"),
        *("TTFT, ms", "TPOT, ms", "tokens out/s", "over block 16"),
    )
    for name in _names(runs):
        many, size = chosen(runs, name, USERS), int(name.partition("block_size=")[2])
        told = [{**each, "waste": 100 * waste(each, size), "tail": 100 * tail_waste(each, size)} for each in many]
        cells = [
            f"{spread(told, 'waste', '.1f')} %", f"{median(told, 'tail'):.1f} %", spread(many, "ttft_p50_ms"),
            spread(many, "tpot_p50_ms", ".1f"), spread(many, "output_tokens_per_s", ".1f"),
            _over(many, chosen(runs, _names(runs)[0], USERS)),
        ]  # fmt: skip
        yield _row(str(size), *cells)


def waste(run: Figures, block_size: int) -> float:
    """Return the share of slots that sequences held and that had no token, over all steps of all pods."""
    slots = block_size * _count(run, "kv_block_steps")
    return 1 - _count(run, "kv_token_steps") / slots


def tail_waste(run: Figures, block_size: int) -> float:
    """Return the share that is in last blocks alone while answers of these lengths are written, a token a step."""
    filled = slots = 0
    for given, _, out, *_ in run["requests"]:
        lengths = range(given, given + out)
        filled += sum(lengths)
        slots += sum(-(-length // block_size) * block_size for length in lengths)
    return 1 - filled / slots


def by_prefix(runs: Sequence[Figures]) -> Iterator[str]:
    """Yield what the cache gains, beside what prefill's share of the work says that it should.

    Without the cache nothing but 0 % was played, since what is shared is nothing to it: each row has that figure again.
    """
    yield from _head(
        *("answer", "prefill's share p", "prompt shared", "of it cached h"),
        *("requests/s with", "without, nothing shared", "gain", "1/(1 - p h) - 1"),
    )
    bare = {answer: median(chosen(runs, OFF, _prefix_name(answer, 0.0)), "requests_per_s") for answer in ANSWERS}
    for answer, share in itertools.product(ANSWERS, SHARES):
        cached = chosen(runs, ON, _prefix_name(answer, share))
        without = chosen(runs, OFF, _prefix_name(answer, 0.0))
        part, hit = bare[answer] / bare[1], median(cached, "cached_share")
        gain = median(cached, "requests_per_s") / bare[answer] - 1
        yield _row(
            str(answer), f"{part:.2f}", f"{share:.0%}", f"{hit:.2f}", spread(cached, "requests_per_s", ".2f"),
            spread(without, "requests_per_s", ".2f"), f"{gain:+.0%}", f"{1 / (1 - part * hit) - 1:+.0%}",
        )  # fmt: skip


def by_mode(runs: Sequence[Figures]) -> Iterator[str]:
    """Yield where prompts were built and what came of it."""
    yield from _head("mode", "load", "prompts built remotely", "TTFT, ms", "p90", "TPOT, ms", "p90", "end to end, ms")
    for load in dict.fromkeys(each["load"] for each in runs):
        for name in _names(runs):
            found = chosen(runs, name, load)
            remote = sum(_count(each, "prompts_accepted") for each in found)
            cells = [f"{remote:.0f} of {sum(len(each['requests']) for each in found)}"]
            for figure, form in (
                ("ttft_p50_ms", ".0f"), ("ttft_p90_ms", ".0f"), ("tpot_p50_ms", ".1f"), ("tpot_p90_ms", ".1f"),
                ("e2e_p50_ms", ".0f"),
            ):  # fmt: skip
                cells.append(spread(found, figure, form))
            yield _row(name.partition("prefill_mode=")[2], load, *cells)


def _table(grid: Sequence[str], loads: Sequence[Load], lines: Callable[[Sequence[Figures]], Iterator[str]]) -> Table:
    return Table(configurations=configurations(COMMON, grid), loads=tuple(loads), lines=lines)


def _names(runs: Sequence[Figures]) -> list[str]:
    """Return the clusters in the order of the first round."""
    return [*dict.fromkeys(each["configuration"] for each in runs)]


def _over(runs: Sequence[Figures], others: Sequence[Figures]) -> str:
    """Return the ratio of tokens a second, round by round: in one round both were asked the same."""
    pairs = zip(runs, others, strict=True)
    return spread([{"ratio": a["output_tokens_per_s"] / b["output_tokens_per_s"]} for a, b in pairs], "ratio", ".2f")


def _count(run: Figures, name: str) -> float:
    return sum(each.get(f"pagewire_{name}_total", 0.0) for each in run["counters"].values())


def _head(*names: str) -> Iterator[str]:
    yield _row(*names)
    yield "|" + "---|" * len(names)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
