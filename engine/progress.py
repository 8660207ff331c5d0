"""What a computed grant changes: the sequence moves on, full blocks become known to the cache, and others hear of it.

Pure bookkeeping after a step; knows nothing of how it was computed. Invariant: only full blocks whose KV is there are
registered; the partial tail block stays private.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pagewire.core.engine_messages import ChunkDone, SequenceEnd
from pagewire.core.errors import ErrorInfo, InvalidRequest
from pagewire.core.sampling import FinishReason
from pagewire.core.sequence_spec import Branch, SequenceSpec
from pagewire.core.token_record import TokenRecord
from pagewire.engine import departed
from pagewire.engine.beam_search import BeamSearch, Extension, Hypothesis
from pagewire.engine.group import Group
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import Sequence, finish_reason
from pagewire.engine.step import Computed, Grant

_NOTHING = Computed()


@dataclass(slots=True, kw_only=True)  # made for every token, as what is in `step`
class Progress:
    """What the outside is told of one grant after its step."""

    records: tuple[TokenRecord, ...] = ()
    chunk: ChunkDone | None = None
    end: SequenceEnd | None = None


def commit(scheduler: Scheduler, sequence: Sequence, grant: Grant, computed: Mapping[str, Computed]) -> Progress:
    """Account for a computed grant, the tokens that it sampled if it drew any, and the prompt's scores.

    `computed` is by the names of the sequences, and of the checks; what is not in it was not asked for.
    """
    own, search = computed.get(sequence.name, _NOTHING), sequence.group.search
    if grant.checks:
        return _take_drafted(scheduler, sequence, grant, computed)
    _advance(scheduler, sequence, grant.start + len(grant.tokens), own)
    if search is not None and own.candidates is not None:
        search.hear(sequence.index, own.candidates)
        return _advance_beams(scheduler, sequence, search, own)
    if own.token is None:
        scores = _record(sequence.spec, sequence.index, len(sequence.output), own)
        chunk = _chunk(scheduler, sequence, is_last=False, ships=True) if scheduler.policy.hands_off else None
        return Progress(records=(scores,) if scores.prompt_logprobs else (), chunk=chunk)
    if scheduler.policy.hands_off:
        return _hand_off(scheduler, sequence, grant, computed)
    forked = scheduler.fork(sequence) if sequence.unforked else ()  # first: a token may end the one that they fork off
    first = _take_token(scheduler, sequence, own)
    records = (first, *[_take_token(scheduler, each, computed[each.name]) for each in forked])
    return Progress(records=records, end=None if sequence.group.members else end_of(sequence.group))


def _advance(scheduler: Scheduler, sequence: Sequence, stop: int, computed: Computed) -> None:
    if sequence.num_computed < sequence.num_given:
        sequence.group.computed_tokens += min(stop, sequence.num_given) - sequence.num_computed
        sequence.group.num_chunks += 1
    sequence.num_computed = stop
    register_full_blocks(scheduler, sequence)
    if scheduler.limits.window:
        departed.pass_blocks(scheduler.pool, scheduler.limits, sequence)
    sequence.num_scored += len(computed.prompt_logprobs)


def _advance_beams(scheduler: Scheduler, sequence: Sequence, search: BeamSearch, computed: Computed) -> Progress:
    """Continue all beams once the last of them is heard, or end them and say what they found."""
    group = sequence.group
    scores = _record(sequence.spec, sequence.index, 0, computed)
    records = (scores,) if scores.prompt_logprobs else ()
    if any(each.num_computed < each.num_tokens for each in group.members):
        return Progress(records=records)
    beams = {each.index: each for each in group.members}
    extensions = search.advance({index: each.output for index, each in beams.items()})
    if extensions:
        _extend(scheduler, beams, extensions, search.width)
        going_on = TokenRecord(request_id=group.request_id, index=0, position=0, tokens=())
        return Progress(records=records or (going_on,))
    scheduler.remove_request(group.request_id)
    found = tuple(_found(sequence.spec, index, each) for index, each in enumerate(search.results()))
    error = None if found else ErrorInfo.of(InvalidRequest("no beam has a token that is not banned", field="sampling"))
    return Progress(records=records + found, end=end_of(group, error))


def _extend(scheduler: Scheduler, beams: Mapping[int, Sequence], extensions: Iterable[Extension], width: int) -> None:
    """Let beams go on: those without a continuation are dropped, those with several fork."""
    going = {each.index: each for each in extensions}
    parents = {each.parent for each in extensions}
    for index, beam in beams.items():
        if index not in parents:
            scheduler.remove(beam)
    for index, each in going.items():
        if index != each.parent:
            parent = beams[each.parent]
            scheduler.fork_off(parent, Branch(index=index, output=(*parent.output, each.token)))
    for index in parents:
        beams[index].output.append(going[index].token)
        beams[index].unforked = ()
    # Where fewer tokens are possible than there are beams, the others may yet come, and keep their places.
    beams[min(parents)].unforked = tuple(Branch(index=index) for index in range(width) if index not in going)


def _found(spec: SequenceSpec, index: int, hypothesis: Hypothesis) -> TokenRecord:
    return TokenRecord(
        request_id=spec.request_id,
        index=index,
        position=0,
        tokens=hypothesis.tokens,
        finish_reason=hypothesis.finish_reason,
        cumulative_logprob=hypothesis.total,
        score=hypothesis.score,
    )


def _take_token(scheduler: Scheduler, sequence: Sequence, computed: Computed) -> TokenRecord:
    position, token = len(sequence.output), computed.token
    assert token is not None, "a sequence that draws is given a token"
    sequence.output.append(token)
    reason = _reason(scheduler, sequence, sequence.output)
    if reason is not None:
        scheduler.end(sequence)
    return _record(sequence.spec, sequence.index, position, computed, reason)


def _take_drafted(scheduler: Scheduler, sequence: Sequence, grant: Grant, computed: Mapping[str, Computed]) -> Progress:
    """Take the token of a decode, and those behind it as long as each was drawn behind what was drafted rightly.

    The KV of a draft that was not is written over by the next step's.
    """
    position, reason = len(sequence.output), None
    taken: list[Computed] = []  # of which there is one at least
    num_right, has_wrong = 0, False
    for name, drafted in zip(grant.draws(), (*grant.drafted, None), strict=True):
        drawn = computed.get(name, _NOTHING)
        if drawn.token is None:  # the step failed, and was tried without the draft
            break
        taken.append(drawn)
        sequence.output.append(drawn.token)
        reason = _reason(scheduler, sequence, sequence.output)
        has_wrong = drafted not in (drawn.token, None)
        num_right += drawn.token == drafted
        if reason is not None or drawn.token != drafted:
            break
    assert scheduler.speculation is not None, "somebody drafted"
    if len(computed.keys() & grant.draws().keys()) > 1:
        scheduler.speculation.hear(sequence, len(grant.checks), num_right, has_wrong=has_wrong)
    _advance(scheduler, sequence, grant.start + len(taken), _NOTHING)
    scheduler.trim(sequence)
    if reason is not None:
        scheduler.end(sequence)
    record = TokenRecord(
        request_id=sequence.request_id,
        index=sequence.index,
        position=position,
        finish_reason=reason,
        tokens=tuple([each.token for each in taken if each.token is not None]),
        logprobs=tuple([each.logprobs for each in taken if each.logprobs is not None]),
    )
    return Progress(records=(record,), end=None if sequence.group.members else end_of(sequence.group))


def _hand_off(scheduler: Scheduler, sequence: Sequence, grant: Grant, computed: Mapping[str, Computed]) -> Progress:
    """Say the first tokens of all sequences, which fork where they go on."""
    indices = [sequence.index, *(branch.index for branch in sequence.unforked)]
    first = [computed[name] for name in grant.draws()]
    tokens = [each.token for each in first if each.token is not None]
    reasons = [_reason(scheduler, sequence, [*sequence.output, token]) for token in tokens]
    records = [
        _record(sequence.spec, index, len(sequence.output), each, reason)
        for index, each, reason in zip(indices, first, reasons, strict=True)
    ]
    goes_on = None in reasons
    sequence.output += records[0].tokens
    # A request that its first tokens end ships nothing more; but a group of its layers may be on its way, so that its
    # blocks are held until whoever ships says that nobody reads them any more, as all others are.
    chunk = _chunk(scheduler, sequence, is_last=True, ships=goes_on)
    scheduler.hand_off(sequence)
    return Progress(records=tuple(records), chunk=chunk, end=None if goes_on else end_of(sequence.group))


def _reason(scheduler: Scheduler, sequence: Sequence, output: list[int]) -> FinishReason | None:
    limits, sampling = scheduler.limits, sequence.spec.sampling
    return finish_reason(output, sequence.num_prompt, sampling, limits.eos_token_ids, limits.max_model_len)


def _record(
    spec: SequenceSpec, index: int, position: int, computed: Computed, reason: FinishReason | None = None
) -> TokenRecord:
    return TokenRecord(
        request_id=spec.request_id,
        index=index,
        position=position,
        finish_reason=reason,
        tokens=() if computed.token is None else (computed.token,),
        logprobs=() if computed.logprobs is None else (computed.logprobs,),
        prompt_logprobs=computed.prompt_logprobs,
    )


def group_done(sequence: Sequence, grant: Grant, group: int) -> ChunkDone:
    """Return what is told of a sealed grant that still computes: one group of layers of its sequence's last blocks."""
    first = sequence.reported_blocks
    return ChunkDone(
        request_id=sequence.request_id,
        first_block=first,
        block_ids=tuple(grant.block_ids[first:]),
        cached_tokens=sequence.group.cached_tokens or 0,
        computed_tokens=sequence.group.computed_tokens,
        fetched_tokens=sequence.group.fetched_tokens,
        is_last=False,
        group=group,
    )


