"""The carrier between two pods of one process: the taker copies straight out of the source's pool.

Who composes pods in one process, as tests do, gives each the offer of the same `LocalPools`; a pod that `pagewire`
starts is alone in its own. A pool is found by the one-time token on its outlet's card. Knows nothing of shipments.
Invariant: what is found is there as long as its outlet is open.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, MutableMapping, Sequence

from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.carrier import Carrier, Move
from pagewire.kvtransfer.offers import Offer
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.transport import BlockMemory
from pagewire.kvtransfer.wire import Ready

NAME = "local"
TOKEN_BYTES = 32


class LocalPools:
    """Where pods of one process find each other's pools."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(16)
        self._pools: dict[bytes, BlockMemory] = {}  # by the tokens of open outlets

    def offer(self) -> Offer:
        """Return what each of the pods offers."""
        carrier = Carrier(
            name=NAME,
            outlet=lambda memory, _taker_id: LocalOutlet(self._pools, memory),
            inlet=lambda memory, _source_id: LocalInlet(self._pools, memory),
        )
        return Offer(carrier, self._token)


class LocalOutlet:
    """The `Outlet` of a pool that lies in the taker's process too."""

    line = None
    announces = True
    lends = True
    checksums = True

    def __init__(self, pools: MutableMapping[bytes, BlockMemory], memory: BlockMemory) -> None:
        self._pools = pools
        self._memory = memory
        self._token = secrets.token_bytes(TOKEN_BYTES)

    async def open(self, card: bytes) -> bytes:
        """Let the one that holds our card find the pool."""
        self._pools[self._token] = self._memory
        return self._token

    def tag(self, batch: Batch) -> int:
        """There is nothing to know."""
        return 0

    async def carry(self, batch: Batch) -> None:
        """The taker copies."""

    def close(self) -> None:
        """Be found no more. The taker's stream ends with ours."""
        self._pools.pop(self._token, None)


class LocalInlet:
    """The `Inlet` that copies out of the source's pool."""

    line = None
    card = b""
    place_bytes = 4 << 20
    max_places = 1
    needs_checksums = True

    def __init__(self, pools: Mapping[bytes, BlockMemory], memory: BlockMemory) -> None:
        self._pools = pools
        self._memory = memory
        self._source: BlockMemory | None = None

    async def open(self, card: bytes) -> None:
        """Find the pool. Raises TransferFailed."""
        self._source = self._pools.get(card)
        if self._source is None:
            raise TransferFailed("no pool of these goes by that card")

    async def arrived(self, ready: Ready) -> None:
        """The source's blocks stay as they are until they are credited."""

    async def place(self, ready: Ready, moves: Sequence[Move]) -> Sequence[int]:
        """Copy from the source's pool into ours. Raises IndexError on a block outside either."""
        if self._source is None:
            raise TransferFailed("the stream is closed")
        return [
            self._memory.write_summed(block_id, self._source.read(ready.block_ids[position]), ready.seed(position))
            for position, block_id in moves
        ]

    def done(self, ready: Ready) -> None:
        """Nothing was staged."""

    def close(self) -> None:
        """Forget the pool."""
        self._source = None
