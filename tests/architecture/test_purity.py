"""Files that decide do no I/O: no device, no loop, no clock of their own, no chance.

So the same code runs in production, under a virtual clock in fault simulation and in the SLO simulator. What a pure
file imports of ours is pure as well.
"""

from __future__ import annotations

import ast

import pytest
from mutation.run import groups
from source_tree import ROOT, SourceFile, source_files

PURE_FILES = (
    "core/attention_heads.py",
    "core/block_hash.py",
    "core/cache_events.py",
    "core/cache_quota.py",
    "core/distribution.py",
    "core/documents.py",
    "core/engine_messages.py",
    "core/errors.py",
    "core/fingerprint.py",
    "core/index_member.py",
    "core/kv_layout.py",
    "core/kv_sizing.py",
    "core/load.py",
    "core/messages.py",
    "core/report.py",
    "core/sampling.py",
    "core/sequence_spec.py",
    "core/span.py",
    "core/timeline.py",
    "core/trace_context.py",
    "core/token_record.py",
    "core/units.py",
    "client/attempts.py",
    "client/cluster.py",
    "client/explanation.py",
    "client/generation.py",
    "client/listening.py",
    "client/options.py",
    "client/replay.py",
    "client/results.py",
    "client/retry.py",
    "client/routers.py",
    "client/status.py",
    "decode_service/streams.py",
    "decode_service/prefill_choice.py",
    "engine/beam_search.py",
    "engine/block.py",
    "engine/block_lives.py",
    "engine/block_pool.py",
    "engine/brownout.py",
    "engine/departed.py",
    "engine/frames.py",
    "engine/eviction_order.py",
    "engine/exchange/prefix_plan.py",
    "engine/group.py",
    "engine/hold.py",
    "engine/host_tier.py",
    "engine/limits.py",
    "engine/moves.py",
    "engine/owner.py",
    "engine/pin.py",
    "engine/preemption.py",
    "engine/prefix_cache.py",
    "engine/progress.py",
    "engine/reservation.py",
    "engine/role_policy.py",
    "engine/scheduler.py",
    "engine/scheduling_policy.py",
    "router/rebalance.py",
    "engine/sequence.py",
    "engine/spec_check.py",
    "engine/step.py",
    "engine/step_budget.py",
    "engine/step_cost.py",
    "engine/step_meter.py",
    "engine/step_pace.py",
    "engine/swap.py",
    "engine/tier_news.py",
    "kvtransfer/arrivals.py",
    "kvtransfer/carrier.py",
    "kvtransfer/effects.py",
    "kvtransfer/greeting.py",
    "kvtransfer/greeting_wire.py",
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
    "kvtransfer/ticket_ledger.py",
    "kvtransfer/transfer_times.py",
    "kvtransfer/transport.py",
    "kvtransfer/wire.py",
    "router/admission.py",
    "router/breaker.py",
    "router/drain_rate.py",
    "router/kv_room.py",
    "router/outliers.py",
    "router/prediction.py",
    "router/refusals.py",
    "router/slo_gate.py",
    "router/tenant_limits.py",
    "router/tenants.py",
    "router/wait_queue.py",
    "router/answer_logprobs.py",
    "router/guided.py",
    "router/hit_watch.py",
    "router/actual_times.py",
    "router/calibration.py",
    "router/explanation.py",
    "router/live/occupancy.py",
    "router/live/rates.py",
    "router/roster.py",
    "router/policies/arithmetic.py",
    "router/policies/balance.py",
    "router/policies/explained.py",
    "router/policies/least_loaded.py",
    "router/policies/offers.py",
    "router/policies/placement.py",
    "router/policies/prefix_affinity.py",
    "router/policies/round_robin.py",
    "router/policies/slo.py",
    "router/policies/two_choices.py",
    "router/policies/view.py",
    "router/prediction.py",
    "router/prefix_index.py",
    "router/request.py",
    "router/ask.py",
    "router/events.py",
    "router/retry_budget.py",
    "router/request_counts.py",
    "router/request_times.py",
    "router/scoring.py",
    "router/strangers.py",
    "router/tenants.py",
    "router/keys.py",
    "router/json_text.py",
    "router/long_fields.py",
    "router/bodies.py",
    "router/openapi.py",
    "router/tool_fields.py",
    "router/validation.py",
    "serving/breaker.py",
    "serving/codec.py",
    "serving/handshake.py",
    "serving/ledger.py",
    "serving/registration.py",
    "serving/step_counts.py",
    "serving/scrape.py",
    "slo/arrival.py",
    "slo/ask.py",
    "slo/bracket.py",
    "slo/calibration.py",
    "slo/composition.py",
    "slo/configuration.py",
    "slo/conversation.py",
    "slo/cost_model.py",
    "slo/experiment.py",
    "slo/finding.py",
    "slo/fit.py",
    "slo/formats/fields.py",
    "slo/goodput.py",
    "slo/objectives.py",
    "slo/pieces.py",
    "slo/planning/candidate.py",
    "slo/planning/demand.py",
    "slo/planning/device_kind.py",
    "slo/record.py",
    "slo/report/attainment.py",
    "slo/report/breakdown.py",
    "slo/report/distributions.py",
    "slo/report/figure.py",
    "slo/report/ratios.py",
    "slo/report/shown.py",
    "slo/report/style.py",
    "slo/report/trade_off.py",
    "slo/report/worst.py",
    "slo/roofline.py",
    "slo/simulation/agenda.py",
    "slo/simulation/course.py",
    "slo/simulation/decode_run.py",
    "slo/simulation/lone_chunk.py",
    "slo/simulation/machine.py",
    "slo/simulation/wire.py",
    "slo/statistics.py",
    "slo/summary.py",
    "slo/table.py",
    "slo/tally.py",
    "slo/ttft_parts.py",
    "slo/workload.py",
    "text/detokenizer.py",
    "text/stop_strings.py",
    "text/text_stream.py",
    "text/tools/formats.py",
    "text/tools/grammar.py",
    "text/tools/keyed.py",
    "text/tools/pythonic.py",
    "text/tools/reader.py",
    "text/tools/readings.py",
    "text/tools/scanner.py",
)

# Not decisions, but mappings and protocols that pure files may stand on.
HARMLESS = ("client/codec.py", "core/clock.py", "protos/")

IMPURE = {
    "torch", "triton", "numpy", "grpc", "redis", "asyncio", "socket", "threading", "subprocess", "os", "time", "random",
    "secrets", "mmap", "logging", "uvicorn", "starlette",
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


def test_a_file_that_says_it_is_pure_is_held_to_it() -> None:
    told = {file.name for file in source_files() if "Pure." in (ast.get_docstring(file.tree()) or "")}
    assert sorted(told - set(PURE_FILES)) == []


@pytest.mark.parametrize("name", PURE_FILES)
def test_a_file_that_decides_does_no_io(name: str) -> None:
    imports = SourceFile(ROOT / name).imports()
    found = [f"{name}:{line}: {what}" for line, what in imports if what.split(".")[0] in IMPURE]
    assert found == []


@pytest.mark.parametrize("name", PURE_FILES)
def test_what_it_imports_of_ours_is_pure_too(name: str) -> None:
    found = [other for other in own_files(name) if other not in PURE_FILES and not other.startswith(HARMLESS)]
    assert found == []


def test_only_what_decides_is_tried_by_mutants() -> None:
    assert {file for group in groups() for file in group.files} <= set(PURE_FILES)
