"""What the chart tells the processes is what they take: settings, ports, pages, users, metrics."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import byte_tokenizer
import chart_schema
import pytest
import redis
from chart_rig import Manifest, Rendered, render
from free_ports import free_port
from index_rig import eventually
from metric_names import listed, names_in
from redis_rig import KINDS, REDIS, Certificates, certificates, program

from pagewire.cli.commands import OTHER_VARIABLES
from pagewire.core.config import load
from pagewire.core.messages import Role
from pagewire.engine import prefix_file
from pagewire.router.config import RouterConfig
from pagewire.serving.pod_config import PodConfig
from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.registry import Registry

SECRETS = {"cluster-secret": "s3cret", "redis-password": "pw0rd", "operator-key": "op", "redis-url": "rediss://r:6380"}
FIELDS = {"metadata.name": "rel-pagewire-0", "status.podIP": "10.0.0.7"}
IMAGE = {"PAGEWIRE_MODELS_DIR": "/models"}  # what compose/Dockerfile sets and the chart does not

FULL: dict[str, Any] = {
    "models": ["/models/chat", "/models/code"],
    "apiKeys": {"existingSecret": "keys"},
    "tls": {"existingSecret": "tls", "name": "pagewire.internal"},
    "edge": {"existingSecret": "edge", "clientCa": "callers"},
    "redis": {"enabled": False},
    "externalRedis": {"existingSecret": "redis", "caSecret": "ca", "certSecret": "us"},
    "socketHostPath": "/run/sockets",
    "router": {"settings": {"slo_ttft_s": 2, "policy": "slo", "kv_limit": False, "max_body_bytes": "4MiB"}},
    "poolDefaults": {
        "settings": {"kv_memory": "8GiB", "step_target_ms": 40, "deterministic": True, "transports": "shm,grpc"},
        "prefixes": '[one]\ntext = "You are \\"careful\\"."\n',
    },
    "pools": {
        "prefill": {"settings": {"chunk_size": 512, "threads": 3, "adapter": ["one=/models/one", "two=/models/two"]}},
        "decode": {"model": "/models/code", "settings": {"adapter": "one=/models/one"}},
        "chat": {"role": "colocated"},
    },
}


SCRAPED: dict[str, Any] = {"enabled": True, "apiKeySecret": "scraper"}


def container(rendered: Rendered, name: str) -> Manifest:
    (found,) = rendered.templates()[name]["containers"]
    return dict(found)


def environment(one: Manifest) -> dict[str, str]:
    """Return the variables as the kubelet would set them."""
    env: dict[str, str] = dict(IMAGE)
    for each in one["env"]:
        source = each.get("valueFrom", {})
        if "secretKeyRef" in source:
            env[each["name"]] = SECRETS[source["secretKeyRef"]["key"]]
        elif "fieldRef" in source:
            env[each["name"]] = FIELDS[source["fieldRef"]["fieldPath"]]
        elif "resourceFieldRef" in source:
            amount = one["resources"][source["resourceFieldRef"]["resource"].split(".")[0]]["cpu"]
            env[each["name"]] = amount
        else:
            env[each["name"]] = re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], each["value"])
    return env


def file_of(rendered: Rendered, name: str, folder: Path) -> Path:
    """Write the ConfigMap of a part where its volume would be, and return the file that its arguments name."""
    data = rendered.one("ConfigMap", name)["data"]
    for key, text in data.items():
        (folder / key).write_text(text)
    return folder / Path(container(rendered, name)["args"][2]).name


def router_config(rendered: Rendered, folder: Path) -> RouterConfig:
    one = container(rendered, "rel-pagewire-router")
    assert one["args"][:2] == ["router", "--config"]
    file = file_of(rendered, "rel-pagewire-router", folder)
    return load(RouterConfig, file=file, environ=environment(one), flags={}, other_variables=OTHER_VARIABLES).value


def pod_config(rendered: Rendered, name: str, folder: Path) -> PodConfig:
    one = container(rendered, name)
    flags = {"role": Role(one["args"][0])}
    file = file_of(rendered, name, folder)
    return load(PodConfig, file=file, environ=environment(one), flags=flags, other_variables=OTHER_VARIABLES).value


def port(one: Manifest, name: str) -> int:
    (found,) = [each["containerPort"] for each in one["ports"] if each["name"] == name]
    return int(found)


def test_processes_take_what_they_are_told(tmp_path: Path) -> None:
    rendered = render()
    router = router_config(rendered, tmp_path)
    assert (router.model, router.cluster, router.cluster_secret) == (("/models/smollm2",), "pagewire", "s3cret")
    assert (router.host, router.name, router.operator_key) == ("0.0.0.0", "rel-pagewire-0", "op")
    assert router.redis_url == "redis://pagewire:pw0rd@rel-redis:6379/0"
    for role in (Role.PREFILL, Role.DECODE):
        pod = pod_config(rendered, f"rel-pagewire-{role.value}", tmp_path)
        assert (pod.role, pod.model, pod.host, pod.pod_id) == (role, "/models/smollm2", "10.0.0.7", "rel-pagewire-0")
        assert (pod.redis_url, pod.cluster_secret, pod.threads) == (router.redis_url, "s3cret", 2)


def test_every_value_reaches_its_process(tmp_path: Path) -> None:
    rendered = render(FULL)
    router = router_config(rendered, tmp_path)
    assert router.model == ("chat=/models/chat", "code=/models/code")
    assert (router.slo_ttft_s, router.policy, router.kv_limit, router.max_body_bytes) == (2.0, "slo", False, 4 << 20)
    pod = pod_config(rendered, "rel-pagewire-prefill", tmp_path)
    assert (pod.model, pod.kv_memory, pod.chunk_size, pod.threads) == ("/models/chat", 8 << 30, 512, 3)
    assert (pod.step_target_ms, pod.deterministic, pod.transports) == (40.0, True, "shm,grpc")
    assert pod.adapter == ("one=/models/one", "two=/models/two")
    assert pod_config(rendered, "rel-pagewire-decode", tmp_path).adapter == ("one=/models/one",)
    assert pod_config(rendered, "rel-pagewire-decode", tmp_path).model == "/models/code"
    files = {
        "rel-pagewire-router": [
            router.tls_cert, router.tls_key, router.tls_ca, router.edge_cert, router.edge_key, router.tls_client_ca,
            router.api_keys, router.redis_ca, router.redis_cert, router.redis_key,
        ],
        "rel-pagewire-prefill": [
            pod.tls_cert, pod.tls_key, pod.tls_ca, pod.redis_ca, pod.redis_cert, pod.redis_key, pod.pin_prefix,
            pod.shm_dir,
        ],
    }  # fmt: skip
    for name, paths in files.items():
        mounts = [each["mountPath"] for each in container(rendered, name)["volumeMounts"]]
        assert all(any(path.startswith(mount) for mount in mounts) for path in paths), (paths, mounts)
    assert router.tls_name == pod.tls_name == "pagewire.internal"


def test_images_leave_to_settings_what_settings_say() -> None:
    """Environment outranks files: what an image set there, no pool's settings could say otherwise."""
    dockerfile = (chart_schema.PATH.parents[1] / "Dockerfile").read_text()
    made = {
        each["name"] for name in ("router", "decode") for each in container(render(), f"rel-pagewire-{name}")["env"]
    }
    assert set(re.findall(r"^\s*(?:ENV )?(PAGEWIRE_\w+)=", dockerfile, re.MULTILINE)) - made == IMAGE.keys()


