"""The faults of processes: each of a cluster's is killed, ended and stopped, in the midst of requests.

A killed router takes with it what it had in hand, a worker likewise; nothing else may fail. Redis comes back empty.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

from chaos_cluster import ChaosCluster, end
from chaos_trial import Fault

STOPPED_S = 3.0  # longer than an engine may stand still
BROKEN = frozenset({"broken"})

# What is hit, and what a request may end with where it is killed.
VICTIMS = {
    "router": ("a", BROKEN),
    "router's parent of workers": ("b", BROKEN),
    "router's worker": ("b worker", BROKEN),
    "prefill front": ("prefill-0", frozenset[str]()),
    "prefill engine": ("prefill-0 engine", frozenset[str]()),
    "decode front": ("decode-0", frozenset[str]()),
    "decode engine": ("decode-0 engine", frozenset[str]()),
    "Redis": ("redis", frozenset[str]()),
}
SIGNALS = {"killed": signal.SIGKILL, "ended": signal.SIGTERM, "stopped": signal.SIGSTOP}


def _strike(who: str, number: signal.Signals) -> Callable[[ChaosCluster], Awaitable[None]]:
    async def strike(cluster: ChaosCluster) -> None:
        process = cluster.process(who)
        os.kill(process.pid, number)
        if number is signal.SIGSTOP:
            try:
                await asyncio.sleep(STOPPED_S)
            finally:
                end(process, signal.SIGCONT)

    return strike


def faults() -> list[Fault]:
    """Return them all."""
    return [
        Fault(
            name=f"{victim} {how}", kind="process", strike=_strike(who, number),
            may_fail=may_fail if number is signal.SIGKILL else frozenset(),
        )
        for victim, (who, may_fail) in VICTIMS.items()
        for how, number in SIGNALS.items()
    ]  # fmt: skip
