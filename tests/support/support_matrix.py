"""Runs every feature in every way that a request may go, compares the answers, and writes what was seen as a table.

    colocated       one pod does everything
    disaggregated   one builds the prompt, another decodes
    continued       the decode pod gives the request up after some tokens, and another goes on with it
    preempted       the decode pod takes its blocks away after some tokens, and gives it others later

The answer of the colocated pod is the right one. A way in which nothing came between is no such way: it fails.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from features import FEATURES, KINDS, Feature
from served_pods import Served, ServedPod, served

from pagewire.core.errors import InvalidRequest
from pagewire.core.messages import Role
from pagewire.router.config import PrefillMode

TOLERANCE = 1e-3  # of log probabilities: sums in another order
ALONE = {"c": Role.COLOCATED}
APART = {"p": Role.PREFILL, "d": Role.DECODE, "e": Role.DECODE}
OF_A_RUN = ("id", "created", "pagewire", "usage")

Row = dict[str, str]


async def rows(redis: str, model: Callable[[str], Path]) -> dict[str, Row]:
    """Return what every feature came to, by its name and the way; raises AssertionError with all that is wrong."""
    found = {feature.name: Row() for feature in FEATURES}
    wrong: list[str] = []
    for name, kind in KINDS.items():
        features = [feature for feature in FEATURES if feature.kind == name]
        folder, right = model(kind.model), dict[str, Any]()
        alone, apart = kind.settings | kind.of_decode, kind.settings
        async with served(redis, folder, ALONE, alone, prefill_mode=PrefillMode.LOCAL) as pods:
            for feature in features:
                seen = _Seen(feature, await pods.ask(feature.path, feature.body))
                right[feature.name] = seen.said
                found[feature.name]["colocated"] = seen.cell(seen.said, wrong)
                if kind.answer is not None and seen.said["choices"][0]["token_ids"] != list(kind.answer(folder)):
                    wrong.append(f"{feature.name}: not the tokens that others have for it: {seen.said}")
        mode = PrefillMode(kind.prefill_mode)
        async with served(redis, folder, APART, apart, of_decode=kind.of_decode, prefill_mode=mode) as pods:
            for feature in features:
                for way, go in WAYS.items():
                    seen = await go(pods, feature)
                    found[feature.name][way] = seen.cell(right[feature.name], wrong)
            if not any(kind.was_used(pod.engine.loop.load()) for pod in pods.decoding):
                wrong.append(f"{name}: nothing of it was used")
    assert not wrong, "\n".join(wrong)
    return found


class _Seen:
    """An answer: `aside` is what is to be said of it besides, `missed` why it did not go the way that it was to go."""

    def __init__(self, feature: Feature, answer: httpx.Response, aside: str = "", missed: str = "") -> None:
        self._feature = feature
        self._answer = answer
        self._aside = aside
        self._missed = missed
        self.said = _said(answer)

    def cell(self, right: Any, wrong: list[str]) -> str:
        """Return it in words, compared with the `right` one; notes what is wrong."""
        feature, said = self._feature, self.said
        if self._answer.status_code != httpx.codes.OK:
            error = said["error"]
            names = error["code"], error.get("param") or ""
            if names != (feature.refused if feature.refused[0] else (InvalidRequest.cause, "prompt")):
                wrong.append(f"{feature.name}: {error}")
            return f"refused: `{names[0]}`, `{names[1]}`"
        if feature.refused[0] or self._missed or not feature.shows(said):
            wrong.append(f"{feature.name}: {self._missed or 'not had, or not refused'}: {said}")
        elif not alike(said, right):
            wrong.append(f"{feature.name}: {said}\n  colocated: {right}")
        return "works" + self._aside


async def _plainly(pods: Served, feature: Feature) -> _Seen:
    answer = await pods.ask(feature.path, _body(feature, "plainly"))
    is_local = answer.status_code == httpx.codes.OK and _placement(answer) == "local"
    return _Seen(feature, answer, ", the prompt computed where it decodes" if is_local else "")


def _placement(answer: httpx.Response) -> str:
    """Return where the prompt was computed; of several prompts the first."""
    (shown,) = [part["pagewire"] for part in _parts(answer) if part.get("pagewire")]
    return str((shown["prompts"][0] if "prompts" in shown else shown)["report"]["placement"])


async def _continued(pods: Served, feature: Feature) -> _Seen:
    before = {pod: len(pod.submits) for pod in pods.decoding}
    answer = await pods.ask_and(ServedPod.hand_over, feature.path, _body(feature, "continued"))
    specs = [submit.spec for pod in pods.decoding for submit in pod.submits[before[pod] :]]
    goes_on = any(spec.output or any(branch.output for branch in spec.branches) for spec in specs)
    return _Seen(feature, answer, "" if goes_on else ", begun anew", "" if len(specs) > 1 else "nobody went on with it")


async def _preempted(pods: Served, feature: Feature) -> _Seen:
    before = sum(pod.engine.loop.load().preemptions for pod in pods.decoding)
    answer = await pods.ask_and(ServedPod.preempt_all, feature.path, _body(feature, "preempted"))
    count = sum(pod.engine.loop.load().preemptions for pod in pods.decoding) - before
    return _Seen(feature, answer, missed="" if count else "nothing was preempted")


WAYS = {"disaggregated": _plainly, "continued": _continued, "preempted": _preempted}


def _body(feature: Feature, way: str) -> dict[str, Any]:
    """Return the request; each way has a cache of its own, where that is not what the feature is about."""
    if feature.refused[0] or feature.kind == "pinned":
        return feature.body
    return {**feature.body, "cache_salt": f"{feature.body.get('cache_salt', '')} {way}"}


def _parts(answer: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines] or [answer.json()]


def _said(answer: httpx.Response) -> Any:
    """Return what was answered, without what is of this run; a stream's parts as one answer."""
    parts = _parts(answer)
    whole = {name: value for name, value in parts[0].items() if name not in OF_A_RUN}
    if len(parts) > 1 or "data: {" in answer.text:
        choices = [choice for part in parts for choice in part["choices"]]
        whole["choices"] = [{
            "text": "".join(choice["text"] for choice in choices),
            "token_ids": [token for choice in choices for token in choice.get("token_ids") or ()],
            "finish_reason": choices[-1]["finish_reason"],
        }]  # fmt: skip
    return whole


def alike(ours: Any, theirs: Any) -> bool:
    """Return whether two answers are the same, numbers within `TOLERANCE`."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(alike(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, abs_tol=TOLERANCE)
    return bool(ours == theirs)


def table(found: dict[str, Row]) -> str:
    """Return docs/support.md."""
    ways = ("colocated", *WAYS)
    head = f"| feature | {' | '.join(ways)} |\n|---|{'---|' * len(ways)}\n"
    lines = (f"| {name} | {' | '.join(row[way] for way in ways)} |\n" for name, row in found.items())
    return INTRODUCTION + head + "".join(lines)


INTRODUCTION = """# What works where

`make support` writes this page, and a test holds it to what it sees: every feature is asked for over HTTP, of a
router, real pods and a tiny model in fp32, in each of the four ways, and must answer as the colocated pod does, token
for token, log probabilities to within 0.001.

- **colocated**: one pod does everything.
- **disaggregated**: a prefill pod builds the prompt, a decode pod takes its KV over gRPC and decodes.
- **continued**: after some tokens the decode pod gives the request up, as a draining one does, and the router has
  another one go on.
- **preempted**: after some tokens the decode pod takes the blocks of all sequences of the request away; they get
  others and go on.

What is refused is so by an error's `code` and `param`.

"""
