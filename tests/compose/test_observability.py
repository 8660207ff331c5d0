"""Dashboards, rules and alerts: what Prometheus and Grafana will read, and that it asks for metrics which exist.

That a real cluster shows what docs/metrics.md lists is proved in tests/cluster.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards import DASHBOARDS, PROMETHEUS, asked, filled_in, panels
from metric_names import Row, family_of, kept_by, listed, matchers_in, names_in

OF_SCRAPES = {"instance", "job"}
OF_RELEASES = {"namespace", "release"}
ALERTS = {
    "PagewireNoDecodePod": "alert-no-decode-pod",
    "PagewireIndexAway": "alert-index-away",
    "PagewireTargetDown": "alert-target-down",
    "PagewireBlockExhaustion": "alert-block-exhaustion",
    "PagewireRecaptureRate": "alert-recapture-rate",
    "PagewireZeroHitIndex": "alert-zero-hit-index",
    "PagewireSloBurnRate": "alert-slo-burn-rate",
    "PagewireExposedTransfer": "alert-exposed-transfer",
    "PagewireLinkFallback": "alert-link-fallback",
    "PagewireOrphanLeases": "alert-orphan-leases",
    "PagewireCertificateExpiry": "alert-certificate-expiry",
}
# What the dashboard asks for that comes with vLLM, examples/online_serving/prometheus_grafana/grafana.json.
ASKED_BY_VLLM = {
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:prompt_tokens_total": "counter",
    "vllm:generation_tokens_total": "counter",
    "vllm:time_per_output_token_seconds": "histogram",
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:gpu_cache_usage_perc": "gauge",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:request_success_total": "counter",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_max_num_generation_tokens": "histogram",
}


def promtool(*arguments: str) -> str:
    """Run promtool; fails with what it said."""
    program = shutil.which("promtool")
    if program is None:
        pytest.fail("promtool is missing: `make setup-system` installs it (Debian's package prometheus)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def rules() -> Iterator[dict[str, Any]]:
    for file in sorted((PROMETHEUS / "rules").glob("*.yaml")):
        for group in yaml.safe_load(file.read_text())["groups"]:
            yield from group["rules"]


def known() -> dict[str, Row | None]:
    """Return what may be asked for: what processes show, what rules record, and what is Prometheus' own."""
    recorded = {rule["record"]: None for rule in rules() if "record" in rule}
    return {**listed(), **recorded, "ALERTS": None, "up": None}


def strange(expression: str) -> list[str]:
    """Return what of an expression nobody shows: metrics, and labels that a metric does not have."""
    found, names = [], known()
    for name, labels in matchers_in(expression):
        family = family_of(name, names)
        if family not in names:
            found.append(name)
            continue
        row = names[family]
        if row is not None:
            found += [f"{name}{{{label}}}" for label in labels - row.labels - OF_SCRAPES - {"le"}]
    return found


def test_prometheus_reads_its_configuration_and_all_rules() -> None:
    said = promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))
    assert f"{len(list((PROMETHEUS / 'rules').glob('*.yaml')))} rule files found" in said
    promtool("check", "config", "--syntax-only", str(PROMETHEUS / "prometheus-tls.yml"))  # its authority is not here


@pytest.mark.parametrize("file", sorted((Path(__file__).parent / "rules").glob("*.yaml")), ids=lambda file: file.stem)
def test_rules_compute_and_fire_as_they_should(file: Path) -> None:
    promtool("test", "rules", str(file))


def test_every_alert_is_tried() -> None:
    tried = {
        case["alertname"]
        for file in (Path(__file__).parent / "rules").glob("*.yaml")
        for test in yaml.safe_load(file.read_text())["tests"]
        for case in test.get("alert_rule_test", ())
        if case["exp_alerts"]
    }
    assert tried == {rule["alert"] for rule in rules() if "alert" in rule} == set(ALERTS)


@pytest.mark.parametrize("rule", [rule for rule in rules() if "alert" in rule], ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "action", "playbook"}
    assert all("\n" not in text for text in notes.values())
    assert notes["playbook"] == f"docs/operations.md#{ALERTS[rule['alert']]}"
    assert rule["labels"]["severity"] in ("page", "warning")
    assert rule["for"]


def test_rules_ask_for_what_is_shown() -> None:
    assert [found for rule in rules() for found in strange(rule["expr"])] == []


def test_two_releases_of_a_model_stay_two_in_every_rule() -> None:
    """The chart's monitors give every series these labels, and an alert is to say whose it is."""
    expressions = [rule["expr"] for rule in rules()]
    assert not any(re.search(r"\bwithout\b|\b(on|ignoring) ?\(", each) for each in expressions)
    kept = [kept_by(each) for each in expressions]
    assert sum(map(len, kept)) > 20
    assert [
        each for each, levels in zip(expressions, kept, strict=True) if any(OF_RELEASES - by for by in levels)
    ] == []


