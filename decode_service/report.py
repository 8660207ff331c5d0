"""What a request cost and where, put together from what was counted on its way. Decides and changes nothing."""

from __future__ import annotations

from pagewire.core.engine_messages import SequenceEnd
from pagewire.core.kv_layout import KVLayout
from pagewire.core.report import Report
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.decode_service.prefill_choice import Prediction
from pagewire.decode_service.remote_prefill import RemotePrefill
from pagewire.kvtransfer.effects import Outcome


def report_of(
    spec: SequenceSpec,
    remote: RemotePrefill,
    end: SequenceEnd | None,
    *,
    decode_pod: str,
    layout: KVLayout,
    hit_blocks: int,
    prediction: Prediction,
    notes: tuple[str, ...],
) -> Report:
    """Return the report of a request, of which the cache here held `hit_blocks`; `end` is None before the engine's."""
    # A pod that refused has had no part in it.
    tried = [delivery for delivery in remote.runs if delivery.outcome is not Outcome.REFUSED]
    shipments = [delivery.shipment for delivery in tried]
    first = remote.first_token
    blocks_shipped = sum(shipment.num_verified for shipment in shipments)
    return Report(
        placement=_placement(remote, {delivery.outcome for delivery in tried}),
        prefill_pod=tried[-1].link.peer.peer_id if tried else "",
        decode_pod=decode_pod,
        prompt_tokens=len(spec.tokens),
        prefill_cached_tokens=first.cached_tokens if first else 0,
        prefill_computed_tokens=first.computed_tokens if first else 0,
        prefill_fetched_tokens=first.fetched_tokens if first else 0,
        decode_cached_tokens=hit_blocks * layout.block_size,
        decode_fetched_tokens=remote.fetched_blocks * layout.block_size,
        decode_computed_tokens=end.computed_tokens if end else 0,
        chunks=first.chunks if first else end.chunks if end else 0,
        manifest_blocks=first.num_blocks if first else 0,
        blocks_shipped=blocks_shipped,
        bytes_shipped=blocks_shipped * layout.block_bytes,
        transfer_s=sum(shipment.transfer_s for shipment in shipments),
        exposed_s=max((shipment.exposed_s for shipment in shipments), default=0.0),
        transport=tried[-1].transport if tried else "",
        causes=tuple(cause for _, cause in remote.losses),
        lost_on=tuple(pod_id for pod_id, _ in remote.losses),
        predicted_local_s=prediction.local_s,
        predicted_remote_s=prediction.remote_s,
        notes=notes,
    )


def _placement(remote: RemotePrefill, outcomes: set[Outcome | None]) -> str:
    if not outcomes:
        return "local"
    made_good = remote.is_finished or Outcome.LANDED in outcomes
    return "resumed" if Outcome.LOST in outcomes and not made_good else "remote"
