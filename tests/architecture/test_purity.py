"""Files that decide do no I/O: no device, no loop, no clock of their own, no chance.

So the same code runs in production, under a virtual clock in fault simulation and in the SLO simulator. What a pure
file imports of ours is pure as well.
"""

from __future__ import annotations

import pytest
from source_tree import ROOT, SourceFile

PURE_FILES = (
    "core/block_hash.py",
    "core/engine_messages.py",
    "core/errors.py",
    "core/fingerprint.py",
    "core/kv_layout.py",
    "core/kv_sizing.py",
    "core/load.py",
    "core/messages.py",
    "core/report.py",
    "core/sampling.py",
    "core/sequence_spec.py",
    "core/timeline.py",
    "core/token_record.py",
    "core/units.py",
    "client/generation.py",
    "client/options.py",
    "client/results.py",
    "client/retry.py",
    "decode_service/prefill_choice.py",
    "engine/beam_search.py",
    "engine/block.py",
    "engine/block_pool.py",
    "engine/brownout.py",
    "engine/departed.py",
    "engine/frames.py",
    "engine/exchange/prefix_plan.py",
    "engine/group.py",
    "engine/hold.py",
    "engine/host_tier.py",
    "engine/limits.py",
    "engine/moves.py",
    "engine/pin.py",
    "engine/preemption.py",
    "engine/progress.py",
    "engine/reservation.py",
    "engine/role_policy.py",
    "engine/scheduler.py",
    "engine/scheduling_policy.py",
    "engine/sequence.py",
    "engine/spec_check.py",
    "engine/step.py",
    "engine/step_budget.py",
    "engine/step_cost.py",
    "engine/step_meter.py",
    "engine/step_pace.py",
    "engine/swap.py",
    "kvtransfer/carrier.py",
    "kvtransfer/effects.py",
    "kvtransfer/greeting.py",
    "kvtransfer/inbox.py",
    "kvtransfer/intake.py",
    "kvtransfer/lease.py",
    "kvtransfer/manifest.py",
    "kvtransfer/offers.py",
    "kvtransfer/outbox.py",
    "kvtransfer/outgoing.py",
    "kvtransfer/parts.py",
    "kvtransfer/plan.py",
    "kvtransfer/link_cost.py",
    "kvtransfer/shipment.py",
    "kvtransfer/ticket.py",
    "kvtransfer/transfer_times.py",
    "kvtransfer/transport.py",
    "kvtransfer/wire.py",
    "router/admission.py",
    "router/answer_logprobs.py",
    "router/guided.py",
    "router/policy.py",
    "router/prefix_index.py",
    "router/request.py",
    "router/scoring.py",
    "router/long_fields.py",
    "router/validation.py",
    "serving/codec.py",
    "serving/handshake.py",
    "text/detokenizer.py",
    "text/stop_strings.py",
    "text/text_stream.py",
)

# Not decisions, but mappings and protocols that pure files may stand on.
HARMLESS = ("client/codec.py", "core/clock.py", "protos/")

IMPURE = {
    "torch", "triton", "numpy", "grpc", "redis", "asyncio", "socket", "threading", "subprocess", "os", "time", "random",
    "secrets", "mmap", "logging", "uvicorn", "fastapi",
}  # fmt: skip


def own_files(name: str) -> list[str]:
    """Return the files of ours that `name` imports."""
    found = []
    for _, what in SourceFile(ROOT / name).imports():
        parts = what.split(".")
        if parts[0] != "pagewire":
            continue
        # `from pagewire.a.b import C` is file a/b.py; `from pagewire.a import b` is too.
        for length in (len(parts), len(parts) - 1):
            path = "/".join(parts[1:length]) + ".py"
            if (ROOT / path).is_file():
                found.append(path)
                break
        else:
            found.append("/".join(parts[1:-1]))
    return found


@pytest.mark.parametrize("name", PURE_FILES)
def test_a_file_that_decides_does_no_io(name: str) -> None:
    imports = SourceFile(ROOT / name).imports()
    found = [f"{name}:{line}: {what}" for line, what in imports if what.split(".")[0] in IMPURE]
    assert found == []


@pytest.mark.parametrize("name", PURE_FILES)
def test_what_it_imports_of_ours_is_pure_too(name: str) -> None:
    found = [other for other in own_files(name) if other not in PURE_FILES and not other.startswith(HARMLESS)]
    assert found == []
