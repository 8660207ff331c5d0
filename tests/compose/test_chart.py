"""The Helm chart: what it renders is what Kubernetes takes, for each way in which it can be used."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pydantic
import pytest
import yaml
from chart_rig import CHART, HELM_VERSION, REDIS, VOLUME, Manifest, Rendered, check, helm, refusal, render
from pretended_kubernetes import kubernetes

from pagewire.core.units import parse_bytes
from pagewire.serving.pod_config import KEPT_BYTES_PER_S, check_transports

SECURED: dict[str, Any] = {
    "existingSecret": "mine",
    "apiKeys": {"existingSecret": "keys"},
    "tls": {"existingSecret": "cluster-tls", "name": "pagewire.internal"},
    "edge": {"existingSecret": "edge-tls"},
    "monitors": {"enabled": True, "apiKeySecret": "scraper", "edgeName": "api.example.org"},
    "redis": {"enabled": False},
    "externalRedis": {"existingSecret": "redis", "caSecret": "redis-ca", "port": 6380},
}
GPUS: dict[str, Any] = {
    "models": ["/models/chat", "/models/code"],
    "image": {"registry": "registry.internal/ai/", "tag": "0.2.0", "pullSecrets": [{"name": "pull"}]},
    "socketHostPath": "/run/pagewire-sockets",
    "fastLink": {"topologyKey": "nvidia.com/gpu.clique", "required": True},
    "priorityClasses": {"create": True},
    "monitors": {"enabled": True},
    "keda": {"enabled": True, "authenticationRef": {"name": "prometheus"}},
    "poolDefaults": {
        "image": "pagewire-pod-cuda",
        "settings": {"kv_memory": "60GiB", "host_kv_memory": "190GiB", "transports": "nixl,grpc", "brownout": "on"},
        "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "8"}},
        "shmSize": "8Gi",
        "kvVolume": {"size": "200Gi", "storageClass": "local-nvme"},
        "runtimeClassName": "nvidia",
        "prefixes": '[policy]\ntext = "You are \\"careful\\"."\n',
        "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "nodeSelector": {"gpu": "h100"},
    },
    "pools": {
        "code-decode": {"role": "decode", "model": "/models/code", "autoscaling": {"kvShare": 0.8}},
        "code-colocated": {"role": "colocated", "model": "/models/code", "autoscaling": {"queueS": 2, "kvShare": 0.8}},
    },
}
USES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "secured": SECURED,
    "gpus and two models": GPUS,
    "callers show certificates": {"edge": {"existingSecret": "edge-tls", "clientCa": "callers"}},
    "its own redis, in its own way": {
        "image": {"pullSecrets": [{"name": "pull"}]},
        "redis": {
            "existingSecret": "password",
            "user": "cluster",
            "pullSecrets": [{"name": "pull"}],
            "nodeSelector": {"disk": "none"},
            "tolerations": [{"key": "redis", "operator": "Exists"}],
        },
    },
    "its own redis, by TLS": {
        "tls": {"existingSecret": "cluster-tls", "name": "pagewire.internal"},
        "redis": {"tls": {"existingSecret": "cluster-tls"}},
    },
    "bare": {
        "networkPolicy": {"enabled": False},
        "fastLink": {"topologyKey": ""},
        "router": {"autoscaling": {"enabled": False}, "podDisruptionBudget": None, "service": {"type": "LoadBalancer"}},
        "poolDefaults": {"podDisruptionBudget": None},
    },
    "scaled by keda": {"monitors": {"enabled": True}, "keda": {"enabled": True}},
}


@pytest.fixture(scope="module", params=USES, ids=[*USES])
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return render(USES[request.param])


def test_helm_is_the_pinned_one_and_finds_nothing_to_complain_of() -> None:
    assert helm("version", "--short").stdout.split("+")[0] == HELM_VERSION
    for chart, values in ((CHART, VOLUME), (REDIS, {})):
        done = helm("lint", str(chart), "--strict", values=values)
        assert done.returncode == 0, done.stdout


def test_manifests_fit_their_schemas(rendered: Rendered) -> None:
    for manifest in rendered.manifests:
        check(manifest)


def test_a_schema_refuses_what_is_wrong() -> None:
    good = render({"keda": {"enabled": True}, "monitors": {"enabled": True}})
    for kind, at, wrong in (
        ("StatefulSet", ("spec", "podManagementPolicie"), "Parallel"),
        ("NetworkPolicy", ("spec", "ingress"), "all"),
        ("ScaledObject", ("spec", "minReplicas"), 1),
        ("PodMonitor", ("spec", "selector"), "all"),
        ("PrometheusRule", ("spec", "group"), []),
    ):
        manifest = good.of(kind)[0]
        inner = manifest
        for step in at[:-1]:
            inner = inner[step]
        inner[at[-1]] = wrong
        with pytest.raises((AssertionError, kubernetes_validate.ValidationError, pydantic.ValidationError)):
            check(manifest)


def test_the_alerts_are_those_that_composes_prometheus_reads(tmp_path: Path) -> None:
    files = sorted((CHART.parent / "prometheus" / "rules").glob("*.yaml"))
    groups = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    assert any("alert" in rule for group in groups for rule in group["rules"])
    told = {"monitors": {"enabled": True, "labels": {"release": "prometheus"}}}
    (rule,) = render(told).of("PrometheusRule")
    check(rule)
    assert rule["spec"]["groups"] == groups
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    packaged = helm("package", str(CHART), "--destination", str(tmp_path))
    assert packaged.returncode == 0, packaged.stderr
    (archive,) = tmp_path.iterdir()
    assert render(told, chart=archive).of("PrometheusRule") == [rule]


def test_the_alerts_find_what_is_scraped_by_the_jobs_of_composes_prometheus() -> None:
    """An operator would name a job after a Service, or a namespace and a monitor: after the release."""
    config = yaml.safe_load((CHART.parent / "prometheus" / "prometheus.yml").read_text())
    jobs = {each["job_name"] for each in config["scrape_configs"]}
    rendered = render({"monitors": {"enabled": True}, "fullnameOverride": "other"})
    endpoints = [each["spec"]["endpoints"][0] for each in rendered.of("ServiceMonitor")]
    endpoints += [each["spec"]["podMetricsEndpoints"][0] for each in rendered.of("PodMonitor")]
    told = [rule for each in endpoints for rule in each["relabelings"] if rule["targetLabel"] == "job"]
    assert [rule["replacement"] for rule in told] == ["pagewire-router", "pagewire-pods"]
    assert not any("sourceLabels" in rule for rule in told)
    assert {rule["replacement"] for rule in told} <= jobs
    (rules,) = rendered.of("PrometheusRule")
    asked = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"] if "up{" in rule["expr"]]
    assert [re.findall(r'job=~?"([^"]+)"', each) for each in asked] == [["pagewire-router"], ["pagewire-(router|pods)"]]


@pytest.mark.parametrize("values", [{}, {"monitors": {"enabled": True, "rules": False}}], ids=["off", "by itself"])
def test_alerts_can_be_left_out(values: dict[str, Any]) -> None:
    assert render(values).of("PrometheusRule") == []


def test_names_are_unique_and_labels_select(rendered: Rendered) -> None:
    named = [(each["kind"], each["metadata"]["name"]) for each in rendered.manifests]
    assert len(named) == len(set(named))
    owners = [*rendered.of("Deployment"), *rendered.of("StatefulSet")]
    labels = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in owners}
    for each in owners:
        selector = each["spec"]["selector"]["matchLabels"].items()
        chosen = [name for name, have in labels.items() if selector <= have.items()]
        assert chosen == [each["metadata"]["name"]], "a selector takes another part's pods"
    for kind, key in (("Service", "selector"), ("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for each in rendered.of(kind):
            selector = each["spec"][key]
            selector = selector.get("matchLabels", selector).items()
            assert any(selector <= have.items() for have in labels.values()), each["metadata"]["name"]


def test_every_container_is_confined(rendered: Rendered) -> None:
    claims = {
        each["metadata"]["name"]: each["spec"].get("volumeClaimTemplates", []) for each in rendered.of("StatefulSet")
    }
    for owner, spec in rendered.templates().items():
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False  # a Service "pagewire" would set PAGEWIRE_PORT
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            volumes = {each["name"] for each in spec["volumes"]}
            volumes |= {each["metadata"]["name"] for each in claims.get(owner, [])}
            mounts = [each["name"] for each in container["volumeMounts"]]
            assert set(mounts) == volumes
            assert all(value not in str(container.get("args")) for value in ("REDIS_URL", "SECRET"))


def test_what_is_referred_to_is_there(rendered: Rendered) -> None:
    made = {(each["kind"], each["metadata"]["name"]) for each in rendered.manifests}
    theirs = {"mine", "keys", "cluster-tls", "edge-tls", "redis", "redis-ca", "callers", "password"}
    for spec in rendered.templates().values():
        assert "serviceAccountName" not in spec or ("ServiceAccount", spec["serviceAccountName"]) in made
        if "priorityClassName" in spec:
            assert ("PriorityClass", spec["priorityClassName"]) in made
        for volume in spec["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in made
            if "secret" in volume:
                assert volume["secret"]["secretName"] in theirs
        for variable in itertools.chain.from_iterable(each["env"] for each in spec["containers"]):
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference:
                assert ("Secret", reference["name"]) in made or reference["name"] in theirs
    for each in [*rendered.of("HorizontalPodAutoscaler"), *rendered.of("ScaledObject")]:
        target = each["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) in made
    names = {each["metadata"]["name"] for each in rendered.of("Service")}
    assert all(each["spec"]["serviceName"] in names for each in rendered.of("StatefulSet"))


def test_who_scales_alone_says_how_many() -> None:
    plain = render()
    assert "replicas" not in plain.one("Deployment", "router")["spec"], "the autoscaler's"
    assert plain.one("StatefulSet", "prefill")["spec"]["replicas"] == 1
    scaled = render(USES["scaled by keda"])
    assert "replicas" not in scaled.one("StatefulSet", "prefill")["spec"]
    assert "replicas" not in scaled.one("StatefulSet", "decode")["spec"]
    assert scaled.one("StatefulSet", "redis")["spec"]["replicas"] == 1


def test_where_scaling_is_turned_on_as_many_stay_as_there_are(tmp_path: Path) -> None:
    """A field that was there and is no more, Kubernetes takes for one replica: answers would be cut off."""
    live = {"StatefulSet/rel-pagewire-decode": 4, "Deployment/rel-pagewire-router": 3}
    with kubernetes(tmp_path, live) as config:
        scaled = render(USES["scaled by keda"], kubeconfig=config)
    assert scaled.one("StatefulSet", "decode")["spec"]["replicas"] == 4
    assert scaled.one("Deployment", "router")["spec"]["replicas"] == 3
    assert "replicas" not in scaled.one("StatefulSet", "prefill")["spec"], "it is not there yet"
    for manifest in scaled.manifests:
        check(manifest)


def test_a_pool_without_a_target_is_scaled_by_hand() -> None:
    """KEDA refuses an object without a trigger."""
    scaled = render(
        {**USES["scaled by keda"], "pools": {"extra": {"replicas": 3}, "other": {"autoscaling": {"tpotS": 0.1}}}}
    )
    assert scaled.one("StatefulSet", "extra")["spec"]["replicas"] == 3
    assert "replicas" not in scaled.one("StatefulSet", "other")["spec"]
    names = {each["metadata"]["name"].rpartition("-")[2] for each in scaled.of("ScaledObject")}
    assert names == {"prefill", "decode", "other"}
    assert all(each["spec"]["triggers"] for each in scaled.of("ScaledObject"))


def test_a_prometheus_that_scrapes_nobody_scales_nothing() -> None:
    """KEDA takes an empty answer for 0 unless it is told otherwise, and would send pods away that nobody sees."""
    triggers = [each for one in render(USES["scaled by keda"]).of("ScaledObject") for each in one["spec"]["triggers"]]
    assert {each["name"] for each in triggers} == {"queue", "kv", "tpot"}
    for each in triggers:
        assert each["metadata"]["ignoreNullValues"] == "false"
        assert "vector(" not in each["metadata"]["query"], "it would answer for pods of which nothing is known"


def test_names_are_such_that_kubernetes_makes_pods_of_them() -> None:
    """A pod's label with its StatefulSet's name and a hash of 11 characters has to fit into 63."""
    pool, longest = "a" * 20, "r" * 53  # as long as the schema, and as Helm, let them be
    fits = render({"fullnameOverride": "f" * 31, "pools": {pool: {"role": "decode"}}})
    assert max(len(each["metadata"]["name"]) for each in fits.of("StatefulSet")) == 52
    said = refusal({"fullnameOverride": "f" * 32, "pools": {pool: {"role": "decode"}}})
    assert "is longer than 52 characters" in said
    with_redis = render(release=longest)
    assert all(len(each["metadata"]["name"]) <= 52 for each in with_redis.of("StatefulSet"))
    assert "r" * 46 + "-redis" in {each["metadata"]["name"] for each in with_redis.of("StatefulSet")}


def test_a_pool_s_own_budget_is_the_one_that_counts() -> None:
    """Kubernetes refuses one that says both what must be there and what may be missing."""
    half, least = {"minAvailable": "50%"}, {"minAvailable": 1}
    pools = {"prefill": {"podDisruptionBudget": half}, "decode": {"podDisruptionBudget": None}, "extra": {}}
    rendered = render({
        "pools": pools, "poolDefaults": {"podDisruptionBudget": {"maxUnavailable": 2}},
        "router": {"podDisruptionBudget": least},
    })  # fmt: skip
    assert budgets(rendered) == {"prefill": half, "extra": {"maxUnavailable": 2}, "router": least}
    assert budgets(render()) == {each: {"maxUnavailable": 1} for each in ("prefill", "decode", "router")}


def budgets(rendered: Rendered) -> dict[str, Manifest]:
    found = {each["metadata"]["name"].rpartition("-")[2]: each["spec"] for each in rendered.of("PodDisruptionBudget")}
    return {
        name: {key: value for key, value in each.items() if key != "selector"} for name, each in found.items()
    }  # fmt: skip


@pytest.mark.parametrize("word", ["on", "no", "yes", "true", "off", "null"])
def test_names_that_yaml_reads_as_something_else_stay_names(word: str) -> None:
    secrets = {"existingSecret": "123"}
    values = {
        "pools": {word: {"role": "decode", "runtimeClassName": word, "priorityClassName": word}},
        "fullnameOverride": word, "nameOverride": word, "existingSecret": "123", "apiKeys": secrets,
        "tls": {**secrets, "name": word}, "edge": {**secrets, "clientCa": "12"}, "redis": {"enabled": False},
        "externalRedis": {**secrets, "caSecret": "1_0", "certSecret": "0x1"}, "fastLink": {"topologyKey": word},
        "monitors": {"enabled": True, "apiKeySecret": "12", "edgeSecret": "1", "edgeName": word},
        "socketHostPath": "/a b: c",
    }  # fmt: skip
    for manifest in render(values, release=word).manifests:
        check(manifest)


def test_what_a_part_sets_itself_is_set_once_and_where_it_was() -> None:
    """Whoever applies on the server refuses a variable that is there twice, and Redis' URL refers to one before it."""
    own = {"NCCL_DEBUG": "WARN", "REDIS_PASSWORD": "theirs", "PAGEWIRE_HOST": "::"}
    env = [{"name": name, "value": value} for name, value in own.items()]
    plain, told = render().templates(), render({"poolDefaults": {"env": env}, "router": {"env": env}}).templates()
    for name in ("rel-pagewire-router", "rel-pagewire-decode"):
        (before,), (after,) = plain[name]["containers"], told[name]["containers"]
        names = [each["name"] for each in after["env"]]
        assert names == [*(each["name"] for each in before["env"]), "NCCL_DEBUG"]
        assert names.index("REDIS_PASSWORD") < names.index("PAGEWIRE_REDIS_URL")
        assert {each["name"]: each["value"] for each in after["env"] if each["name"] in own} == own
    (bare,) = render({"router": {"env": None}}).templates()["rel-pagewire-router"]["containers"]
    assert bare["env"] == plain["rel-pagewire-router"]["containers"][0]["env"]


