"""Steps in which everybody decodes, done by arithmetic in place of a schedule: the simulator's fast way.

A step is plain when nobody waits, each sequence of it computes one token by itself, and the pool has every block that
these need. Then `Scheduler.schedule` and `progress.commit` could come to one end only, which `begin` and `end` come to
without grants, tables and records; a test runs both ways and compares every moment. Anything else is left alone:
`begin` returns None and has changed nothing. Works on the product's scheduler and pool; knows no time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Several

from pagewire.engine import progress
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.scheduling_policy import FirstComeFirstServed
from pagewire.engine.sequence import Sequence, State


def begin(scheduler: Scheduler) -> list[Sequence] | None:
    """Return the sequences that decode in the next step, with their blocks; None where the step is not plain."""
    limits, running = scheduler.limits, scheduler.running
    if scheduler.waiting or scheduler.policy.hands_off or limits.window or limits.spills:
        return None
    joining = scheduler.joined[: max(0, limits.max_num_seqs - len(running))] if scheduler.joined else []
    if not (running or joining):
        return None
    if not isinstance(scheduler.scheduling, FirstComeFirstServed):
        running.sort(key=scheduler.rank)
    size, growing = limits.block_size, []
    for sequence in (*running, *joining):
        num_computed = sequence.num_computed
        if not sequence.output or num_computed + 1 != len(sequence.spec.tokens) + len(sequence.output):
            return None
        if num_computed >= size * len(sequence.block_table):
            growing.append(sequence)
    if len(growing) > scheduler.pool.num_available or any(not _is_alone(each) for each in joining):
        return None
    for sequence in joining:
        scheduler.joined.remove(sequence)
        sequence.state = State.RUNNING
    # Who runs takes blocks before who joins, as in a schedule.
    for sequence in growing:
        sequence.block_table.extend(scheduler.pool.allocate(1))
    batch = [*running, *joining]
    for sequence in joining:
        insort(running, sequence, key=scheduler.rank)
    return batch


def most_steps(scheduler: Scheduler, batch: Several[Sequence]) -> int:
    """Return how many steps in a row the batch of a plain one may compute before anything but a token comes of one.

    With the last of them a sequence ends, or fills its block.
    """
    size, longest = scheduler.limits.block_size, scheduler.limits.max_model_len
    most = size
    for sequence in batch:
        spec, num_output = sequence.spec, len(sequence.output)
        left = min(spec.sampling.max_tokens, longest - len(spec.tokens)) - num_output
        most = min(most, left, size - sequence.num_computed % size)
        if most <= 1:
            return 1
    return most


def advance(batch: Several[Sequence], num_steps: int) -> None:
    """Account for so many computed steps, with none of which a sequence ends or fills its block."""
    for sequence in batch:
        sequence.num_computed += num_steps
        sequence.output += sequence.output[:1] * num_steps


def end(scheduler: Scheduler, batch: Several[Sequence]) -> list[Sequence]:
    """Account for one computed step; return those that ended with it."""
    size, longest, ended = scheduler.limits.block_size, scheduler.limits.max_model_len, []
    for sequence in batch:
        spec, output = sequence.spec, sequence.output
        sequence.num_computed += 1
        if sequence.num_computed % size == 0:
            progress.register_full_blocks(scheduler, sequence)
        output.append(output[0])
        if len(output) >= spec.sampling.max_tokens or len(spec.tokens) + len(output) >= longest:
            scheduler.remove(sequence)
            ended.append(sequence)
    return ended


def _is_alone(sequence: Sequence) -> bool:
    return not sequence.unforked and sequence.group.search is None and sequence.spec.sampling.prompt_logprobs is None