@pytest.mark.parametrize(
    ("expression", "levels"),
    [
        ("a > 0", []),
        ("sum(a)", [set()]),
        ("max by (x, y) (sum by (z) (a))", [{"x", "y"}, {"z"}]),
        ("sum(rate(a[5m])) by (x) / (min(b) > 0)", [{"x"}, set()]),
    ],
)
def test_what_an_aggregate_keeps_is_read(expression: str, levels: list[set[str]]) -> None:
    assert kept_by(expression) == levels


def test_only_of_what_counts_is_it_asked_how_fast_it_grows() -> None:
    """To Prometheus a gauge that falls is no counter that began anew."""
    shown, asking = listed(), [rule["expr"] for rule in rules()]
    asking += [expression for file in DASHBOARDS for _, expression in asked(file, interval="5m")]
    grow = {name for each in asking for name in re.findall(r"\b(?:i?rate|increase)\(([\w:]+)", each)}
    assert len(grow) > 40
    kinds = {name: shown[family_of(name, shown)].kind for name in grow}
    assert {name: kind for name, kind in kinds.items() if kind not in ("counter", "histogram")} == {}


@pytest.mark.parametrize("percentile", ["p50", "p95", "p99"])
@pytest.mark.parametrize("what", ["ttft", "tpot", "queue"])
def test_percentiles_are_recorded(what: str, percentile: str) -> None:
    assert f"model_name:{what}_seconds:{percentile}" in known()


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_a_dashboard_asks_for_what_is_shown(file: Path) -> None:
    for title, expression in asked(file, interval="5m"):
        assert names_in(expression), title
        assert strange(expression) == [], f"{title}: {expression}"


def test_a_pod_that_several_routers_see_is_one_pod(tmp_path: Path) -> None:
    """And the same model's pods of two releases are not: there each router sees its own."""
    (expression,) = [
        each for file in DASHBOARDS for title, each in asked(file, interval="5m") if title == "Usable pods"
    ]
    seen = [("a", "r0", "decode", 3), ("a", "r1", "decode", 3), ("a", "r0", "prefill", 1), ("b", "r2", "decode", 2)]
    shown = 'pagewire_router_pods{{model="m", role="{}", release="{}", instance="{}"}}'
    case = {
        "input_series": [
            {"series": shown.format(role, release, router), "values": str(number)}
            for release, router, role, number in seen
        ],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": "0s",
                "exp_samples": [
                    {"labels": f'{{role="{role}"}}', "value": number}
                    for role, number in (("decode", 5), ("prefill", 1))
                ],
            }
        ],
    }
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump({"tests": [case]}))
    promtool("test", "rules", str(tmp_path / "pods.yaml"))


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_every_panel_has_a_unit_and_says_what_it_shows(file: Path) -> None:
    board = json.loads(file.read_text())
    for panel in panels(board):
        assert panel["title"], panel
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]
    titles = [panel["title"] for panel in panels(board)]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_a_dashboards_variables_are_those_that_it_uses(file: Path) -> None:
    board = json.loads(file.read_text())
    declared = {variable["name"] for variable in board["templating"]["list"]}
    used = json.dumps([*board["panels"], *(v.get("query") for v in board["templating"]["list"])])
    assert set(re.findall(r"\$\{?([a-z]\w*)", used)) == declared
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
            assert found is not None
            (name,) = names_in(filled_in(found[1]))
            row = known()[name]
            assert row is not None
            assert found[2] in row.labels


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_panels_lie_beside_each_other(file: Path) -> None:
    taken: dict[tuple[int, int], str] = {}
    board = json.loads(file.read_text())
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_there_is_a_dashboard_for_each_subject() -> None:
    assert {file.stem for file in DASHBOARDS} == {"overview", "users", "pods", "transfers", "router"}
    assert len({json.loads(file.read_text())["uid"] for file in DASHBOARDS}) == len(DASHBOARDS)


def test_vllms_own_dashboard_finds_what_it_asks_for() -> None:
    rows = listed()
    assert {name: rows[name].kind for name in ASKED_BY_VLLM} == ASKED_BY_VLLM
    assert all("model_name" in rows[name].labels for name in ASKED_BY_VLLM)
    assert "finished_reason" in rows["vllm:request_success_total"].labels


@pytest.mark.parametrize("expression", ["sum(rate(a[5m])", "a{b=}", "rate()"])
def test_what_is_no_promql_is_found_out(expression: str) -> None:
    with pytest.raises(ValueError):
        names_in(expression)


def test_what_nobody_shows_is_found_out() -> None:
    assert strange("rate(pagewire_no_such_total[5m])") == ["pagewire_no_such_total"]
    assert strange('pagewire_kv_blocks_free{model="x"}') == ["pagewire_kv_blocks_free{model}"]
