"""docs/operations.md says what is so: names, defaults, commands, pages and links are those of the code."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from chart_rig import CHART, REDIS, check, render
from metric_names import family_of, listed
from source_tree import ROOT

from pagewire.cli.commands import build
from pagewire.core.config import Setting, settings
from pagewire.core.messages import Role
from pagewire.engine.config import EngineConfig
from pagewire.engine.graph_limits import GraphLimits
from pagewire.kvtransfer.offers import parse_names
from pagewire.router import http
from pagewire.router.config import RouterConfig
from pagewire.serving import http_port
from pagewire.serving.pod_config import PodConfig

GUIDE = ROOT / "docs" / "operations.md"
TEXT = GUIDE.read_text()
METRIC = re.compile(r"(?<![\w/-])(?:pagewire_|vllm:)[a-z0-9_]+[a-z0-9]")
SPANS = set(re.findall(r"`([^`\n]+)`", TEXT))
ALERTS = (
    "alert-no-decode-pod",
    "alert-index-away",
    "alert-target-down",
    "alert-block-exhaustion",
    "alert-recapture-rate",
    "alert-zero-hit-index",
    "alert-slo-burn-rate",
    "alert-exposed-transfer",
    "alert-link-fallback",
    "alert-orphan-leases",
)


def known(cls: type) -> dict[str, Setting]:
    return {each.name: each for each in settings(cls)}


ROUTER, POD = known(RouterConfig), known(PodConfig)


def anchors(path: Path) -> set[str]:
    """Return what the headings of a page can be linked by, as GitHub makes it of them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_every_alert_has_its_chapter() -> None:
    assert anchors(GUIDE) >= set(ALERTS)
    for rules in (ROOT / "compose" / "prometheus" / "rules").glob("*.yaml"):
        for group in yaml.safe_load(rules.read_text())["groups"]:
            for rule in group["rules"]:
                if "alert" in rule:
                    page, _, anchor = rule["annotations"]["playbook"].partition("#")
                    assert page.endswith("docs/operations.md")
                    assert anchor in anchors(GUIDE), rule["alert"]


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        page, _, anchor = target.partition("#")
        path = GUIDE.parent / page if page else GUIDE
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def test_metrics_are_shown() -> None:
    names, shown = set(METRIC.findall(TEXT)), listed()
    assert len(names) > 40
    assert [name for name in sorted(names) if family_of(name, shown) not in shown] == []


def test_settings_have_the_defaults_that_are_told() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (router|pod) \| ([\d.]+) \|$", TEXT, re.MULTILINE)
    assert len(rows) >= 5
    for name, of, default in rows:
        assert str((ROUTER if of == "router" else POD)[name].default) == default, name


def test_words_that_look_like_settings_are_some() -> None:
    """Whatever is one word with an underscore: a setting, a cause, a label, a level, a metric, or a value of those."""
    others = {"no_answer", "unlike_pods", "nothing_cached", "nothing_published", "queue_full", "queue_wait"}
    others |= {"cache_salt", "max_tokens", "exposed_s", "transfer_s", "cuda_ipc", "cpu_shares"}
    words = {each for each in SPANS if re.fullmatch(r"[a-z]+(_[a-z]+)+", each)} - others
    assert sorted(words - ROUTER.keys() - POD.keys() - set(METRIC.findall(TEXT))) == []
    source = "".join(path.read_text() for path in [*(ROOT / "router").glob("*.py"), *(ROOT / "core").glob("*.py")])
    assert [each for each in sorted(others - {"cuda_ipc", "cpu_shares"}) if each not in source] == []


def test_values_of_the_chart_are_some() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    values["redis"] |= yaml.safe_load((REDIS / "values.yaml").read_text())
    pool = values["poolDefaults"]
    told = {each for each in SPANS if re.fullmatch(r"[a-zA-Z]+(\.[a-zA-Z]+)+", each)}
    told = {each for each in told if each.split(".")[0] in values}
    assert len(told) >= 8
    for each in told:
        first, *rest = each.split(".")
        at = pool if first == "pools" and len(rest) > 1 else values[first]
        for step in rest[1:] if at is pool else rest:
            assert step in at, each
            at = at[step]
    for each in ("fastLink", "socketHostPath", "existingSecret", "modelVolume", "models", "cluster"):
        assert each in values
    assert all(each in pool["autoscaling"] for each in ("queueS", "kvShare", "tpotS", "maxReplicas"))
    for name, default in re.findall(r"`(preStopS|startupS)` \((\d+) s\)", TEXT):
        assert {**pool, **values["router"]}[name] == int(default)


