"""Placement as a caller and an operator see it: a whole router before fake pods."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_pod import FakePod
from router_rig import StartRouter, events, eventually

from pagewire.client import AsyncClient
from pagewire.core.errors import PodLost
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.core.timeline import Phase, Stamp, Timeline
from pagewire.protos import inference_pb2 as pb
from pagewire.router.config import PrefillMode, RouterConfig
from pagewire.router.policies.named import BUILT_IN, policy_named

EXPLAIN = {"x-pagewire-explain": "1"}


def cluster() -> tuple[FakePod, ...]:
    return (
        FakePod("d0", role=Role.DECODE), FakePod("d1", role=Role.DECODE),
        FakePod("p0", role=Role.PREFILL), FakePod("p1", role=Role.PREFILL),
    )  # fmt: skip


@pytest.mark.parametrize("policy", BUILT_IN)
@pytest.mark.parametrize("mode", ["remote", "auto", "local"])
async def test_every_policy_serves_in_every_mode_and_says_why(start: StartRouter, policy: str, mode: str) -> None:
    async with start(*cluster(), policy=policy, prefill_mode=PrefillMode(mode), slo_tpot_s=0.5) as router:
        answer = await router.http.post(
            "/v1/completions", json={"prompt": "hello world", "max_tokens": 4}, headers=EXPLAIN
        )
        assert answer.status_code == 200
        told = answer.json()["pagewire"]["explanation"]
        assert told["policy"] == policy
        assert told["targets"] == {"ttft_s": 0.0, "gap_s": 0.0, "tpot_s": 0.5}
        first, *others = told["candidates"]
        submits = [submit for pod in router.pods for submit in pod.submits]
        assert len(submits) == 1
        took = next(pod.pod_id for pod in router.pods if pod.submits)
        assert (first["decode_pod"], first["decode_role"], first["chosen"], first["reason"]) == (
            took, "decode", True, "",
        )  # fmt: skip
        assert first["prefill_pod"] == (submits[0].candidates[0].pod_id if submits[0].candidates else "")
        predicted = first["predicted"]
        assert predicted["ttft_s"] == pytest.approx(
            predicted["queue_s"] + predicted["prefill_s"] + predicted["relay_s"]
        )
        assert all(other["reason"] and not other["chosen"] for other in others)
        assert {other["decode_pod"] for other in told["candidates"]} == {"d0", "d1"}
        settled = {"remote": "remote", "local": "local", "auto": first["way"] if policy == "slo" else "auto"}
        assert submits[0].prefill == settled[mode]


async def test_a_stream_ends_with_the_explanation_and_without_asking_there_is_none(start: StartRouter) -> None:
    async with start(*cluster()) as router:
        body = {"prompt": "hello", "max_tokens": 3, "stream": True}
        explained = await router.http.post("/v1/completions", json=body, headers=EXPLAIN)
        assert len(events(explained.text)[-1]["pagewire"]["explanation"]["candidates"]) == 4
        assert "pagewire" not in events((await router.http.post("/v1/completions", json=body)).text)[-1]


@pytest.mark.parametrize("timeline", [{}, {"x-pagewire-timeline": "1"}])
async def test_of_several_prompts_each_is_explained(start: StartRouter, timeline: dict[str, str]) -> None:
    async with start(*cluster(), policy="round_robin") as router:
        body = {"prompt": ["hello", "world"], "max_tokens": 3}
        answer = await router.http.post("/v1/completions", json=body, headers=EXPLAIN | timeline)
        streamed = await router.http.post("/v1/completions", json=body | {"stream": True}, headers=EXPLAIN | timeline)
        for told in (answer.json(), events(streamed.text)[-1]):
            each = told["pagewire"]["prompts"]
            assert [("timelines" in prompt) for prompt in each] == [bool(timeline)] * 2
            chosen = {prompt["explanation"]["candidates"][0]["decode_pod"] for prompt in each}
            assert chosen == {"d0", "d1"}
        silent = await router.http.post("/v1/completions", json=body)
        assert "pagewire" not in silent.json()


async def test_a_pod_that_is_kept_out_is_no_candidate(start: StartRouter) -> None:
    bad, good = FakePod("d0"), FakePod("d1")
    async with start(bad, good, policy="round_robin", breaker_failures=2, eject_s=60.0) as router:

        async def candidates() -> set[str]:
            body = {"prompt": "hello", "max_tokens": 3}
            answer = await router.http.post("/v1/completions", json=body, headers=EXPLAIN)
            return {each["decode_pod"] for each in answer.json()["pagewire"]["explanation"]["candidates"]}

        assert await candidates() == {"d0", "d1"}
        bad.refusal = PodLost("its engine is gone")
        while await router.metric("pagewire_router_ejections_total") == 0:
            await candidates()
        bad.refusal = None
        num_submits = len(bad.submits)
        assert [await candidates() for _ in range(4)] == [{"d1"}] * 4
        assert len(bad.submits) == num_submits


async def test_grpc_explains_where_the_metadata_asks(start: StartRouter) -> None:
    request = pb.GenerateRequest(text="hello", sampling=pb.Sampling(max_tokens=3))
    async with start(*cluster(), policy="slo") as router:
        asked = [part async for part in router.rpc.Generate(request, metadata=(("x-pagewire-explain", "1"),))]
        explanation = asked[-1].complete.explanation
        assert explanation.policy == "slo"
        first, *others = explanation.options
        assert (first.way, first.reason) == ("remote", "")
        assert first.ttft_s == pytest.approx(first.queue_s + first.prefill_s + first.relay_s)
        assert first.ttft_s > 0 < first.tpot_s
        assert [other.reason != "" for other in others] == [True] * 3
        silent = [part async for part in router.rpc.Generate(request)]
        assert not silent[-1].complete.HasField("explanation")


async def test_the_sdk_says_why_a_request_was_placed(start: StartRouter) -> None:
    async with (
        start(*cluster(), policy="slo", slo_ttft_s=2.5) as router,
        AsyncClient(router.addresses["grpc"]) as client,
    ):
        explanation = (await client.generate("hello", max_tokens=3, explain=True)).explanation
        assert explanation is not None
        assert (explanation.policy, explanation.slo_ttft_s, explanation.slo_tpot_s) == ("slo", 2.5, 0.0)
        first, *others = explanation.options
        assert (first.way, first.decode_role, first.reason) == ("remote", "decode", "")
        assert first.ttft_s == pytest.approx(first.queue_s + first.prefill_s + first.relay_s)
        assert all(other.reason for other in others)
        assert (await client.generate("hello", max_tokens=3)).explanation is None


async def test_what_was_predicted_and_what_came_true_are_metrics(start: StartRouter) -> None:
    decode, prefill = FakePod("d0", role=Role.DECODE), FakePod("p0", role=Role.PREFILL)
    decode.timelines = (
        Timeline(process="d0", stamps=(Stamp(Phase.FIRST_TOKENS_RECEIVED, 5.0), Stamp(Phase.FIRST_STEP, 5.25))),
        Timeline(
            process="p0",
            stamps=(
                Stamp(Phase.RUN_RECEIVED, 1.0), Stamp(Phase.PREFILL_BEGUN, 1.5), Stamp(Phase.LAST_CHUNK_COMPUTED, 3.5),
            ),
        ),
    )  # fmt: skip
    async with start(decode, prefill) as router:
        for _ in range(3):
            assert (await router.complete(max_tokens=2)).status_code == 200
        text = (await router.http.get("/metrics")).text
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        for part, seconds in (("queue", 0.5), ("prefill", 2.0), ("gap", 0.25)):
            labels = f'{{model="fake",part="{part}",where="remote"}}'
            assert float(samples[f"pagewire_router_predictions_total{labels}"]) == 3
            assert float(samples[f"pagewire_router_actual_seconds_total{labels}"]) == pytest.approx(3 * seconds)
            said = float(samples[f"pagewire_router_predicted_seconds_total{labels}"])
            wrong = float(samples[f"pagewire_router_prediction_error_seconds_total{labels}"])
            assert wrong == pytest.approx(3 * seconds - said)
            assert float(samples[f"pagewire_router_prediction_correction{labels}"]) == 1.0
        assert float(samples['pagewire_router_predictions_total{model="fake",part="queue",where="local"}']) == 0


async def test_a_pod_that_drains_or_is_crowded_is_seen_at_once(start: StartRouter) -> None:
    first, second = FakePod("d0"), FakePod("d1")
    async with start(first, second, policy="slo") as router:
        first.load = Load(num_running=40, step_s=0.02, step_sequences=40.0, step_s_per_sequence=0.01)
        second.load = Load(step_s=0.02, step_s_per_sequence=0.01)

        async def goes_to(pod: FakePod) -> bool:
            before = len(pod.submits)
            await router.complete()
            return len(pod.submits) > before

        first.load = Load(num_running=40, step_s=0.4, step_sequences=40.0, step_s_per_sequence=0.01)
        await eventually(lambda: goes_to(second))
        assert [await goes_to(second) for _ in range(3)] == [True] * 3
        second.load = Load(draining=True)
        await eventually(lambda: goes_to(first))


PLUGIN = '''
from pagewire.router.policies.placement import placement


class Last:
    """The last pod of each kind, whatever it has to do."""

    def __init__(self, config):
        self.name = config.name

    def place(self, demand, decode, prefill):
        return placement(demand, decode[-1], prefill[-1:])


class Stranger(Last):
    def place(self, demand, decode, prefill):
        from pagewire.router.policies.placement import Placement

        return Placement(decode="nobody")


def nothing(config):
    return config
'''
ENTRY_POINTS = """[pagewire.policies]
last = last_pod_policy:Last
stranger = last_pod_policy:Stranger
nothing = last_pod_policy:nothing
missing = last_pod_policy:Missing
slo = last_pod_policy:Last
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution that brings policies, as pip would lay it out."""
    (tmp_path / "last_pod_policy.py").write_text(PLUGIN)
    info = tmp_path / "last_pod_policy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: last-pod-policy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "last_pod_policy", raising=False)


async def test_a_policy_that_is_installed_places_by_its_name(start: StartRouter, plugin: None) -> None:
    async with start(*cluster(), policy="last") as router:
        answer = await router.http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2}, headers=EXPLAIN)
        first, *others = answer.json()["pagewire"]["explanation"]["candidates"]
        assert (first["decode_pod"], first["prefill_pod"]) == ("d1", "p1")
        assert {other["reason"] for other in others} == {"the policy did not say"}
        assert [len(pod.submits) for pod in router.pods] == [0, 1, 0, 0]
    async with start(*cluster(), policy="stranger") as router:
        answer = await router.complete()
        assert answer.status_code == 500
        assert "'nobody', which is not among the pods" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody", "policy 'nobody' is not known; known are prefix_affinity, .*last, missing, nothing, slo, stranger"),
        ("missing", "policy 'missing' .*cannot be loaded"),
        ("nothing", "policy 'nothing' .*made a RouterConfig, which places nothing"),
    ],
)
def test_a_policy_that_cannot_be_had_is_refused_by_name(plugin: None, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy_named(RouterConfig(model=("m",), cluster_secret="s", policy=name))
    assert type(policy_named(RouterConfig(model=("m",), cluster_secret="s", policy="slo"))).__name__ == "Slo"
