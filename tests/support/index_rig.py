"""Blocks and registrations of made-up pods, for tests of the prefix index."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from pagewire.core.block_hash import INDEX_STRIDE, BlockHash
from pagewire.core.engine_messages import CachedBlock
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.index_member import member
from pagewire.core.messages import Role
from pagewire.serving.block_index import BlockIndex
from pagewire.serving.publisher import Publisher
from pagewire.serving.registration import Registration
from pagewire.serving.registry import Registry

PRINT = Fingerprint(
    model_name="m", model_digest="d", tokenizer_digest="t", kv_fingerprint="k", kv_layout="l", block_size=16,
    hash_version=1, max_model_len=128,
)  # fmt: skip


def pod(name: str = "d0", incarnation: str = "1", index_id: int = 7) -> Registration:
    """Return what a made-up pod says of itself."""
    return Registration(
        pod_id=name, incarnation=incarnation, role=Role.DECODE, address="127.0.0.1:1", metrics="", fingerprint=PRINT,
        index_id=index_id,
    )  # fmt: skip


def name(number: int) -> BlockHash:
    """Return a hash."""
    return BlockHash(number.to_bytes(16, "little"))


def block(number: int, depth: int = INDEX_STRIDE - 1, tier: int = 0) -> CachedBlock:
    """Return a block that has a key in the index."""
    return CachedBlock(block_hash=name(number), depth=depth, tier=tier)


def names(*numbers: int) -> list[BlockHash]:
    """Return hashes."""
    return [name(number) for number in numbers]


def held(publisher: Publisher, *tiers: int | None) -> list[list[bytes]]:
    """Return what the index answers where this pod alone holds blocks in these tiers."""
    index_id = publisher.registration.index_id
    return [[] if tier is None else [member(index_id, tier)] for tier in tiers]


async def eventually(condition: Callable[[], Awaitable[bool]], timeout_s: float = 15) -> None:
    """Wait until an async condition holds."""
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def answers(index: BlockIndex, hashes: Sequence[BlockHash]) -> list[list[bytes]] | None:
    """Return a lookup's answers with their members in order."""
    found = await index.lookup(hashes)
    return None if found is None else [sorted(members) for members in found]


@contextlib.asynccontextmanager
async def publishing(registry: Registry, index: BlockIndex) -> AsyncIterator[Publisher]:
    """Run a publisher."""
    publisher = Publisher(registry, index, pod())
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