def test_a_pool_on_gpus_computes_where_it_is_told_and_leaves_the_cores_to_others(tmp_path: Path) -> None:
    by_image, by_setting = {"image": "pagewire-pod-cuda"}, {"settings": {"device": "cuda:1", "transports": "grpc"}}
    both = {**by_image, "settings": {"device": "cuda:0", "threads": 2}}
    pools = {"image": by_image, "setting": by_setting, "both": both, "decode": {}}
    rendered = render({"pools": pools})
    configs = {name: pod_config(rendered, f"rel-pagewire-{name}", tmp_path) for name in pools}
    devices = {name: (each.device, each.threads) for name, each in configs.items()}
    assert devices == {"image": ("cuda", 0), "setting": ("cuda:1", 0), "both": ("cuda:0", 2), "decode": ("cpu", 2)}


def test_with_tls_the_charts_own_redis_is_met_by_the_certificate_of_the_cluster(tmp_path: Path) -> None:
    secret = {"existingSecret": "cluster-tls"}
    rendered = render({"tls": {**secret, "name": "pagewire"}, "redis": {"tls": secret}})
    for config in (router_config(rendered, tmp_path), pod_config(rendered, "rel-pagewire-decode", tmp_path)):
        assert config.redis_url == "rediss://pagewire:pw0rd@rel-redis:6379/0"
        shown = (config.tls_ca, config.tls_cert, config.tls_key)
        assert (config.redis_ca, config.redis_cert, config.redis_key) == shown


