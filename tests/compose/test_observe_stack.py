"""What the parts of compose.observe.yaml are told of each other: who is asked where, what the collector passes on.

Their configuration is read as they would read it. A Prometheus runs in tests/cluster and in tests/containers; the
others run nowhere.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from source_tree import ROOT

COMPOSE = ROOT / "compose"
DASHBOARDS = sorted((COMPOSE / "grafana" / "dashboards").glob("*.json"))
KINDS = ("receivers", "processors", "exporters")


def read(path: str) -> Any:
    return yaml.safe_load((COMPOSE / path).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def collector() -> dict[str, Any]:
    told: dict[str, Any] = read("otel/collector.yaml")
    return told


def service(name: str) -> dict[str, Any]:
    """Return a service as both files together say it."""
    files = [read(file)["services"].get(name, {}) for file in ("compose.yaml", "compose.observe.yaml")]
    return {**files[0], **files[1]}


def mounted(name: str, inside: str) -> Path:
    """Return what of this folder a service finds at a path of its own, unless variables say another."""
    volumes = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", each).split(":") for each in service(name)["volumes"]]
    (found,) = [source for source, at, *_ in volumes if at == inside]
    return COMPOSE / found


def misfits(told: dict[str, Any]) -> list[str]:
    """Return what pipelines name and nothing defines, and what is defined and in no pipeline."""
    pipelines = told["service"]["pipelines"].values()
    named = {f"{kind}: {name}" for each in pipelines for kind in KINDS for name in each.get(kind, ())}
    defined = {f"{kind}: {name}" for kind in KINDS for name in told.get(kind) or ()}
    return sorted(named ^ defined)


def test_pipelines_of_the_collector_are_of_parts_that_there_are(collector: dict[str, Any]) -> None:
    assert misfits(collector) == []
    for pipeline in collector["service"]["pipelines"].values():
        assert pipeline["receivers"]
        assert pipeline["exporters"]
        assert pipeline["processors"][0] == "memory_limiter", "what is refused is refused before it is gathered"


def test_a_pipeline_of_a_part_that_is_not_there_is_found_out(collector: dict[str, Any]) -> None:
    traces = {**collector["service"]["pipelines"]["traces"], "exporters": ["otlp/backend"]}
    wrong = {**collector, "service": {"pipelines": {"traces": traces}}}
    assert misfits(wrong) == ["exporters: debug", "exporters: otlp/backend"]


def test_routers_and_pods_send_to_where_the_collector_listens(collector: dict[str, Any]) -> None:
    listens = urlsplit(f"//{collector['receivers']['otlp']['protocols']['grpc']['endpoint']}")
    assert mounted("otel-collector", "/etc/otelcol/config.yaml") == COMPOSE / "otel" / "collector.yaml"
    for name in ("router", "prefill", "decode"):
        where = urlsplit(service(name)["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"])
        assert (where.scheme, where.hostname, where.port) == ("http", "otel-collector", listens.port)
    assert listens.hostname == "0.0.0.0"


def test_what_share_is_traced_can_be_said_and_the_router_alone_is_told() -> None:
    """A pod refuses to start with a setting that it does not have."""
    told = {name: service(name)["environment"].get("PAGEWIRE_TRACE_RATIO") for name in ("router", "prefill", "decode")}
    share = re.fullmatch(r"\$\{TRACE_RATIO:-([\d.]+)\}", told.pop("router"))
    assert share is not None
    assert set(told.values()) == {None}
    assert 0 < float(share[1]) < 1, "all of them are more than anybody reads"
    guide = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")
    assert re.findall(r"`TRACE_RATIO` says \(([\d.]+) there\)", guide) == [share[1]]


def test_the_guide_says_of_the_collector_what_the_services_are_told() -> None:
    guide = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")
    told = {service(name)["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] for name in ("router", "prefill", "decode")}
    assert set(re.findall(r"`OTEL_EXPORTER_OTLP_ENDPOINT=([^`]+)`", guide)) == told


def test_with_tls_prometheus_scrapes_the_same_and_knows_it_by_name() -> None:
    clear, with_tls = read("prometheus/prometheus.yml"), read("prometheus/prometheus-tls.yml")
    for job in with_tls["scrape_configs"]:
        if job["job_name"].startswith("pagewire-"):
            assert job.pop("scheme") == "https"
            assert job.pop("tls_config") == {"ca_file": "/etc/pagewire/certs/ca.pem", "server_name": "pagewire"}
    assert with_tls == clear


def test_prometheus_scrapes_what_is_there(collector: dict[str, Any]) -> None:
    (reader,) = collector["service"]["telemetry"]["metrics"]["readers"]
    own = reader["pull"]["exporter"]["prometheus"]
    asked: set[tuple[str, int]] = set()
    for job in read("prometheus/prometheus.yml")["scrape_configs"]:
        asked |= {(name, dns["port"]) for dns in job.get("dns_sd_configs", ()) for name in dns["names"]}
        for target in (each for static in job.get("static_configs", ()) for each in static["targets"]):
            where = urlsplit(f"//{target}")
            assert where.hostname
            assert where.port
            asked.add((where.hostname, where.port))
    pages = {(name, int(service(name)["healthcheck"]["test"][-1])) for name in ("router", "prefill", "decode")}
    assert asked == {*pages, ("otel-collector", own["port"])}
    assert all("inside" in service(name)["networks"] for name in ("prometheus", *(name for name, _ in asked)))


def test_grafana_asks_the_prometheus_that_there_is_and_finds_its_dashboards() -> None:
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    url, probe = urlsplit(source["url"]), urlsplit(service("prometheus")["healthcheck"]["test"][-1])
    assert (url.hostname, url.port) == ("prometheus", probe.port)
    (provider,) = read("grafana/provisioning/dashboards/pagewire.yaml")["providers"]
    assert mounted("grafana", provider["options"]["path"]) == COMPOSE / "grafana" / "dashboards"
    assert mounted("grafana", "/etc/grafana/provisioning") == COMPOSE / "grafana" / "provisioning"
    assert mounted("prometheus", "/etc/prometheus") == COMPOSE / "prometheus"


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_every_panel_and_every_list_asks_a_source_of_its_kind(file: Path) -> None:
    """Which one is chosen above the panels; with compose there is one."""
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    board = json.loads(file.read_text())
    (chosen,) = [each for each in board["templating"]["list"] if each["type"] == "datasource"]
    assert chosen["query"] == source["type"]
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    lists = [each for each in board["templating"]["list"] if each["type"] == "query"]
    asked = [each["datasource"] for each in (*panels, *lists, *(part for panel in panels for part in panel["targets"]))]
    assert [each for each in asked if each != {"type": source["type"], "uid": f"${{{chosen['name']}}}"}] == []
