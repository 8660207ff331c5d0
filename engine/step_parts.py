"""A `StepDone` cut in two, where it is too long to be told at once.

Pure; knows what belongs together, and no bytes. Invariants: the halves, heard in their order, tell what the whole told,
of each request in the same order. What the cache took in or lost comes before what became of requests, a chunk with the
records of its request, an end behind all that it ends; the load and how many tokens the step had come last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pagewire.core.engine_messages import StepDone

_CACHE = ("stored", "evicted")
_REQUESTS = ("prompts", "chunks", "records")
_OVER = ("preempted", "lives", "ends")

_Values = dict[str, Any]  # tuples, by the names of fields


def halves(step: StepDone) -> tuple[StepDone, StepDone] | None:
    """Return two steps that tell what `step` does, None where it cannot be cut. Both have its `elapsed_s`."""
    stages = [names for names in (_CACHE, _REQUESTS, _OVER) if any(getattr(step, name) for name in names)]
    if not stages:
        return None
    values: _Values = {name: getattr(step, name) for name in stages[0]}
    if len(stages) > 1:
        first: _Values = values
        last: _Values = dict.fromkeys(values, ())
    elif stages == [_REQUESTS]:
        first, last = _cut_requests(values)
    else:
        first, last = _cut_lists(values)
    if not any(first.values()):
        return None
    return StepDone(elapsed_s=step.elapsed_s, **first), replace(step, **last)


def _cut_lists(values: _Values) -> tuple[_Values, _Values]:
    return (
        {name: value[: len(value) // 2] for name, value in values.items()},
        {name: value[len(value) // 2 :] for name, value in values.items()},
    )


def _cut_requests(values: _Values) -> tuple[_Values, _Values]:
    """Cut between two requests; a single one, of which no chunk was computed, between its records or within one."""
    requests = list(dict.fromkeys(each.request_id for value in values.values() for each in value))
    early = set(requests[: len(requests) // 2])
    if early:
        return (
            {name: tuple(each for each in value if each.request_id in early) for name, value in values.items()},
            {name: tuple(each for each in value if each.request_id not in early) for name, value in values.items()},
        )
    records = values["records"]
    if values["chunks"] or not records:
        return {}, values
    if len(records) > 1:
        middle = len(records) // 2
        return {**values, "records": records[:middle]}, {"prompts": (), "records": records[middle:]}
    # As if the prompt had come in two chunks: of the first one is told only how likely its tokens were.
    (record,) = records
    middle = len(record.prompt_logprobs) // 2
    if not middle:
        return {}, values
    scores = replace(record, tokens=(), finish_reason=None, logprobs=(), cumulative_logprob=None, score=None)
    return (
        {**values, "records": (replace(scores, prompt_logprobs=record.prompt_logprobs[:middle]),)},
        {"prompts": (), "records": (replace(record, prompt_logprobs=record.prompt_logprobs[middle:]),)},
    )
