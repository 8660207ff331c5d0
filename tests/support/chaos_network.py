"""The faults of wires: late, narrow, in slices, cut, silent for a while, and silent for longer than a link may be.

Each strikes one hop of a wired cluster: callers and routers, one prefill pod and whoever dials it, one decode pod and
whoever dials it, everybody and Redis. What kernels do about lost packets is `chaos_namespace.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from chaos_cluster import ROUTERS, ChaosCluster
from chaos_trial import Fault
from slow_proxy import SlowProxy

LASTS_S = 3.0
GIVEN_UP_S = 13.0  # a link is after 10 s of silence
HOPS = {"callers": tuple(ROUTERS), "prefill pod": ("prefill-0",), "decode pod": ("decode-0",), "Redis": ("redis",)}
NARROW = {"callers": 20e3, "prefill pod": 500e3, "decode pod": 20e3, "Redis": 20e3}  # bytes a second


def _late(wire: SlowProxy, hop: str) -> None:
    wire.delay_s = 0.05


def _narrow(wire: SlowProxy, hop: str) -> None:
    wire.bytes_per_s = NARROW[hop]


def _sliced(wire: SlowProxy, hop: str) -> None:
    wire.slice_bytes = 61


def _silent(wire: SlowProxy, hop: str) -> None:
    wire.silence()


def _cut(wire: SlowProxy, hop: str) -> None:
    wire.cut()


Spoil = Callable[[SlowProxy, str], None]


def _strike(
    hop: str, spoil: Spoil, lasts_s: float, *, is_cut: bool = False
) -> Callable[[ChaosCluster], Awaitable[None]]:
    async def strike(cluster: ChaosCluster) -> None:
        wires = [cluster.wires[name] for name in HOPS[hop]]
        for wire in wires:
            spoil(wire, hop)
        await asyncio.sleep(lasts_s)
        for wire in wires:
            if is_cut:
                wire.cut()
            wire.clear()

    return strike


def faults() -> list[Fault]:
    """Return them all."""
    found = []
    for hop in HOPS:
        broken = frozenset({"broken"} if hop == "callers" else ())
        kinds: dict[str, tuple[Spoil, float, bool, frozenset[str]]] = {
            "50 ms late": (_late, LASTS_S, False, frozenset()),
            f"at {NARROW[hop] / 1e3:.0f} KB/s": (_narrow, LASTS_S, False, frozenset()),
            "in slices of 61 bytes": (_sliced, LASTS_S, False, frozenset()),
            "reset": (_cut, 0.0, False, broken),
            f"silent for {LASTS_S:.0f} s": (_silent, LASTS_S, False, frozenset()),
            f"silent for {LASTS_S:.0f} s, then reset": (_silent, LASTS_S, True, broken),
        }
        if hop != "callers":
            kinds[f"silent for {GIVEN_UP_S:.0f} s"] = (_silent, GIVEN_UP_S, False, frozenset())
        found += [
            Fault(name=f"{hop}: {what}", kind="network", strike=_strike(hop, spoil, lasts_s, is_cut=is_cut),
                  may_fail=may_fail, recovers_s=25.0)
            for what, (spoil, lasts_s, is_cut, may_fail) in kinds.items()
        ]  # fmt: skip
    return found
