"""The step behind another, made before the tokens of that one are known: the same sequences, a token further.

Works on a scheduler; knows nothing of how steps are computed. Whatever is drawn, the sequences that do not end by their
length go on, so the device need not stand still while the host hears of tokens, tells them and schedules. Invariants:
nothing of a sequence changes but its block table, which covers a token more, so a step that is dropped was never there;
it begins only where nobody else could advance, and preempts nobody.
"""

from __future__ import annotations

from pagewire.engine.limits import Limits
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import Sequence
from pagewire.engine.step import AHEAD, Draw, Grant, Step

_AHEAD = (AHEAD,)


def follow(scheduler: Scheduler, step: Step) -> Step | None:
    """Return the step behind `step`, which computes; None where it hangs on what comes of that one, or none is left."""
    limits, pool = scheduler.limits, scheduler.pool
    if scheduler.policy.hands_off or scheduler.is_alone or scheduler.may_start:
        return None
    if scheduler.speculation is not None:  # behind tokens that are not known nothing is drafted
        return None
    if len(scheduler.running) != len(step.grants):
        return None
    going: list[tuple[Sequence, Grant, Draw]] = []
    missing, somebody_waits = 0, bool(scheduler.joined or scheduler.waiting)
    for grant in step.grants:
        sequence = scheduler.sequences.get(grant.request_id)
        if sequence is None or grant.draw is None or len(sequence.group.members) != 1 or sequence.unforked:
            return None
        if _ends(sequence, limits):
            if somebody_waits:  # for that place
                return None
            continue
        first = _end(grant) // limits.block_size
        if first == len(sequence.block_table):
            missing += 1
        elif not pool.is_writable(sequence.block_table[first]):
            return None
        going.append((sequence, grant, grant.draw))
    room = pool.num_available
    if pool.host.num_slots:  # what is evicted is copied there, which waits for the device
        room = min(room, pool.num_free)
    if not going or missing > room:
        return None
    return Step(grants=tuple([_further(scheduler, *each) for each in going]))


def _ends(sequence: Sequence, limits: Limits) -> bool:
    """Return whether the token that is being drawn is the last, whichever it is."""
    num_output = len(sequence.output) + 1
    return num_output >= sequence.spec.sampling.max_tokens or sequence.num_prompt + num_output >= limits.max_model_len


def _end(grant: Grant) -> int:
    return grant.start + len(grant.tokens)


def _further(scheduler: Scheduler, sequence: Sequence, grant: Grant, draw: Draw) -> Grant:
    start = _end(grant)
    if start % scheduler.limits.block_size == 0:  # into the next block
        first = start // scheduler.limits.block_size
        if first == len(sequence.block_table):
            sequence.block_table.extend(scheduler.pool.allocate(1))
        block_ids = sequence.block_table[: first + 1]
    else:
        block_ids = grant.block_ids
    return Grant(
        request_id=grant.request_id,
        tokens=_AHEAD,
        start=start,
        block_ids=block_ids,
        draw=Draw(sampling=draw.sampling, index=draw.index, position=draw.position + 1),
        spilled=grant.spilled,
        adapter=grant.adapter,
    )
