"""Many at once who all begin with the same long text, which nobody has computed yet.

What must be computed is that text once, on one pod, and each one's own end. Whoever starts before it is cached computes
some of it again, and no more start than chunks fit into a step. Tokens are those that the pods say they computed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from load_call import Call, ask
from load_cluster import LoadCluster
from load_questions import Question, made_up, questions_of
from load_row import Row, p50_p99

OWN = 24
SIDE_BY_SIDE = 4  # max_num_batched_tokens / chunk_size of a pod that is told nothing else
TOKENS = 4
WITHIN_S = 300.0


def herd(model: Path, number: int, prefix: int) -> list[Question]:
    """Return up to `number` questions that share `prefix` tokens and have `OWN` each for themselves."""
    beginning = made_up(7, prefix)
    return questions_of(model, [beginning + made_up(i, OWN) for i in range(number)], TOKENS, TOKENS, shared=prefix)


async def run(cluster: LoadCluster, questions: Sequence[Question], prefix: int, *, number: int) -> Row:
    """Ask all at once, nothing being cached; then as many again, when it is."""
    assert len({question.prompt for question in questions[:number]}) == number, "fewer than there are to be"
    salt = f"herd.{time.monotonic()}"
    cold, cold_spent = await _all_at_once(cluster, questions[:number], salt)
    warm, warm_spent = await _all_at_once(cluster, questions[:number], salt)
    needed = prefix + sum(len(call.question.prompt) - prefix for call in cold)
    asked = sum(len(call.question.prompt) for call in cold)
    row = Row("herd")
    times = (cold_spent - (needed - prefix)) / prefix
    row.figures = {
        "requests, tokens shared, tokens of their own": f"{number}, {prefix}, {OWN}",
        "tokens asked for, needed, computed": f"{asked}, {needed}, {cold_spent:.0f}",
        "times that the shared text was computed": round(times, 2),
        "TTFT p50, p99, ms": p50_p99(call.ttft_s for call in cold),
        "asked again: tokens computed": round(warm_spent),
        "asked again: TTFT p50, p99, ms": p50_p99(call.ttft_s for call in warm),
    }
    row.promises = {
        "no wrong token": not any(call.is_wrong for call in (*cold, *warm)),
        "all are served whole": not any(call.error for call in (*cold, *warm)),
        f"the shared text is computed at most {SIDE_BY_SIDE} times": times <= SIDE_BY_SIDE,
        "asked again, it is not computed": warm_spent <= needed - prefix,
    }
    return row


async def _all_at_once(cluster: LoadCluster, questions: Sequence[Question], salt: str) -> tuple[list[Call], float]:
    """Return all calls, and the tokens of prompts that were computed for them."""
    before = await cluster.counts()
    calls = [Call(question, time.monotonic(), TOKENS) for question in questions]
    await asyncio.gather(*(ask(call, [cluster.url], cache_salt=salt, within_s=WITHIN_S) for call in calls))
    await cluster.rest()
    after = await cluster.counts()
    return calls, after["prompt_tokens_computed_total"] - before["prompt_tokens_computed_total"]
