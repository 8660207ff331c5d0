"""Sequences that no scheduler knows, in the state that a test wants, and a small scheduler, stepped token by token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine_runs import ROOT, greedy, spec

from pagewire.core.block_hash import chain
from pagewire.core.engine_messages import Join
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine import progress, reservation
from pagewire.engine.block import table_of
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.group import Group
from pagewire.engine.limits import Limits
from pagewire.engine.preemption import Preemption, PreemptionMode
from pagewire.engine.progress import Progress
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.scheduling_policy import policy_named
from pagewire.engine.sequence import Sequence
from pagewire.engine.step import Computed, Grant


def limits(**changes: Any) -> Limits:
    """Return bounds with blocks of 4 tokens and chunks of 6."""
    defaults = {
        "max_num_batched_tokens": 12, "max_num_seqs": 4, "chunk_size": 6, "block_size": 4, "max_model_len": 40,
        "vocab_size": 100,
    }  # fmt: skip
    return Limits(**{**defaults, **changes})


def lone_sequence(
    tokens: Iterable[int],
    sampling: SamplingParams | None = None,
    *,
    output: Iterable[int] = (),
    group: Group | None = None,
    index: int = 0,
    block_table: Iterable[int] = (),
    **state: Any,
) -> Sequence:
    """Return the sequence of request "r" with blocks of 4 tokens; `state` is of its other fields."""
    asked = spec("r", tokens, sampling or greedy(20))
    sequence = Sequence(
        spec=asked, group=group or Group(request_id="r"), name="r", index=index, num_given=len(asked.tokens),
        arrival=7, block_size=4, arrived_s=2.5, output=list(output), block_table=table_of(block_table), **state,
    )  # fmt: skip
    sequence.group.members.append(sequence)
    return sequence


def small_scheduler(
    num_blocks: int = 20,
    role: Role = Role.DECODE,
    *,
    num_slots: int = 0,
    scheduling: str = "fcfs",
    preemption: PreemptionMode = PreemptionMode.AUTO,
    **bounds: Any,
) -> Scheduler:
    """Return an idle scheduler with `limits(**bounds)`."""
    pool = BlockPool(num_blocks, num_slots)
    return Scheduler(pool, limits(**bounds), policy_of(role), policy_named(scheduling), Preemption(preemption))


def warm(scheduler: Scheduler, tokens: Iterable[int]) -> list[int]:
    """Have the cache know the full blocks of tokens; return them, which nobody holds."""
    names = chain(ROOT, tuple(tokens), scheduler.limits.block_size)
    blocks = scheduler.pool.allocate(len(names))
    scheduler.pool.register(blocks, names)
    scheduler.pool.release(blocks)
    return blocks


def occupy(scheduler: Scheduler, num_blocks: int) -> None:
    """Have somebody else hold so many blocks."""
    scheduler.holds[f"hold {len(scheduler.holds)}"] = scheduler.pool.allocate(num_blocks)


def granted(scheduler: Scheduler, max_prefill_tokens: int | None = None) -> list[Grant]:
    """Return the grants of the next step, none when nothing can advance."""
    step = scheduler.schedule(max_prefill_tokens)
    scheduler.pool.check()
    assert scheduler.pool.num_orphaned(scheduler.tables()) == 0
    assert step is None or step.grants
    return [] if step is None else list(step.grants)


def commit(
    scheduler: Scheduler, grants: Iterable[Grant], computed: Mapping[str, Computed] | None = None
) -> list[Progress]:
    """Account for grants; where nothing else is said each draw is of token 50."""
    done = []
    for grant in grants:
        found = {name: Computed(token=50) for name in grant.draws()} if computed is None else computed
        done.append(progress.commit(scheduler, scheduler.sequences[grant.request_id], grant, found))
    scheduler.pool.check()
    return done


def stepped(scheduler: Scheduler, num_steps: int = 1) -> list[list[tuple[str, int, int]]]:
    """Take steps in which each draw is of token 50; return (name, start, tokens) of their grants."""
    steps = []
    for _ in range(num_steps):
        grants = granted(scheduler)
        steps.append([(grant.request_id, grant.start, len(grant.tokens)) for grant in grants])
        commit(scheduler, grants)
    return steps


def asked(name: str, length: int, max_tokens: int = 20, **changes: Any) -> SequenceSpec:
    """Return a request whose tokens nobody else's begin with."""
    return spec(name, [ord(name[0]) - 96, *[1] * (length - 1)], greedy(max_tokens), **changes)


def add(scheduler: Scheduler, name: str, length: int, now_s: float = 0.0, **changes: Any) -> Sequence:
    """Have a request wait; return its first sequence."""
    scheduler.add(asked(name, length, **changes), now_s=now_s)
    return scheduler.sequences[name]


def joined(scheduler: Scheduler, name: str, length: int, landed: int, now_s: float = 0.0, **changes: Any) -> Sequence:
    """Let a request join with its first token, of whose prompt `landed` tokens came from elsewhere."""
    reservation.reserve(scheduler, asked(name, length, **changes), now_s=now_s)
    reservation.bind(scheduler, name, scheduler.limits.num_blocks(length))
    message = Join(request_id=name, num_computed=landed, output=(50,))
    sequence = reservation.join(scheduler, message)
    assert sequence is not None
    return sequence


def names(sequences: Iterable[Sequence]) -> list[str]:
    """Return the sequences' names."""
    return [each.name for each in sequences]
