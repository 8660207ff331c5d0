"""A chunk that has a stream to itself, done by arithmetic in place of a queue: the simulator's fast way.

While nothing else is queued or in flight, `Outbox` could come to one end only: messages of as many blocks as fit, each
as soon as half the window bears it. A test runs both ways and compares every moment. Pure.
"""

from __future__ import annotations

from pagewire.slo.costs.cost_model import LinkLaw


def messages(num_blocks: int, block_bytes: int, law: LinkLaw, at_s: float, free_s: float) -> list[tuple[float, int]]:
    """Return when each message of a chunk is off the stream, and how many blocks it has. It arrives a latency later.

    It is queued at `at_s`; what was sent before is off the stream at `free_s`.
    """
    per_message, most_bytes = max(1, law.message_bytes // block_bytes), law.window_bytes // 2
    latency_s, in_flight, credited = law.latency_s, 0, 0
    found: list[tuple[float, int]] = []
    while num_blocks:
        count = min(num_blocks, per_message)
        num_bytes = count * block_bytes
        while in_flight and in_flight + num_bytes > most_bytes:
            off_s, blocks = found[credited]
            credited += 1
            in_flight -= blocks * block_bytes
            at_s = off_s + latency_s + latency_s
        free_s = max(free_s, at_s) + num_bytes / law.bytes_per_s
        found.append((free_s, count))
        in_flight += num_bytes
        num_blocks -= count
    return found
