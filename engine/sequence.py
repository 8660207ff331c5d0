"""One token stream inside the engine: its tokens, how far their KV is computed, and which blocks hold it.

    waiting -> running -> finished              a local run; preempted: running -> waiting
    waiting -> running -> handed_off -> gone    a prefill pod's: the blocks are held until released
    reserved -> joined -> running -> ...        a shipment's: joined waits for a place in the batch, then as above
    running | joined                            one that forks off another: as it stands, in that one's blocks

Knows nothing of pools and budgets. Invariant: `num_computed < num_tokens` while the sequence may run, but for a beam
that waits for the other beams; the KV of its first `num_computed` tokens is in the first ceil(num_computed / B) blocks
of `block_table`, which others may hold too, but for the first `num_gone`, which it holds no more: NO_BLOCK stands for
them. Either nobody sees them any more, or they are copied to the slots of host memory in `spilled`, which are its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile

from pagewire.core.block_hash import BlockHash, chain, extend, max_hit_blocks
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.core.sequence_spec import Branch, SequenceSpec
from pagewire.engine.block import NO_BLOCK, table_of
from pagewire.engine.drafter import Drafter
from pagewire.engine.group import Group
from pagewire.engine.step import Draw, Scoring, fork_name


class State(StrEnum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    RESERVED = "reserved"
    JOINED = "joined"
    HANDED_OFF = "handed_off"


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """A sequence; only the scheduler changes it.

    `name` is what the engine calls it, `index` what its request does. `num_given` tokens it came with: the prompt, and
    the output that was out before. `unforked` are the sequences that fork off it when its prompt is computed, of beams
    those that may. `arrival` numbers requests as they come, `arrived_s` says when. `promised` blocks are reserved in
    the pool for it. The KV of its first `num_saved` tokens was left to the host tier when it was preempted.
    `reported_blocks` of the chain were announced in `ChunkDone`. `num_scored` tokens of the prompt, from the second on,
    had their log probabilities reported, where those were asked for. `adapter` is its number.
    """

    spec: SequenceSpec
    group: Group
    name: str
    index: int
    num_given: int
    arrival: int
    block_size: int
    arrived_s: float = 0.0
    state: State = State.WAITING
    output: list[int] = field(default_factory=list)
    unforked: tuple[Branch, ...] = ()
    num_computed: int = 0
    num_saved: int = 0
    block_table: array[int] = field(default_factory=table_of)
    num_gone: int = 0
    spilled: list[int] = field(default_factory=list)
    promised: int = 0
    hashes: list[BlockHash] = field(default_factory=list)
    num_registered: int = 0
    reported_blocks: int = 0
    num_scored: int = 0
    adapter: int = 0
    drafter: Drafter | None = None  # where somebody drafted for it

    @property
    def request_id(self) -> str:
        """The request that this sequence belongs to."""
        return self.spec.request_id

    @property
    def held(self) -> array[int]:
        """The blocks of its table that are in the pool."""
        return self.block_table[self.num_gone :]

    def let_go(self, num_blocks: int) -> array[int]:
        """Take the first `num_blocks` of those that it holds out of the table; return them, to be released."""
        first, stop = self.num_gone, self.num_gone + num_blocks
        gone = self.block_table[first:stop]
        self.block_table[first:stop] = table_of([NO_BLOCK]) * len(gone)
        self.num_gone = stop
        return gone

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.spec.tokens)

    @property
    def num_seats(self) -> int:
        """Places in the batch that it needs, with those that fork off it."""
        return 1 + len(self.unforked)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output."""
        return len(self.spec.tokens) + len(self.output)

    @property
    def num_left(self) -> int:
        """Tokens to compute before the next one is sampled."""
        computed, saved = self.num_computed, self.num_saved
        return len(self.spec.tokens) + len(self.output) - (computed if computed > saved else saved)

    @property
    def is_decoding(self) -> bool:
        """True when one token is left to compute."""
        return len(self.spec.tokens) + len(self.output) - self.num_computed == 1

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Return tokens `start` .. `stop - 1` of prompt and output."""
        prompt = len(self.spec.tokens)
        if start >= prompt:
            return tuple(self.output[start - prompt : stop - prompt])
        return self.spec.tokens[start:stop] + tuple(self.output[: max(0, stop - prompt)])

    def chain(self, num_blocks: int) -> list[BlockHash]:
        """Return the hashes of the first `num_blocks` blocks, which must be full of known tokens."""
        known, size = len(self.hashes), self.block_size
        if known < num_blocks:
            tokens, parent = self.tokens(known * size, num_blocks * size), self.parent_of(known) or self.spec.root
            self.hashes += chain(parent, tokens, size)
        return self.hashes[:num_blocks]

    def tail_hash(self, num_tokens: int) -> BlockHash | None:
        """Return the hash of the unfilled block that ends the first `num_tokens`, None when they fill all theirs."""
        num_full = num_tokens // self.block_size
        tail = self.tokens(num_full * self.block_size, num_tokens)
        return extend(self.parent_of(num_full) or self.spec.root, tail) if tail else None

    def parent_of(self, depth: int) -> BlockHash | None:
        """Return the hash of the block before that of `depth`, None for the first."""
        return self.chain(depth)[-1] if depth else None

    def hit_chain(self) -> list[BlockHash]:
        """Return the hashes of the blocks that a cache may serve: none whose logits are needed."""
        num_blocks = max_hit_blocks(self.num_tokens, self.block_size)
        if self.num_to_score:
            num_blocks = min(num_blocks, self.num_scored // self.block_size)
        return self.chain(num_blocks)

    @property
    def num_to_score(self) -> int:
        """Tokens of the prompt whose log probabilities are asked for and not reported yet."""
        return 0 if self.spec.sampling.prompt_logprobs is None else self.num_prompt - 1 - self.num_scored

    def sibling(self, branch: Branch) -> Sequence:
        """Return another sequence of its request, with no block and nothing computed."""
        return Sequence(
            spec=self.spec,
            group=self.group,
            name=fork_name(self.request_id, branch.index),
            index=branch.index,
            num_given=self.num_prompt,
            arrival=self.arrival,
            block_size=self.block_size,
            arrived_s=self.arrived_s,
            output=list(branch.output),
            adapter=self.adapter,
            num_scored=self.num_prompt - 1,  # the first says what there is to say of the prompt
        )

    def forked(self, branch: Branch, num_common: int) -> Sequence:
        """Return another sequence of its request, which has the first `num_common` tokens, computed, in its blocks."""
        sibling, num_full = self.sibling(branch), num_common // self.block_size
        sibling.num_computed = num_common
        sibling.block_table = self.block_table[: -(-num_common // self.block_size)]
        sibling.num_gone = self.num_gone
        sibling.hashes = self.hashes[:num_full]
        sibling.num_registered = min(num_full, self.num_registered)
        return sibling

    def num_common_with(self, other: Sequence) -> int:
        """Return how many tokens that a cache may serve begin another one's full blocks as well."""
        theirs = other.chain(other.num_tokens // self.block_size)
        pairs = zip(self.hit_chain(), theirs, strict=False)
        return self.block_size * sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def draw(self, index: int | None = None, drafted: tuple[int, ...] = ()) -> Draw:
        """Return the drawing of the token behind `drafted`; `index` is another's that forks off with it."""
        sampling, search = self.spec.sampling, self.group.search
        reads_tokens = sampling.reads_tokens
        return Draw(
            sampling=sampling,
            index=self.index if index is None else index,
            position=len(self.output) + len(drafted),
            prompt=self.spec.tokens if reads_tokens else (),
            output=(*self.output, *drafted) if reads_tokens else (),
            num_candidates=0 if search is None else search.num_candidates,
        )

    def scoring(self, start: int, stop: int) -> Scoring | None:
        """Return what is to be said of the prompt when tokens `start` .. `stop - 1` are computed, None for nothing."""
        num_top = self.spec.sampling.prompt_logprobs
        if num_top is None:
            return None
        # The row of a token says how likely the next one is.
        first, last = max(start, self.num_scored), min(stop, self.num_prompt - 1)
        if first >= last:
            return None
        return Scoring(first_row=first - start, targets=self.spec.tokens[first + 1 : last + 1], num_top=num_top)


def finish_reason(
    output: list[int], num_prompt: int, sampling: SamplingParams, eos_token_ids: Set[int], max_model_len: int
) -> FinishReason | None:
    """Return why a sequence ends with the last token of `output`, None when it goes on; the one rule of every pod."""
    last = output[-1]
    if last in sampling.stop_token_ids or (not sampling.ignore_eos and last in eos_token_ids):
        return FinishReason.STOP
    if len(output) >= sampling.max_tokens or num_prompt + len(output) >= max_model_len:
        return FinishReason.LENGTH
    return None
