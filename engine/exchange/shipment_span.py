"""A shipment on its way in as a trace shows it: whom it came from, what it brought, when each announcement landed.

Reads what a delivery counted, for those requests that are traced, once they are over. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagewire.core.kv_layout import KVLayout
from pagewire.core.span import Attribute, Mark, Span, SpanKind
from pagewire.engine.exchange.delivery import Delivery
from pagewire.kvtransfer.shipment import IncomingShipment
from pagewire.kvtransfer.transfer_times import Landing


def shipment_span(name: str, delivery: Delivery, layout: KVLayout, now_s: float) -> Span:
    """Return the span of a delivery, `now_s` where it has not ended."""
    shipment, times = delivery.shipment, delivery.shipment.times
    attributes: dict[str, Attribute] = {
        "pagewire.source": delivery.link.peer.peer_id,
        "pagewire.transport": delivery.transport,
        "pagewire.generation": shipment.generation,
        "pagewire.outcome": delivery.outcome.value if delivery.outcome is not None else "open",
        "pagewire.blocks": shipment.num_verified,
        "pagewire.bytes": shipment.num_verified * layout.block_bytes,
        "pagewire.transfer_s": times.transfer_s,
        "pagewire.exposed_s": times.exposed_s,
    }
    if times.transfer_s > 0:
        attributes["pagewire.hidden_share"] = max(0.0, 1 - times.exposed_s / times.transfer_s)
    token_s = times.first_token_s
    return Span(
        name=name,
        start_s=delivery.asked_s,
        end_s=delivery.ended_s if delivery.ended_s is not None else now_s,
        attributes=attributes,
        marks=(Mark(name="first_token", at_s=token_s),) if token_s is not None else (),
        parts=tuple(_writes(shipment, layout)),
        kind=SpanKind.CLIENT,
        span_id=delivery.trace.span_id if delivery.trace is not None else "",
        error=delivery.cause,
    )


def _writes(shipment: IncomingShipment, layout: KVLayout) -> Iterator[Span]:
    for landing in shipment.times.landings():
        yield Span(
            name="write_blocks",
            start_s=landing.announced_s,
            end_s=landing.placed_s,
            attributes=_written(landing, shipment.num_groups, layout),
        )


def _written(landing: Landing, num_groups: int, layout: KVLayout) -> dict[str, Attribute]:
    """Return what was announced together: whole blocks, or one layer group of each."""
    parts = landing.parts
    is_group = parts.step > 1
    told: dict[str, Attribute] = {
        "pagewire.first_block": parts.start // num_groups,
        "pagewire.blocks": len(parts) if is_group else len(parts) // num_groups,
        "pagewire.bytes": len(parts) * layout.block_bytes // num_groups,
    }
    return {**told, "pagewire.layer_group": parts.start % num_groups} if is_group else told