@pytest.mark.parametrize(
    ("kv_memory", "seconds"), [(None, 60), ("8GiB", 60), ("60GiB", 240), (60 << 30, 240), ("1.5TB", 5588)]
)
def test_a_pod_with_much_to_keep_has_the_time_to(kv_memory: str | int | None, seconds: int) -> None:
    """As the pod itself allows its engine: anything less, and it is killed in the middle of writing."""
    settings = {"host_kv_memory": "9GiB", **({"kv_memory": kv_memory} if kv_memory else {})}
    volume = {"settings": settings, "kvVolume": {"size": "9Gi"}}
    rendered = render({"pools": {"decode": volume}})
    graces = {name: spec["terminationGracePeriodSeconds"] for name, spec in rendered.templates().items()}
    assert graces["rel-pagewire-decode"] - graces["rel-pagewire-prefill"] == seconds
    assert seconds >= math.ceil(parse_bytes(str(kv_memory or "1GiB")) / KEPT_BYTES_PER_S)


@pytest.mark.parametrize(("drain_s", "handover_s"), [(30, 15), (0, 0), (899.5, 60.5)])
def test_there_is_time_to_drain(drain_s: float, handover_s: float) -> None:
    values = {
        "router": {"settings": {"drain_s": drain_s}, "preStopS": 7},
        "poolDefaults": {"settings": {"drain_s": drain_s, "handover_s": handover_s}},
    }
    templates = render(values).templates()
    router, prefill = templates["rel-pagewire-router"], templates["rel-pagewire-prefill"]
    (container,) = router["containers"]
    assert container["lifecycle"]["preStop"] == {"sleep": {"seconds": 7}}
    assert router["terminationGracePeriodSeconds"] >= 7 + drain_s + 10
    assert prefill["terminationGracePeriodSeconds"] >= drain_s + handover_s + 10


