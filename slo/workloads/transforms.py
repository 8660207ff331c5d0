"""A workload made from another: other times, other lengths, a part of it. Pure; lazy, as workloads are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import islice, takewhile

from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.processes import Process
from pagewire.slo.workloads.workload import Workload, num_pieces

MOST_OFF = 0.01  # of a length that is rounded to whole tokens


def retimed(workload: Workload, process: Process, seed: int) -> Workload:
    """Return the same arrivals in the same order, at the times of a process."""

    def source() -> Iterator[Arrival]:
        for arrival, at_s in zip(workload, process.times(seed), strict=False):
            yield dataclasses.replace(arrival, at_s=at_s)

    return dataclasses.replace(workload, source=source)


def faster(workload: Workload, factor: float) -> Workload:
    """Return the same arrivals, `factor` times as many a second; think times stay, since people do not hurry."""
    if not factor > 0:
        raise ValueError(f"{factor:g} times as fast is not faster")
    return _each(workload, lambda arrival: dataclasses.replace(arrival, at_s=arrival.at_s / factor))


def at_rate(workload: Workload, rate: float) -> Workload:
    """Return the same arrivals at `rate` a second on average, in their pattern; raises ValueError without one."""
    count, last_s = 0, 0.0
    for arrival in workload:
        count, last_s = count + 1, arrival.at_s
    if last_s == 0:
        raise ValueError(f"{workload.name} says no times that could be scaled: draw them")
    return faster(workload, rate * last_s / (count - 1))


def resized(workload: Workload, factor: float) -> Workload:
    """Return the same arrivals with prompts and answers `factor` times as long; what is shared stays so.

    Pieces keep their ids and change their length. Raises ValueError when gone through where a text would be longer, or
    where the whole tokens of a piece are no such part of it.
    """
    exact = workload.piece_tokens * factor
    piece_tokens = max(1, round(exact))

    def turn(old: Turn) -> Turn:
        output_tokens = max(1, round(old.output_tokens * factor))
        if old.text:
            if factor > 1:
                raise ValueError(f"{workload.name} has texts, which can be cut and not made longer")
            text = old.text[: max(1, round(len(old.text) * factor))]
            input_tokens = max(1, round(old.input_tokens * factor))
            return dataclasses.replace(old, text=text, input_tokens=input_tokens, output_tokens=output_tokens)
        if abs(piece_tokens - exact) > MOST_OFF * exact:
            raise ValueError(
                f"length_scale {factor:g}: prompts of {workload.name} are pieces of {workload.piece_tokens} tokens, "
                f"which would be {piece_tokens / workload.piece_tokens:g} times as long: take that"
            )
        whole = len(old.pieces) - 1
        rest = old.input_tokens - whole * workload.piece_tokens
        input_tokens = whole * piece_tokens + num_pieces(rest * piece_tokens, workload.piece_tokens)
        return dataclasses.replace(old, input_tokens=input_tokens, output_tokens=output_tokens)

    def resize(old: Arrival) -> Arrival:
        return dataclasses.replace(old, turns=tuple(map(turn, old.turns)))

    return dataclasses.replace(_each(workload, resize), piece_tokens=piece_tokens)


def first(workload: Workload, count: int) -> Workload:
    """Return the first `count` arrivals."""
    return dataclasses.replace(workload, source=lambda: islice(workload, count))


def until(workload: Workload, seconds: float) -> Workload:
    """Return what comes before `seconds`."""
    is_cut = workload.is_cut or any(each.at_s >= seconds for each in workload)
    return dataclasses.replace(
        workload, source=lambda: takewhile(lambda each: each.at_s < seconds, workload), is_cut=is_cut
    )


def _each(workload: Workload, change: Callable[[Arrival], Arrival]) -> Workload:
    return dataclasses.replace(workload, source=lambda: map(change, workload))
