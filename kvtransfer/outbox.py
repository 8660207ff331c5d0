"""What a sender has still to send on one stream, and whose turn it is.

Shipments take turns, message by message, within the credit that the receiver gave. Knows indices, ids and sizes;
reads no memory and no clock. Invariant: bytes in flight never exceed the window, and those of one shipment its half of
it, except that a message larger than that travels alone.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from pagewire.kvtransfer.transport import Flow, ShipmentKey
from pagewire.kvtransfer.wire import Credit

MAX_FENCED_KEYS = 4096


class Batch(NamedTuple):
    """The blocks of the next message: indices run from `first_block` on, `stride` apart."""

    key: ShipmentKey
    first_block: int
    block_ids: tuple[int, ...]
    stride: int = 1

    @property
    def indices(self) -> range:
        """Those of the blocks, in their order."""
        return range(self.first_block, self.first_block + len(self.block_ids) * self.stride, self.stride)


class Outbox:
    """The queue of one stream."""

    def __init__(self, block_bytes: int, flow: Flow) -> None:
        self._block_bytes = block_bytes
        self._window_bytes = flow.window_bytes
        self._blocks_per_message = max(1, flow.message_bytes // block_bytes)
        self._queues: dict[ShipmentKey, deque[tuple[int, int]]] = {}  # in the order of turns
        self._in_flight: dict[ShipmentKey, int] = {}
        self._in_flight_bytes = 0
        self._fenced: dict[ShipmentKey, None] = {}  # the oldest first

    @property
    def in_flight_bytes(self) -> int:
        """Bytes that were taken and not credited yet."""
        return self._in_flight_bytes

    def in_flight(self, key: ShipmentKey) -> int:
        """Return how many bytes of `key` were taken and not credited yet."""
        return self._in_flight.get(key, 0)

    @property
    def num_queued(self) -> int:
        """How many blocks wait for their turn."""
        return sum(len(queue) for queue in self._queues.values())

    def queued(self) -> dict[ShipmentKey, int]:
        """Return how many blocks of each key wait for their turn, where any do."""
        return {key: len(queue) for key, queue in self._queues.items()}

    def keys(self) -> tuple[ShipmentKey, ...]:
        """Return what is queued or in flight."""
        return tuple(dict.fromkeys((*self._queues, *self._in_flight)))

    def is_fenced(self, key: ShipmentKey) -> bool:
        """Return whether `key` was purged: it takes nothing more."""
        return key in self._fenced

    def add(self, key: ShipmentKey, blocks: list[tuple[int, int]]) -> None:
        """Queue (index, block id) pairs behind those of the same key."""
        if blocks:
            self._queues.setdefault(key, deque()).extend(blocks)

    def purge(self, key: ShipmentKey) -> int:
        """Forget what is queued of `key`, for good; returns how many blocks that were."""
        self._fenced.pop(key, None)
        self._fenced[key] = None
        if len(self._fenced) > MAX_FENCED_KEYS:
            del self._fenced[next(iter(self._fenced))]
        return len(self._queues.pop(key, ()))

    def take(self) -> Batch | None:
        """Take the next message's blocks off the queue; None when there is nothing, or no credit for it."""
        if self._in_flight_bytes and self._room(self._in_flight_bytes, self._window_bytes) < 1:
            return None
        for key, queue in self._queues.items():
            most = self._most_blocks(key)
            run = self._run(queue, most + 1)
            if len(run) > most:
                continue
            num_bytes = len(run) * self._block_bytes
            for _ in run:
                queue.popleft()
            del self._queues[key]
            if queue:
                self._queues[key] = queue  # behind the others: its turn is over
            self._in_flight[key] = self._in_flight.get(key, 0) + num_bytes
            self._in_flight_bytes += num_bytes
            stride = run[1][0] - run[0][0] if len(run) > 1 else 1
            return Batch(key, run[0][0], tuple([block_id for _, block_id in run]), stride)
        return None

    def credit(self, credit: Credit) -> None:
        """The receiver disposed of bytes. More than were sent, as for a message that came twice, counts for nothing."""
        in_flight = self._in_flight.get(credit.key, 0)
        credited = min(in_flight, credit.num_bytes)
        self._in_flight_bytes -= credited
        if in_flight > credited:
            self._in_flight[credit.key] = in_flight - credited
        else:
            self._in_flight.pop(credit.key, None)

    def _run(self, queue: deque[tuple[int, int]], most: int) -> list[tuple[int, int]]:
        """Return the blocks of the next message, or the first `most` of them: whether they are so many is asked."""
        run = [queue[0]]
        for at in range(1, min(len(queue), self._blocks_per_message, most)):
            stride = queue[at][0] - run[-1][0]
            if stride < 1 or (at > 1 and stride != run[1][0] - run[0][0]):
                break
            run.append(queue[at])
        return run

    def _most_blocks(self, key: ShipmentKey) -> int:
        """Return how many blocks of `key` there is credit for, and within its share."""
        if not self._in_flight_bytes:
            return self._blocks_per_message
        of_window = self._room(self._in_flight_bytes, self._window_bytes)
        return min(of_window, self._room(self.in_flight(key), self._window_bytes // 2))

    def _room(self, in_flight_bytes: int, of_bytes: int) -> int:
        return (of_bytes - in_flight_bytes) // self._block_bytes
