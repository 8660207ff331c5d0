"""What the live page is told at one moment: pods, links and requests as JSON, bounded in each of its lists.

Values in, dictionaries out. A pool is shown as of its pod's last heartbeat. Invariant: what is of one tenant's request
is told to that tenant and to those who may see all, and of pods only these are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

from pagewire.core.clock import Clock
from pagewire.core.messages import Role
from pagewire.core.timeline import Phase, Timeline
from pagewire.router.live.board import Board, Entry, Past
from pagewire.router.live.occupancy import Occupancy
from pagewire.router.live.rates import Rates
from pagewire.router.models import Models
from pagewire.router.pods import Standing
from pagewire.router.prediction import Targets

MAX_PODS = 64
MAX_LINKS = 64
MAX_RUNNING = 24
MAX_FINISHED = 24
MAX_LATENCIES = 120
_ORDER = (Role.PREFILL, Role.DECODE, Role.COLOCATED)

Json = dict[str, Any]


class Snapshots:
    """Takes them. `about` is what is said of the router itself."""

    def __init__(self, models: Models, board: Board, targets: Targets, clock: Clock, about: Mapping[str, str]) -> None:
        self._models = models
        self._board = board
        self._targets = targets
        self._clock = clock
        self._about = about
        self._rates = Rates()

    def pods(self) -> Json:
        """Return what those are told of pods and links who may see all."""
        known = [(model.title, each) for model in self._models for each in model.pool.standings()]
        known.sort(key=lambda each: (_ORDER.index(each[1].pod.registration.role), each[1].pod.registration.member))
        linked = {each.pod.key: each.pod for _, each in known if each.pod.is_linked}
        rates = self._rates.take({key: pod.load for key, pod in linked.items()})
        links = [
            (rates[key].get(inflow.source), inflow, pod.pod_id)
            for key, pod in linked.items()
            for inflow in pod.load.inflows
        ]
        links.sort(key=lambda link: (-(link[0] or 0.0), -link[1].num_bytes))
        return {
            "pods": [_pod(model, each) for model, each in known[:MAX_PODS]],
            "pods_left_out": max(0, len(known) - MAX_PODS),
            "links": [
                {"from": inflow.source, "to": to, "bytes": inflow.num_bytes, "bytes_per_s": rate}
                for rate, inflow, to in links[:MAX_LINKS]
            ],
            "links_left_out": max(0, len(links) - MAX_LINKS),
        }

    def requests(self, tenant: str | None) -> Json:
        """Return what is told of a tenant's requests, of everybody's for None."""
        now_s = self._clock.now()
        running, past = list(self._board.running(tenant)), list(self._board.past(tenant))
        return {
            **self._about,
            "sees_all": tenant is None,
            "models": [
                name
                for each in self._models
                if each.pool.fingerprint is not None
                for name in (each.name, *each.pool.adapters)
            ],
            "slo": {"ttft_s": self._targets.ttft_s, "tpot_s": self._targets.tpot_s},
            "running": [_running(each, now_s) for each in running[:MAX_RUNNING]],
            "running_left_out": max(0, len(running) - MAX_RUNNING),
            "finished": [_finished(each) for each in past[:MAX_FINISHED]],
            "latencies": _latencies(past),
        }


def _pod(model: str, standing: Standing) -> Json:
    pod, load = standing.pod, standing.pod.load
    return {
        "id": pod.pod_id,
        "incarnation": pod.incarnation,
        "role": pod.registration.role.value,
        "model": model,
        "unusable": standing.unusable_because,
        "blocks": {"total": load.blocks_total, **asdict(Occupancy.of(load))},
        "host_blocks": load.blocks_host,
        "running": load.num_running,
        "waiting": load.num_waiting,
        "waiting_tokens": load.waiting_tokens,
        "in_flight": pod.in_flight,
        "step_ms": _ms(load.step_s),
        "brownout": load.brownout.value,
    }


def _running(entry: Entry, now_s: float) -> Json:
    timeline, life = entry.watch.timeline(), entry.life
    placed = life.placed if life is not None else None
    return {
        "id": entry.request_id,
        "model": entry.model,
        "age_ms": _ms(now_s - timeline.stamps[0].at_s),
        "prompt_tokens": len(life.request.prompt) if life is not None else 0,
        "output_tokens": life.num_output if life is not None else 0,
        "attempts": life.attempt if life is not None else 0,
        "prefill_pod": placed.prefill.pod_id if placed is not None and placed.prefill is not None else "",
        "decode_pod": placed.decode.pod_id if placed is not None else "",
        "timelines": [_timeline(timeline)],
    }


def _finished(past: Past) -> Json:
    report = past.report
    ttft_s, tpot_s = _latency(past)
    told: Json = {
        "id": past.request_id,
        "model": past.model,
        "outcome": past.outcome,
        "failed": past.failed,
        "prompt_tokens": past.prompt_tokens,
        "cached_tokens": past.cached_tokens,
        "output_tokens": past.output_tokens,
        "attempts": past.attempts,
        "ttft_ms": _ms(ttft_s),
        "tpot_ms": _ms(tpot_s),
        "timelines": [_timeline(each) for each in past.timelines],
    }
    if report is not None:
        told |= {
            "placement": report.placement,
            "prefill_pod": report.prefill_pod,
            "decode_pod": report.decode_pod,
            "chunks": report.chunks,
            "blocks_shipped": report.blocks_shipped,
            "bytes_shipped": report.bytes_shipped,
            "transport": report.transport,
        }
    return told


def _latencies(past: Iterable[Past]) -> list[list[float | None]]:
    """Return milliseconds to the first token and per token after it, of what finished, the oldest first."""
    known = (_latency(each) for each in past if not each.failed)
    shown = islice((each for each in known if each[0] is not None), MAX_LATENCIES)
    return [[_ms(ttft_s), _ms(tpot_s)] for ttft_s, tpot_s in shown][::-1]


def _latency(past: Past) -> tuple[float | None, float | None]:
    """Return seconds as the router's histograms count them, by its own stamps."""
    ours = past.timelines[0]
    ttft_s = ours.between_s(Phase.RECEIVED, Phase.FIRST_TOKEN)
    rest_s = ours.between_s(Phase.FIRST_TOKEN, Phase.LAST_TOKEN)
    return ttft_s, rest_s / (past.longest - 1) if rest_s is not None and past.longest > 1 else None


def _timeline(timeline: Timeline) -> Json:
    """Return a process's stamps in milliseconds since its first: its clock means nothing elsewhere."""
    first_s = min((stamp.at_s for stamp in timeline.stamps), default=0.0)
    at_ms = {stamp.phase.value: _ms(stamp.at_s - first_s) for stamp in timeline.stamps}
    return {"process": timeline.process, "at_ms": at_ms}


def _ms(seconds: float | None) -> float | None:
    return round(seconds * 1e3, 2) if seconds is not None else None