def test_prefixes_arrive_as_a_pod_reads_them(tmp_path: Path) -> None:
    rendered, model = render(FULL), byte_tokenizer.save(tmp_path / "model")
    file = Path(pod_config(rendered, "rel-pagewire-decode", tmp_path).pin_prefix)
    (prefix,) = prefix_file.read(tmp_path / file.name, model)
    assert (prefix.name, byte_tokenizer.build().decode(list(prefix.tokens))) == ("one", 'You are "careful".')


def test_ports_and_probes_are_those_of_the_processes(tmp_path: Path) -> None:
    rendered = render()
    router, one = router_config(rendered, tmp_path), container(rendered, "rel-pagewire-router")
    assert (port(one, "http"), port(one, "grpc")) == (router.port, router.grpc_port)
    service = rendered.one("Service", "-router")["spec"]["ports"]
    assert {each["targetPort"] for each in service} == {"http", "grpc"}
    pod, two = pod_config(rendered, "rel-pagewire-decode", tmp_path), container(rendered, "rel-pagewire-decode")
    assert (port(two, "http"), port(two, "grpc")) == (pod.metrics_port, pod.port)
    for each in (one, two):
        assert each["readinessProbe"]["httpGet"]["path"] == "/health"
        assert each["livenessProbe"]["httpGet"]["path"] == "/live"
        assert {each[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")} == {"http"}
    policies = rendered.one("NetworkPolicy", "-router")["spec"]["egress"]
    assert policies[0]["ports"] == [{"port": pod.port}, {"port": pod.socket_port}]
    assert port(two, "socket") == pod.socket_port


def test_probes_speak_the_routers_tls_and_the_pods_plain_http() -> None:
    secured = render({"edge": {"existingSecret": "edge"}})
    assert container(secured, "rel-pagewire-router")["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert container(secured, "rel-pagewire-decode")["livenessProbe"]["httpGet"]["scheme"] == "HTTP"
    asked = render({"edge": {"existingSecret": "edge", "clientCa": "callers"}})
    assert container(asked, "rel-pagewire-router")["livenessProbe"]["tcpSocket"] == {"port": "http"}


def test_probes_and_scrapes_of_pods_speak_what_metrics_tls_says() -> None:
    pools = {
        "prefill": {"settings": {"metrics_tls": "off"}},
        "other": {"model": "/models/code", "settings": {"metrics_tls": "mutual"}},
    }
    rendered = render({**FULL, "pools": pools, "monitors": {**SCRAPED, "edgeSecret": "scrape", "edgeName": "api"}})
    probes = {
        name: [
            container(rendered, f"rel-pagewire-{name}")[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")
        ]
        for name in ("prefill", "decode", "other")
    }
    assert [each["httpGet"]["scheme"] for each in probes["prefill"] + probes["decode"]] == ["HTTP"] * 3 + ["HTTPS"] * 3
    assert [each["tcpSocket"] for each in probes["other"]] == [{"port": "http"}] * 3, "the kubelet shows no certificate"
    scrape = rendered.one("PodMonitor", "-pods")["spec"]["podMetricsEndpoints"][0]
    (scheme,) = [each for each in scrape["relabelings"] if each["targetLabel"] == "__scheme__"]
    assert scheme["sourceLabels"] == ["__meta_kubernetes_pod_label_pagewire_io_metrics"]
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"].get("pagewire.io/metrics")
        for each in rendered.of("StatefulSet")
    }
    assert [labels[f"rel-pagewire-{name}"] for name in probes] == ["http", "https", "https"]


def test_prometheus_meets_everybody_by_the_name_in_their_certificates_and_shows_its_own() -> None:
    of_the_cluster = {
        "serverName": "pagewire.internal",
        "ca": {"secret": {"name": "tls", "key": "ca.crt"}},
        "cert": {"secret": {"name": "tls", "key": "tls.crt"}},
        "keySecret": {"name": "tls", "key": "tls.key"},
    }
    of_the_edge = {
        "serverName": "api.example.org",
        "ca": {"secret": {"name": "scrape", "key": "ca.crt"}},
        "cert": {"secret": {"name": "scrape", "key": "tls.crt"}},
        "keySecret": {"name": "scrape", "key": "tls.key"},
    }
    by_name = {"edgeName": "api.example.org"}
    both = {**by_name, "edgeSecret": "scrape"}
    only_edge, only_asked = {"existingSecret": "edge", "clientCa": ""}, {"existingSecret": "", "clientCa": "callers"}
    for edge, told, router in (
        ({"existingSecret": "", "clientCa": ""}, {}, of_the_cluster),
        (only_edge, by_name, {"serverName": "api.example.org"}),
        (only_edge, both, {each: of_the_edge[each] for each in ("serverName", "ca")}),
        (only_asked, both, {**of_the_edge, **{each: of_the_cluster[each] for each in ("serverName", "ca")}}),
        (FULL["edge"], both, of_the_edge),
    ):
        rendered = render({**FULL, "edge": edge, "monitors": {**SCRAPED, **told}})
        assert rendered.one("PodMonitor", "-pods")["spec"]["podMetricsEndpoints"][0]["tlsConfig"] == of_the_cluster
        scrape = rendered.one("ServiceMonitor", "-router")["spec"]["endpoints"][0]
        assert (scrape["scheme"], scrape["tlsConfig"]) == ("https", router)
    clear = render({"monitors": {"enabled": True}})
    assert "tlsConfig" not in clear.one("PodMonitor", "-pods")["spec"]["podMetricsEndpoints"][0]
    assert "tlsConfig" not in clear.one("ServiceMonitor", "-router")["spec"]["endpoints"][0]


def test_pools_that_say_nothing_show_their_pages_as_the_cluster_speaks(tmp_path: Path) -> None:
    for values, scheme in ((FULL, "HTTPS"), ({}, "HTTP")):
        rendered = render(values)
        assert container(rendered, "rel-pagewire-decode")["readinessProbe"]["httpGet"]["scheme"] == scheme
        assert pod_config(rendered, "rel-pagewire-decode", tmp_path).metrics_scheme == scheme.lower()


def test_the_schema_names_every_setting_and_no_other() -> None:
    text = chart_schema.PATH.read_text()
    assert chart_schema.fresh(text) == text, "run `make chart-schema`"
    told = set(re.findall(r'set \$settings "(\w+)"', _templates()))
    by_variable = {each.lower() for each in re.findall(r"PAGEWIRE_([A-Z_]+)", _templates())}
    assert chart_schema.MADE_BY_THE_CHART - told - by_variable - {"workers", "worker_port", "reuse_port"} <= {
        "advertise",  # a pod's own, and pods of one pool have their settings in common
        "cluster",  # in the dict that the others are added to
        "role",  # the argument
    }


def test_scaling_asks_for_metrics_that_there_are() -> None:
    rendered = render({"keda": {"enabled": True}, "monitors": {"enabled": True}})
    triggers = {
        each["metadata"]["name"].rpartition("-")[2]: {trigger["name"]: trigger for trigger in each["spec"]["triggers"]}
        for each in rendered.of("ScaledObject")
    }
    assert {pool: [*each] for pool, each in triggers.items()} == {"decode": ["kv", "tpot"], "prefill": ["queue"]}
    for pool, each in triggers.items():
        for trigger in each.values():
            query = trigger["metadata"]["query"]
            names = names_in(query)
            assert names
            assert names <= listed().keys()
            selectors = re.findall(r"\{(.*?)\}", query)
            assert set(selectors) == {f'namespace="serving",release="rel",pool="{pool}"'}
            assert float(trigger["metadata"]["threshold"]) > 0
    monitor = rendered.one("PodMonitor", "-pods")["spec"]["podMetricsEndpoints"][0]
    assert {each["targetLabel"] for each in monitor["relabelings"]} == {"job", "release", "pool", "__scheme__"}


@contextlib.contextmanager
def running_redis(kind: str, folder: Path, values: dict[str, Any]) -> Iterator[int]:
    """Run the Redis container's own script elsewhere with a real server; files of its certificate lie in `folder`."""
    one = container(render(values), "rel-redis")
    number = free_port()
    (script,) = one["args"]
    script = script.replace("/run/redis", str(folder)).replace("exec redis-server", f"exec {program(kind)}")
    script = script.replace("port 6379", f"port {number} --bind 127.0.0.1").replace("/etc/redis/tls", str(folder))
    env = {"PATH": "/usr/bin:/bin", "REDIS_PASSWORD": "pw0rd"}
    env |= {each["name"]: each["value"] for each in one["env"] if "value" in each}
    if "RENEW_S" in env:
        env["RENEW_S"] = "0.1"
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([*one["command"], script], env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(folder / "log")
        yield number
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture(params=KINDS)
def redis_port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """The Redis that comes with the chart as it comes."""
    with running_redis(request.param, tmp_path, {}) as number:
        yield number


async def test_redis_with_tls_takes_the_cluster_alone_and_is_renewed_without_a_restart(tmp_path: Path) -> None:
    first, second = (certificates(tmp_path / name) for name in ("first", "second"))
    ours = tmp_path / "ours"
    ours.mkdir()

    def put(files: Certificates, folder: Path) -> tuple[str, str, str]:
        for file, name in zip(files, ("ca.crt", "tls.crt", "tls.key"), strict=True):
            shutil.copy(file, folder / name)
        return str(folder / "ca.crt"), str(folder / "tls.crt"), str(folder / "tls.key")

    put(first, tmp_path)
    ca, cert, key = put(first, ours)
    secret = {"existingSecret": "cluster-tls"}
    with running_redis(REDIS, tmp_path, {"tls": {**secret, "name": "pagewire"}, "redis": {"tls": secret}}) as number:
        url = f"rediss://pagewire:pw0rd@127.0.0.1:{number}/0"

        async def is_let_in(address: RedisAddress) -> bool:
            registry = Registry(address, "pagewire")
            try:
                return await registry.pods() == []
            except OSError:
                return False
            finally:
                await registry.aclose()

        mine = RedisAddress.parse(url, ca, cert=cert, key=key)
        assert await is_let_in(mine)
        assert not await is_let_in(RedisAddress.parse(url, ca)), "it asks for a certificate"
        assert not await is_let_in(RedisAddress.parse(url.replace("rediss", "redis"))), "nothing is in the clear"
        put(second, ours)
        assert not await is_let_in(mine)
        put(second, tmp_path)
        await eventually(lambda: is_let_in(mine))
        assert not await is_let_in(RedisAddress.parse(url, str(first[0]), cert=str(first[1]), key=str(first[2])))
        socket = str(tmp_path / "socket")
        with redis.Redis(unix_socket_path=socket) as nobody, pytest.raises(redis.AuthenticationError):
            nobody.ping()


async def test_redis_lets_the_cluster_in_and_nobody_else(redis_port: int) -> None:
    registry = Registry(RedisAddress.parse(f"redis://pagewire:pw0rd@127.0.0.1:{redis_port}/0"), "pagewire")
    try:
        assert await registry.pods() == []
    finally:
        await registry.aclose()
    with redis.Redis(port=redis_port) as nobody, pytest.raises(redis.AuthenticationError):
        nobody.ping()
    with redis.Redis(port=redis_port, username="pagewire", password="pw0rd") as user:
        assert user.set("pw:pagewire:pod:x", "1", ex=10)
        for refused in (user.flushall, user.config_get, lambda: user.set("other:pod:x", "1")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                refused()


def test_redis_is_the_image_that_compose_pins() -> None:
    compose = (chart_schema.PATH.parents[1] / "compose.yaml").read_text()
    assert f"${{REDIS_IMAGE:-{container(render(), 'rel-redis')['image']}}}" in compose


def test_the_redis_user_is_the_documented_one() -> None:
    """Whatever the cluster's name: the release's Redis is for no other cluster unless it is told so."""
    env = {each["name"]: each.get("value") for each in container(render(), "rel-redis")["env"]}
    documented = (chart_schema.PATH.parents[2] / "docs" / "prefix-index.md").read_text()
    rules = re.search(r"ACL SETUSER pagewire on >PASSWORD (.*)", documented)
    assert rules is not None
    assert (env["REDIS_USER"], env["RIGHTS"]) == ("pagewire", rules[1].replace("pw:pagewire:", "pw:"))


def _templates() -> str:
    return "".join(path.read_text() for path in sorted((chart_schema.PATH.parent / "templates").iterdir()))


def _wait_for(log: Path) -> None:
    deadline_s = time.monotonic() + 20
    while "Ready to accept connections" not in log.read_text():
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.02)
