"""What a request must be to run in an engine at all: checked once, as it comes in.

Knows bounds; knows nothing of what else runs. Invariant: what passes can run to its end in an engine by itself.
"""

from __future__ import annotations

import itertools

from pagewire.core.cache_quota import MAX_TAG_BYTES
from pagewire.core.errors import InvalidRequest
from pagewire.core.sequence_spec import MAX_PRIORITY, SequenceSpec
from pagewire.engine.limits import Limits

_BEAMS = "use_beam_search"


def check(
    spec: SequenceSpec, limits: Limits, num_blocks: int, num_slots: int, *, begins_only: bool, finds_equals: bool
) -> None:
    """Raise InvalidRequest naming what is wrong with a request, for an engine with `num_blocks` to give.

    Those are the pool's without the pinned ones. Host memory has `num_slots` more, where sequences spill.

    `begins_only`: it is one that computes prompts alone, and holds a prompt's blocks once. `finds_equals`: sequences of
    a request that compute their prompt anew hold its blocks together again.
    """
    spec.sampling.validate(limits.vocab_size)
    if spec.adapter and spec.adapter not in limits.adapters:
        raise InvalidRequest(f"there is no adapter {spec.adapter[:200]!r} here", field="adapter")
    length = len(spec.tokens) + len(spec.output)
    if not spec.tokens:
        raise InvalidRequest("the prompt has no tokens; it needs at least 1", field="prompt")
    if length >= limits.max_model_len:
        raise InvalidRequest(
            f"the prompt has {length} tokens; at most {limits.max_model_len - 1} leave room for an answer",
            field="prompt",
        )
    if spec.sampling.use_beam_search:
        _check_beams(spec, limits, num_blocks, begins_only=begins_only, finds_equals=finds_equals)
    if spec.num_sequences > 1:
        _check_branches(spec, limits, num_blocks, begins_only=begins_only)
    if limits.most_held(length + 1) > num_blocks and not limits.spills:
        raise InvalidRequest(
            f"the prompt has {length} tokens; the KV pool holds {num_blocks * limits.block_size}",
            field="prompt",
        )
    if limits.spills:
        _check_spilling(spec, limits, num_blocks, num_slots)
    known = (*spec.tokens, *spec.output, *itertools.chain.from_iterable(each.output for each in spec.branches))
    if not 0 <= min(known) <= max(known) < limits.vocab_size:
        raise InvalidRequest(f"token ids must be between 0 and {limits.vocab_size - 1}", field="prompt")
    if not -MAX_PRIORITY <= spec.priority <= MAX_PRIORITY:
        raise InvalidRequest(
            f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}, is {spec.priority}", field="priority"
        )
    quota = spec.cache_quota
    if quota is not None and not (1 <= len(quota.tag) <= MAX_TAG_BYTES and 0 <= quota.share <= 1):
        raise InvalidRequest(
            f"cache_quota has a tag of 1 to {MAX_TAG_BYTES} bytes and a share of 0 to 1, not {quota}",
            field="cache_quota",
        )
    if len(spec.output) >= spec.sampling.max_tokens:
        raise InvalidRequest(
            f"max_tokens {spec.sampling.max_tokens} is used up by {len(spec.output)} tokens of output",
            field="max_tokens",
        )


def _check_beams(spec: SequenceSpec, limits: Limits, num_blocks: int, *, begins_only: bool, finds_equals: bool) -> None:
    if begins_only:
        raise InvalidRequest("beams run where their prompt is computed, and nothing decodes here", field=_BEAMS)
    if spec.output:
        raise InvalidRequest("a beam search cannot go on from the output of another", field=_BEAMS)
    width = spec.sampling.num_beams
    if [spec.index, *(each.index for each in spec.branches)] != list(range(width)):
        raise InvalidRequest(f"{width} beams have the indices 0 .. {width - 1}, in this order", field=_BEAMS)
    # A beam that waits for others keeps its blocks, so all must fit at their longest, with one block each to spare;
    # also once all were preempted, from where they have their prompt in common only if its blocks are found: those that
    # left the window are not, nor what is behind them.
    num_prompt = len(spec.tokens)

    def blocks(num_own: int) -> int:
        if finds_equals and not limits.num_passed(num_prompt + num_own):
            return limits.num_forked_blocks(num_prompt, width, num_own) + width
        return width * (limits.most_held(num_prompt + num_own) + 1)

    longest = limits.most_output(num_prompt, spec.sampling.max_tokens)
    needed = blocks(longest)
    if needed > num_blocks:
        is_prompt = blocks(1) > num_blocks
        raise InvalidRequest(
            f"{width} beams of up to {longest} tokens may need {needed} blocks; the KV pool has {num_blocks}",
            field="prompt" if is_prompt else "max_tokens",
        )


def _check_spilling(spec: SequenceSpec, limits: Limits, num_blocks: int, num_slots: int) -> None:
    longest = min(len(spec.tokens) + spec.sampling.max_tokens, limits.max_model_len)
    needed = limits.num_blocks(longest)
    if needed > num_blocks and limits.least_pool > num_blocks:
        raise InvalidRequest(
            f"{longest} tokens do not fit the KV pool, whose {num_blocks} blocks are less than the {limits.least_pool} "
            "that a chunk takes while the rest is in host memory",
            field="prompt",
        )
    if needed > num_blocks + num_slots:
        raise InvalidRequest(
            f"prompt and answer may have {longest} tokens; the KV pool and host memory hold "
            f"{(num_blocks + num_slots) * limits.block_size}",
            field="prompt",
        )


def _check_branches(spec: SequenceSpec, limits: Limits, num_blocks: int, *, begins_only: bool) -> None:
    num_sequences = spec.num_sequences
    if num_sequences > limits.max_num_seqs:
        field = "beam_width" if spec.sampling.beam_width else "n"
        raise InvalidRequest(f"{field} is {num_sequences}; {limits.max_num_seqs} sequences run at once", field=field)
    needed = limits.num_forked_blocks(len(spec.tokens), num_sequences)
    if not begins_only and needed > num_blocks:
        raise InvalidRequest(
            f"{num_sequences} sequences behind the prompt need {needed} blocks; the KV pool has {num_blocks}",
            field="n",
        )
    if begins_only and spec.output:
        raise InvalidRequest("sequences that have begun go on where they decode", field="n")
    outputs = [(spec.index, spec.output), *((each.index, each.output) for each in spec.branches)]
    if len({index for index, _ in outputs}) < num_sequences:
        raise InvalidRequest("the sequences of a request differ in their index", field="n")
    if len({bool(output) for _, output in outputs}) > 1:
        raise InvalidRequest("either all sequences of a request have begun, or none", field="n")
    longest = max(len(output) for _, output in outputs)
    if longest >= spec.sampling.max_tokens or len(spec.tokens) + longest >= limits.max_model_len:
        raise InvalidRequest(f"a sequence has {longest} tokens already, and may have no more", field="max_tokens")