def end_of(group: Group, error: ErrorInfo | None = None) -> SequenceEnd:
    """Return the end of a request that ran, `error` where that was what ended it."""
    return SequenceEnd(
        request_id=group.request_id,
        cached_tokens=group.cached_tokens or 0,
        computed_tokens=group.computed_tokens,
        chunks=group.num_chunks,
        fetched_tokens=group.fetched_tokens,
        error=error,
    )


def register_full_blocks(scheduler: Scheduler, sequence: Sequence) -> None:
    """Let the cache know the blocks that became full of computed tokens."""
    num_full = sequence.num_computed // scheduler.limits.block_size
    if num_full == sequence.num_registered:
        return
    first = sequence.num_registered
    if not _register(scheduler, sequence, first, num_full):
        # The chain's beginning stood for another sequence's block, which left the cache; now our own stands for it,
        # where we still have it.
        first = 0
        _register(scheduler, sequence, first, num_full)
    if sequence.group.search is not None:
        _hold_equals(scheduler, sequence, first, num_full)


def _register(scheduler: Scheduler, sequence: Sequence, first: int, end: int) -> bool:
    first = max(first, sequence.num_gone)
    if first < end:
        reached = scheduler.pool.register(sequence.block_table, sequence.chain(end), first, sequence.spec.cache_quota)
        if reached > first:
            sequence.num_registered = reached
        return reached == end
    return True