def test_a_volume_for_kv_is_where_the_pod_keeps_it_and_there_is_time_to() -> None:
    plain = {"host_kv_memory": "40GiB"}
    volume = {"size": "50Gi", "storageClass": "nvme", "keepS": 90}
    rendered = render({"poolDefaults": {"settings": plain}, "pools": {"decode": {"kvVolume": volume}}})
    bare, kept = (rendered.one("StatefulSet", name)["spec"] for name in ("prefill", "decode"))
    (claim,) = kept["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "nvme"
    assert claim["spec"]["resources"]["requests"]["storage"] == "50Gi"
    (container,) = kept["template"]["spec"]["containers"]
    (mounted,) = [each for each in container["volumeMounts"] if each["name"] == claim["metadata"]["name"]]
    settings = tomllib.loads(rendered.one("ConfigMap", "decode")["data"]["pod.toml"])
    assert settings["host_kv_dir"].startswith(f"{mounted['mountPath']}/")
    grace = "terminationGracePeriodSeconds"
    assert kept["template"]["spec"][grace] == bare["template"]["spec"][grace] + 90
    assert "volumeClaimTemplates" not in bare
    assert "host_kv_dir" not in tomllib.loads(rendered.one("ConfigMap", "prefill")["data"]["pod.toml"])


def test_a_router_that_need_not_wait_does_not_sleep_for_nothing() -> None:
    """Kubernetes refuses a sleep of 0 until 1.33, and the schemas know no such bound."""
    (container,) = render({"router": {"preStopS": 0}}).templates()["rel-pagewire-router"]["containers"]
    assert "lifecycle" not in container


def test_prefill_and_decode_seek_one_domain() -> None:
    soft = render().templates()
    hard = render(GPUS).templates()
    pods = {"app.kubernetes.io/instance": "rel", "pagewire.io/holds-kv": "true"}
    for name in ("rel-pagewire-prefill", "rel-pagewire-decode"):
        (wish,) = soft[name]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert wish["podAffinityTerm"] == {
            "topologyKey": "topology.kubernetes.io/zone",
            "labelSelector": {"matchLabels": pods},
        }
        (need,) = hard[name]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert need == {"topologyKey": "nvidia.com/gpu.clique", "labelSelector": {"matchLabels": pods}}


def test_who_gives_way_to_whom() -> None:
    rendered = render(GPUS)
    value = {each["metadata"]["name"]: each["value"] for each in rendered.of("PriorityClass")}
    templates = rendered.templates()
    of = {name: value[spec["priorityClassName"]] for name, spec in templates.items() if "priorityClassName" in spec}
    assert of["rel-pagewire-router"] > of["rel-pagewire-decode"] > of["rel-pagewire-prefill"]
    assert of["rel-pagewire-code-colocated"] == of["rel-pagewire-decode"]


def test_nobody_else_gets_through() -> None:
    rendered = render()
    pods = rendered.one("NetworkPolicy", "-pods")["spec"]
    assert [rule["ports"] for rule in pods["ingress"]] == [
        [{"port": "grpc"}, {"port": "socket"}],
        [{"port": "grpc"}, {"port": "socket"}],
        [{"port": "http"}],
    ]
    assert all(rule["from"] for rule in pods["ingress"])
    redis = rendered.one("NetworkPolicy", "-redis")["spec"]
    assert len(redis["ingress"][0]["from"]) == 2
    assert redis["egress"] == []
    free = render({"poolDefaults": {"settings": {"transports": "nixl"}}}).one("NetworkPolicy", "-pods")["spec"]
    assert "ports" not in free["ingress"][0], "nixl chooses its ports"
    assert free["ingress"][1]["ports"] == [{"port": "grpc"}, {"port": "socket"}], "links do not"


@pytest.mark.parametrize("transport", ["shm", "grpc", "tcp", "collective", "nixl", "cuda_ipc"])
def test_with_tls_the_chart_refuses_the_transports_that_pods_would_refuse(transport: str) -> None:
    values = {**SECURED, "poolDefaults": {"settings": {"transports": f"grpc, {transport}"}}}
    try:
        check_transports(f"grpc, {transport}")
    except ValueError:
        assert f"{transport} sends in the clear" in refusal(values)
    else:
        render(values)


@pytest.mark.parametrize("release", ["1rel", "my.rel", "12345e7"])
def test_a_release_that_no_service_can_be_called_after_is_refused(release: str) -> None:
    done = helm("template", release, str(CHART), values=VOLUME)
    assert "cannot be a Service's name" in done.stderr


def test_a_secret_is_made_once_and_never_where_there_is_one() -> None:
    for name, keys in (("pagewire", {"cluster-secret", "operator-key"}), ("redis", {"redis-password"})):
        first, second = (render().one("Secret", name)["data"] for _ in range(2))
        assert first.keys() == keys
        assert all(first[key] != second[key] for key in first)
    assert render(SECURED).of("Secret") == []


def test_redis_is_a_dependency_that_comes_with_the_chart(tmp_path: Path) -> None:
    """Nothing is fetched, by whatever of the two a release is made: folder or package."""
    (needs,) = yaml.safe_load((CHART / "Chart.yaml").read_text())["dependencies"]
    comes = yaml.safe_load((REDIS / "Chart.yaml").read_text())
    assert (needs["name"], needs["version"]) == (comes["name"], comes["version"])
    assert "repository" not in needs
    assert helm("package", str(CHART), "--destination", str(tmp_path)).returncode == 0
    for chart in (CHART, *tmp_path.iterdir()):
        check(render(chart=chart).one("StatefulSet", "rel-redis"))
        without = render({"redis": {"enabled": False}, "externalRedis": {"existingSecret": "mine"}}, chart=chart)
        assert not any("redis" in each["metadata"]["name"] for each in without.manifests)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"modelVolume": {}}, "modelVolume says where the models lie"),
        ({"modelVolume": {"nfs": {}, "hostPath": {}}}, "'/modelVolume': maxProperties"),
        ({"pools": {"prefill": {"role": "prefil"}}}, "'prefill', 'decode', 'colocated'"),
        ({"poolDefaults": {"settings": {"chunk": 1}}}, "'chunk' not allowed"),
        ({"poolDefaults": {"settings": {"brownout": True}}}, "'off', 'on'"),
        ({"router": {"settings": {"host": "0.0.0.0"}}}, "'host' not allowed"),
        ({"pools": {"router": {}}}, "router"),
        ({"keda": {"enabled": True}}, "/monitors/enabled"),
        ({"monitors": {"enabled": True}, "apiKeys": {"existingSecret": "keys"}}, "monitors.apiKeySecret"),
        (
            {"monitors": {"enabled": True}, "edge": {"existingSecret": "edge", "clientCa": "callers"}},
            "monitors.edgeSecret",
        ),
        (
            {"monitors": {"enabled": True, "edgeSecret": "scrape"}, "edge": {"existingSecret": "edge"}},
            "monitors.edgeName",
        ),
        ({"poolDefaults": {"settings": {"metrics_tls": "mutual"}}}, "tls.existingSecret"),
        ({"tls": {"existingSecret": "tls"}}, "tls.name"),
        ({"redis": {"enabled": False}}, "externalRedis.existingSecret"),
        ({"redis": {"maxMemory": "much"}}, "/maxMemory"),
        ({"redis": {"tls": {"existingSecret": "redis-tls"}}}, "go together"),
        ({"tls": {"existingSecret": "cluster-tls", "name": "a"}}, "go together"),
        ({"redis": {"maxmemory": "1gb"}}, "'maxmemory' not allowed"),
        ({"edge": {"clientCa": "callers"}}, "edge.existingSecret or tls.existingSecret"),
        ({"poolDefaults": {"settings": {"adapter": [1]}}}, "adapter"),
        ({"rooter": {}}, "'rooter' not allowed"),
        ({"pools": {"decode": {"kvVolume": {"size": "9Gi"}}}}, "pool decode has a kvVolume: settings.host_kv_memory"),
        ({"pools": {"decode": None}}, "no pool decodes /models/smollm2"),
        ({"models": ["/models/smollm2", "/models/other"]}, "no pool decodes /models/other"),
        ({"models": ["/models/a/x", "/models/b/x"]}, "both would be called x"),
        (
            {**SECURED, "poolDefaults": {"settings": {"transports": "nixl, grpc"}}},
            "transports of the pool decode: nixl sends in the clear",
        ),
        ({"nameOverride": "redis"}, "rel-redis is the name of the release's Redis"),
        ({"fullnameOverride": "Foo_Bar"}, "/fullnameOverride"),
        ({"monitors": {"enabled": True, "interval": "1m"}}, "/monitors/interval"),
        ({"pools": {"prefill": {"model": "/models/other"}}}, "/models/other of the pool prefill is none of models"),
        (
            {"router": {"autoscaling": {"minReplicas": 9}}},
            "autoscaling of router: minReplicas 9 is above maxReplicas 8",
        ),
        (
            {
                "pools": {"decode": {"autoscaling": {"minReplicas": 9}}},
                "keda": {"enabled": True},
                "monitors": {"enabled": True},
            },
            "autoscaling of decode: minReplicas 9",
        ),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(values: dict[str, Any], said: str) -> None:
    assert said in refusal(values)
