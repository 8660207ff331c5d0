"""A model whose KV can be checked: what stands in a slot follows from all tokens up to it, a token from all slots.

Each slot holds 16 bytes, the hash of the slot before it, as it stands in the pool, and of its token; a token is drawn
from the hash of all slots that it sees. So one block that is another's, stale, torn or missing changes all that is said
from then on, as it would with a real model. Two layers of K and V have a part of each slot: a block travels in groups.

Knows steps and memory; nothing of pods. `answer` says what a single process would, from nothing but the request.
Invariant: the same tokens give the same KV and the same next token, in any blocks, chunks and batches.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from pagewire.core.kv_layout import KVLayout
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.engine.batch_numbers import draw_rows
from pagewire.engine.moves import Move, Way
from pagewire.engine.runner import OnGroup
from pagewire.engine.step import Computed, Grant, Step

BLOCK = 16
LAYERS = 2
LAYOUT = KVLayout(num_layers=LAYERS, num_kv_heads=1, head_dim=1, block_size=BLOCK, dtype="float32")
PARTS = 2 * LAYERS  # of a slot: K and V in each layer
SPAN = BLOCK * 4  # bytes of one part of all slots of a block
BLOCK_BYTES = LAYOUT.block_bytes
NO_KV = bytes(16)
FIRST_TOKEN = 3  # the ids before it are special
POISON = 2  # no step that computes it succeeds
VOCAB_SIZE = 320


class Memory:
    """Blocks of KV, by slot."""

    def __init__(self, num_blocks: int) -> None:
        self.bytes = bytearray(num_blocks * BLOCK_BYTES)

    def slot(self, block_id: int, place: int) -> bytes:
        """Return what stands in a slot."""
        at = block_id * BLOCK_BYTES + place * 4
        data = self.bytes
        return b"".join([data[part : part + 4] for part in range(at, at + PARTS * SPAN, SPAN)])

    def write(self, block_id: int, place: int, kv: bytes) -> None:
        """Write a slot."""
        at = block_id * BLOCK_BYTES + place * 4
        for part in range(PARTS):
            self.bytes[at + part * SPAN : at + part * SPAN + 4] = kv[part * 4 : part * 4 + 4]

    def move(self, moves: Sequence[Move]) -> None:
        """See `engine_loop.Mover`; there is no host memory."""
        for move in moves:
            assert move.way is Way.WITHIN, "there is no host memory"
            source, target = move.source * BLOCK_BYTES, move.target * BLOCK_BYTES
            self.bytes[target : target + BLOCK_BYTES] = self.bytes[source : source + BLOCK_BYTES]

    def zero_behind(self, block_id: int, used: int) -> None:
        """Leave nothing in the slots from `used` on."""
        for part in range(PARTS):
            at = block_id * BLOCK_BYTES + part * SPAN
            self.bytes[at + used * 4 : at + SPAN] = bytes(SPAN - used * 4)

    def seen(self, block_ids: Sequence[int], num_tokens: int) -> bytes:
        """Return the hash of the first `num_tokens` slots of a table."""
        data = self.bytes
        num_full, used = divmod(num_tokens, BLOCK)
        state = blake2b(digest_size=16)
        for block_id in block_ids[:num_full]:
            state.update(data[block_id * BLOCK_BYTES : (block_id + 1) * BLOCK_BYTES])
        if used:
            at = block_ids[num_full] * BLOCK_BYTES
            for part in range(PARTS):
                state.update(data[at + part * SPAN : at + part * SPAN + used * 4])
        return state.digest()


def kv_of(before: bytes, token: int) -> bytes:
    """Return what stands in the slot of `token` behind a slot."""
    return blake2b(before + token.to_bytes(4, "little"), digest_size=16).digest()


def compute(memory: Memory, tokens: Sequence[int], start: int, block_ids: Sequence[int]) -> None:
    """Write the KV of `tokens`, which stand from `start` on, after what stands before them in memory."""
    before = memory.slot(block_ids[(start - 1) // BLOCK], (start - 1) % BLOCK) if start else NO_KV
    for at, token in enumerate(tokens, start):
        before = kv_of(before, token)
        memory.write(block_ids[at // BLOCK], at % BLOCK, before)


def drawn(seen: bytes, sampling: SamplingParams, index: int, position: int) -> int:
    """Return the token that follows what was seen."""
    chance = f"{sampling.seed}/{index}/{position}" if sampling.temperature else ""
    number = int.from_bytes(blake2b(seen + chance.encode(), digest_size=4).digest(), "little")
    return FIRST_TOKEN + number % (VOCAB_SIZE - FIRST_TOKEN)


class CheckableModel:
    """A `Runner` on one pod's memory."""

    def __init__(self, num_blocks: int) -> None:
        self.memory = Memory(num_blocks)
        self.num_recaptures = 0

    def rehearse(self) -> None:
        """Compute nothing, for nobody."""

    def run(self, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        """Write the KV of each grant and draw what it is to draw. Raises RuntimeError over a poisonous token."""
        if any(POISON in grant.tokens for grant in step.grants):
            raise RuntimeError("poison")
        for grant in step.grants:
            compute(self.memory, grant.tokens, grant.start, grant.block_ids)
        sealed = [grant for grant in step.grants if grant.seal]
        for grant in sealed:
            self._seal(grant)
        if sealed:
            for group in range(LAYERS):
                on_group(step, group)
        return {name: computed for grant in step.grants for name, computed in self._drawn(grant)}

    def _seal(self, grant: Grant) -> None:
        if used := (grant.start + len(grant.tokens)) % BLOCK:
            self.memory.zero_behind(grant.block_ids[-1], used)

    def _drawn(self, grant: Grant) -> Iterator[tuple[str, Computed]]:
        for row, (name, draw) in zip(draw_rows(grant, len(grant.tokens)), grant.draws().items(), strict=True):
            seen = self.memory.seen(grant.block_ids, grant.start + row + 1)
            yield name, Computed(token=drawn(seen, draw.sampling, draw.index, draw.position))


@functools.lru_cache(maxsize=256)
def answer(
    prompt: tuple[int, ...], max_tokens: int, stop_token_ids: tuple[int, ...], seed: int, is_greedy: bool, index: int
) -> tuple[tuple[int, ...], FinishReason]:
    """Return what one process, alone, says to a prompt, and why it ends."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0 if is_greedy else 1.0, seed=seed)
    table = range((len(prompt) + max_tokens) // BLOCK + 1)
    memory = Memory(len(table))
    compute(memory, prompt, 0, table)
    output: list[int] = []
    while True:
        num_tokens = len(prompt) + len(output)
        token = drawn(memory.seen(table, num_tokens), sampling, index, len(output))
        output.append(token)
        if token in stop_token_ids:
            return tuple(output), FinishReason.STOP
        if len(output) == max_tokens:
            return tuple(output), FinishReason.LENGTH
        compute(memory, (token,), num_tokens, table)