def test_yaml_is_values_of_the_chart_and_all_of_it_goes_with_the_first() -> None:
    first, *others = (yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
    assert len(others) == 3
    for block in ({}, *others):
        for manifest in render({**first, **block}).manifests:
            check(manifest)


def test_the_example_with_gpus_asks_for_all_that_a_pod_on_one_needs() -> None:
    first, gpu = (yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[:2])
    rendered = render({**first, **gpu})
    for name in ("prefill", "decode"):
        spec = rendered.templates()[f"rel-pagewire-{name}"]
        (container,) = spec["containers"]
        assert spec["runtimeClassName"] == "nvidia"
        assert container["image"] == "registry.internal/pagewire/pagewire-pod-cuda:0.1.0"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        told = tomllib.loads(rendered.one("ConfigMap", f"rel-pagewire-{name}")["data"]["pod.toml"])
        assert told["device"] == "cuda"
        assert parse_names(told["transports"], told["device"])


def test_pods_of_the_chart_are_called_as_kubernetes_calls_them() -> None:
    """Where the guide names one; a pod tells its id by that field."""
    names = re.findall(r"statefulset/(\S+) ", TEXT)
    asked = re.findall(r"`pagewire role (\S+) ", TEXT)
    assert len(asked) >= 2
    release = render({}, release="pagewire")
    assert {each.rpartition("-")[0] for each in asked} <= set(names) <= release.templates().keys()
    (container,) = release.templates()["pagewire-prefill"]["containers"]
    (pod_id,) = [each["valueFrom"] for each in container["env"] if each["name"] == "PAGEWIRE_POD_ID"]
    assert pod_id == {"fieldRef": {"fieldPath": "metadata.name"}}


def test_graphs_are_captured_for_the_batches_that_are_told() -> None:
    (told,) = re.findall(r"for batches of ([\d, ]+), of every multiple of (\d+) beyond and of `max_num_seqs`", TEXT)
    small, every = [int(each) for each in told[0].split(",")], int(told[1])
    ((decodes, told_most, others),) = re.findall(
        r"`graphs: (\d+) of \1 captured`: that many, with (\d+) sequences at most, are of decodes, up to (\d+) more",
        TEXT,
    )
    most = int(str(POD["max_num_seqs"].default))
    for most_seqs in (most, most + 1):
        limits = GraphLimits(max_num_seqs=most_seqs, max_model_len=512, block_size=16, vocab_size=512)
        sizes = [bucket.num_sequences for bucket in limits.decodes()]
        assert sizes == [*small, *range(2 * every, most_seqs, every), most_seqs]
    assert [int(decodes), int(told_most)] == [len(small) + most // every - 1, most]
    config = EngineConfig(model="m", role=Role.COLOCATED, device="cuda")
    limits = GraphLimits(
        max_num_seqs=most, max_model_len=4096, block_size=16, vocab_size=512,
        longest_step=config.max_num_batched_tokens, longest_chunk=config.chunk_size,
    )  # fmt: skip
    assert int(others) == len(limits.mixed())
    for page in (GUIDE, GUIDE.parent / "metrics.md"):
        assert not re.search(r"capture (no|none)\b", page.read_text()), page.name


def commands() -> list[list[str]]:
    """Return the command lines of `pagewire` in the guide."""
    lines = [line for block in re.findall(r"```\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    found = [each for each in [*lines, *sorted(SPANS)] if each.startswith("pagewire ")]
    return [shlex.split(each)[1:] for each in found]


def flags_by_command() -> dict[str, set[str]]:
    """Return the flags that each command of `pagewire` takes."""
    group: Any = typer.main.get_command(build())
    return {name: {flag for each in one.params for flag in each.opts} for name, one in group.commands.items()}


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_are_taken(words: list[str]) -> None:
    name, *rest = words
    assert {each for each in rest if each.startswith("--")} <= flags_by_command()[name]


def test_flags_are_some() -> None:
    ours = {each for each in SPANS if not each.startswith(("kubectl", "helm"))}
    flags = {each for span in ours for each in re.findall(r"(?<!\S)--[a-z][a-z-]+", span)}
    assert flags - set().union(*flags_by_command().values()) == set()


def test_pages_are_served() -> None:
    source = Path(str(http.__file__)).read_text()
    pods = Path(str(http_port.__file__)).read_text()
    for page in ("/health", "/live", "/metrics"):
        assert f'"{page}"' in source
        assert f'"{page}"' in pods
    for page in ("/ready", "/ping"):
        assert f'"{page}"' in source
    assert any('"/ui"' in path.read_text() for path in (ROOT / "router").rglob("*.py"))
    for header in ("x-pagewire-timeline", "x-pagewire-explain"):
        assert f'"{header}"' in source
