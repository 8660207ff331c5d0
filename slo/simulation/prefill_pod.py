"""A prefill pod in virtual time: prompts in, first tokens and blocks out. What `prefill_service` does with frames.

The engine, the outgoing shipments and the leases are the product's. Invariant: every prompt that was taken ends in
exactly one release.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pagewire.core.engine_messages import Add, StepDone
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.kvtransfer import effects as fx
from pagewire.kvtransfer.lease import LeaseTable
from pagewire.kvtransfer.outgoing import OutgoingShipment, OutgoingState
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.slo.simulation.engine import SimEngine
from pagewire.slo.simulation.request import SimRequest
from pagewire.slo.simulation.surroundings import Surroundings
from pagewire.slo.simulation.wire import Wire

if TYPE_CHECKING:
    from pagewire.slo.simulation.decode_pod import DecodePod


class PrefillPod:
    """One pod."""

    def __init__(self, pod_id: str, around: Surroundings) -> None:
        self.pod_id = pod_id
        self.role = Role.PREFILL
        self.engine: SimEngine = around.engine(pod_id, self.role, self)
        self._around = around
        self._requests: dict[str, tuple[SimRequest, DecodePod]] = {}  # prompts that hold blocks, or wait for them
        self._leases: LeaseTable[str] = LeaseTable()
        self._wires: dict[str, Wire] = {}

    @property
    def is_at_rest(self) -> bool:
        """True when no prompt, lease or byte is left."""
        return not self._requests and not len(self._leases) and all(wire.is_idle for wire in self._wires.values())

    @property
    def waits_for_blocks(self) -> bool:
        """False: prompts wait for blocks in the engine."""
        return False

    def load(self) -> Load:
        """Return what the pod tells others."""
        return self.engine.load()

    def on_heartbeat(self, taker: str) -> None:
        """A decode pod is alive."""
        self._leases.renew(taker, self._around.agenda.now())

    def run(self, request: SimRequest, taker: DecodePod, *, ships: bool) -> None:
        """Take a prompt from a decode pod's frame."""
        incoming = request.incoming
        assert incoming is not None
        now_s = self._around.agenda.now()
        request.run_received_s = now_s
        request.prefill_begun_s = None
        request.outgoing = OutgoingShipment(
            request_id=request.request_id,
            generation=incoming.generation,
            shipment_id=incoming.shipment_id,
            peer_id=taker.pod_id,
            first_block=incoming.first_block,
            ships=ships,
        )
        self._requests[request.request_id] = request, taker
        self._leases.grant(request.request_id, taker.pod_id, self._around.lease_s, now_s)
        self._around.frame(taker.accepted, request)
        self.engine.loop.add(Add(spec=request.spec, first_block=incoming.first_block))
        self.engine.kick()

    def landed(self, request: SimRequest) -> None:
        """The decode pod has verified everything."""
        if request.outgoing is not None:
            self._act(request, request.outgoing.landed())

    # ---------------------------------------------------------------------------------------------------- the engine

    def on_step(self, step: StepDone) -> None:
        """Ship what a step completed; the first token goes ahead of the bytes."""
        self._around.publish(self.pod_id, step.stored, step.evicted)
        first = {record.request_id: record for record in step.records if record.tokens}
        now_s = self._around.agenda.now()
        for chunk in step.chunks:
            request, taker = self._requests[chunk.request_id]
            shipment = request.outgoing
            if shipment is None or shipment.state is not OutgoingState.SHIPPING:
                continue
            if request.prefill_begun_s is None:
                request.prefill_begun_s = now_s - step.elapsed_s
            record, is_finished = first.get(chunk.request_id), False
            if chunk.is_last and record is not None:
                request.prefilled_s = now_s
                is_finished = request.max_tokens == 1 or record.finish_reason is not None
                num_blocks = 0 if is_finished else chunk.first_block + len(chunk.block_ids) - shipment.first_block
                request.cached_tokens = chunk.cached_tokens
                self._around.frame(taker.first_token, request, num_blocks)
            if not is_finished:
                self._act(request, shipment.chunk_done(chunk.first_block, chunk.block_ids))
            if chunk.is_last:
                self._act(request, shipment.prompt_done(is_finished=is_finished))

    def on_tokens(self, request_ids: Iterable[str], at_s: list[float]) -> None:
        """Nobody decodes here."""
        raise AssertionError(f"{list(request_ids)} decode on a prefill pod")

    def on_end(self, request_id: str, cached_tokens: int) -> None:
        """Nobody decodes here."""
        raise AssertionError(f"{request_id} decodes on a prefill pod")

    def on_cached(self) -> None:
        """Nobody decodes here."""

    # ------------------------------------------------------------------------------------------------- the shipment

    def _act(self, request: SimRequest, effects: fx.Effects) -> None:
        _, taker = self._requests[request.request_id]
        for effect in effects:
            match effect:
                case fx.Announce(first_block=first_block, num_blocks=num_blocks):
                    self._around.frame(taker.chunk_ready, request, first_block, num_blocks)
                case fx.SendBlocks(blocks=blocks):
                    self._around.frame(self._wire(taker).send, self._key(request), list(blocks))
                case fx.Purge():
                    self._wire(taker).purge(self._key(request))
                    assert request.outgoing is not None
                    self._act(request, request.outgoing.purged())
                case fx.Release(is_computed=is_computed):
                    self._release(request, is_computed=is_computed)
                case _:
                    raise AssertionError(f"nothing here asks for {effect}")

    def _release(self, request: SimRequest, *, is_computed: bool) -> None:
        assert is_computed, "nothing ends a prompt early here"
        assert request.outgoing is not None
        self.engine.loop.release(request.request_id)
        request.outgoing.freed()
        self._leases.release(request.request_id)
        del self._requests[request.request_id]
        if self.engine.scheduler.waiting:  # for its blocks, perhaps
            self.engine.kick()

    def _key(self, request: SimRequest) -> ShipmentKey:
        assert request.outgoing is not None
        return ShipmentKey(request.outgoing.shipment_id, request.outgoing.generation)

    def _wire(self, taker: DecodePod) -> Wire:
        wire = self._wires.get(taker.pod_id)
        if wire is None:
            wire = self._wires[taker.pod_id] = self._around.wire(taker.deliver)
        return wire