def _hold_equals(scheduler: Scheduler, sequence: Sequence, first: int, end: int) -> None:
    """Have a beam hold the blocks that the cache knows in the place of its own with the same contents.

    They are there where somebody else has computed the same meanwhile; those are what other beams will find, and beams
    were let in because they hold what they have in common once.
    """
    table, first = sequence.block_table, max(first, sequence.num_gone)
    for depth, block_hash in enumerate(sequence.chain(end)[first:], first):
        table[depth] = scheduler.pool.hold_equal(table[depth], block_hash)


def _chunk(scheduler: Scheduler, sequence: Sequence, *, is_last: bool, ships: bool) -> ChunkDone | None:
    limits, first = scheduler.limits, sequence.reported_blocks
    final = limits.num_blocks(sequence.num_computed) if is_last else sequence.num_computed // limits.block_size
    block_ids = tuple(sequence.block_table[first:final]) if ships else ()
    if not block_ids and not is_last:
        return None
    sequence.reported_blocks = max(first, final)
    return ChunkDone(
        request_id=sequence.request_id,
        first_block=first,
        block_ids=block_ids,
        cached_tokens=sequence.group.cached_tokens or 0,
        computed_tokens=sequence.group.computed_tokens,
        fetched_tokens=sequence.group.fetched_tokens,
        is_last=is_last,
    )
