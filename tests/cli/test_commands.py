"""The command line: one description per setting, errors with a name and an exit code."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import tiny_model
from free_ports import free_port
from patience import came_true

from pagewire.cli import doctor, pod
from pagewire.cli.cluster import flags_of, left_to
from pagewire.cli.cluster_config import ClusterConfig
from pagewire.cli.collector import with_collector
from pagewire.cli.doctor import Finding, Verdict
from pagewire.cli.local_clusters import cluster_flags
from pagewire.cli.main import main
from pagewire.cli.progress import say
from pagewire.cli.slo_origin import command_line
from pagewire.core.config import ConfigError, load, settings
from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Role
from pagewire.router.config import RouterConfig
from pagewire.router.keys import read
from pagewire.serving.pod_config import PodConfig
from pagewire.slo.figures.redaction import bare
from pagewire.slo.sweeps.configuration import configurations

ENVIRON = {"PATH": "/usr/bin:/bin", "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def pagewire(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pagewire.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**ENVIRON, **environ}, timeout=60)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("number", [None, 0, 1, 2])
def test_a_service_whose_output_is_a_full_disk_or_closed_serves_and_ends_well(tiny: Path, number: int | None) -> None:
    port = free_port()
    arguments = ["--model", str(tiny), "--port", str(port), "--grpc-port", "0"]
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", "router", *arguments]
    closed = partial(os.close, number) if number is not None else None
    environ = os.environ | {"PAGEWIRE_CLUSTER_SECRET": "s"}
    with Path("/dev/full").open("w") as full:
        router = subprocess.Popen(command, stdout=full, stderr=full, env=environ, preexec_fn=closed)
    try:
        assert came_true(lambda: answers(f"http://127.0.0.1:{port}/live") or router.poll() is not None)
        router.terminate()
        assert router.wait(30) == 0
    finally:
        router.kill()
        router.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def test_a_first_process_that_is_told_to_stop_before_it_serves_ends() -> None:
    """As a container's, which hears no signal that it does not handle, and would be killed when its grace is over."""
    begun = "lambda: (print('begun', flush=True), time.sleep(60))"
    code = f"import time; from pagewire.cli import commands, main; commands.build = lambda: {begun}; main.main()"
    namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives nobody a namespace of processes")
    with subprocess.Popen([*namespace, sys.executable, "-P", "-c", code], stdout=subprocess.PIPE) as outside:
        try:
            assert outside.stdout is not None
            assert outside.stdout.readline() == b"begun\n"
            (first,) = psutil.Process(outside.pid).children()
            first.terminate()
            assert outside.wait(30) == 128 + signal.SIGTERM
        finally:
            outside.kill()


def test_ctrl_c_while_the_commands_are_read_in_ends_without_a_word() -> None:
    late = """
import os, signal, sys
from pagewire.cli.main import main

class Impatient:
    def find_spec(self, name, *_):
        if name == "pagewire.cli.commands":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Impatient())
main()
"""
    done = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_help_explains_each_setting_with_unit_default_and_variable() -> None:
    done = pagewire("decode", "--help")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "slots of a KV block: 16, 32, 64 or 128 (default: 16 tokens; PAGEWIRE_BLOCK_SIZE)" in text
    assert "--role" not in text


@pytest.mark.parametrize(
    ("command", "config"), [("router", RouterConfig), ("decode", PodConfig), ("up", ClusterConfig)]
)
def test_help_cuts_no_name_off_where_there_is_little_room(command: str, config: type) -> None:
    shown = set(re.findall(r"[-\w]+", pagewire(command, "--help", COLUMNS="80").stdout))
    names = [each.name for each in settings(config) if each.name != "role"]
    assert {f"--{name.replace('_', '-')}" for name in names} <= shown
    assert {f"PAGEWIRE_{name.upper()}" for name in names} <= shown


def test_up_has_every_flag_that_the_readme_gives_it() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    said = readme[readme.index("`pagewire up` passes on") : readme.index("Clusters may share a Redis")]
    flags = set(re.findall(r"--[a-z][a-z-]+", said))
    assert {"--policy", "--transports"} <= flags
    assert flags <= set(re.findall(r"[-\w]+", pagewire("up", "--help").stdout))


def test_show_config_says_where_each_value_came_from(tmp_path: Path) -> None:
    file = tmp_path / "pod.toml"
    file.write_text('model = "m"\nchunk_size = 64\nport = 1\n')
    arguments = ("prefill", "--config", str(file), "--port", "2", "--show-config")
    done = pagewire(*arguments, PAGEWIRE_CLUSTER_SECRET="hush", PAGEWIRE_CHUNK_SIZE="128", PAGEWIRE_GRPC_PORT="1")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["model", "m", f"[{file}]"] in rows
    assert ["chunk_size", "128", "tokens", "[PAGEWIRE_CHUNK_SIZE]"] in rows
    assert ["port", "2", "[--port]"] in rows
    assert ["role", "prefill", "[--role]"] in rows
    assert "hush" not in done.stdout


def test_a_list_is_a_flag_given_several_times_or_one_variable_with_commas() -> None:
    told = {"PAGEWIRE_CLUSTER_SECRET": "s"}
    by_flags = pagewire("router", "--model", "a=/x", "--model", "z", "--show-config", **told)
    assert "a=/x, z  [--model]" in by_flags.stdout, by_flags.stderr
    by_variable = pagewire("router", "--show-config", **told, PAGEWIRE_MODEL="a=/x,z")
    assert "a=/x, z  [PAGEWIRE_MODEL]" in by_variable.stdout, by_variable.stderr
    neither = pagewire("router", "--show-config", **told)
    assert (neither.returncode, "model is not set" in neither.stderr) == (2, True)


def test_a_cluster_with_tls_is_told_how_its_collector_is_met() -> None:
    config = PodConfig(
        model="m", role=Role.DECODE, cluster_secret="s", tls_cert="c", tls_key="k", tls_ca="a", transports="grpc"
    )
    variable = "OTEL_EXPORTER_OTLP_ENDPOINT"
    with pytest.raises(ConfigError, match="say https://collector:4317"):
        with_collector(config, {variable: "collector:4317"})
    told = with_collector(config, {variable: "https://collector:4317"})
    assert told.otlp_endpoint == "https://collector:4317"


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (("decode",), {}, "model is not set: give --model, PAGEWIRE_MODEL, or model in the file"),
        (("decode", "--model", "m"), {"PAGEWIRE_CHUNK_SZE": "1"}, "did you mean 'PAGEWIRE_CHUNK_SIZE'"),
        (("up", "--prefill", "many"), {}, "prefill from --prefill is 'many': expected int"),
        (
            ("up", "--tls", "--otlp-endpoint", "collector:4317"),
            {},
            "the cluster speaks TLS: say https://collector:4317 for traces",
        ),
        (("up", "--decode", "0"), {}, "a cluster needs at least one decode or colocated pod"),
        (("up", "--port", "65536"), {}, "port must be between 0 and 65535, is 65536"),
        (("up", "--grpc-port", "-1"), {}, "grpc_port must be between 0 and 65535, is -1"),
        (
            ("prefill", "--model", "m", "--cluster-secret", "s", "--port", "65536"),
            {},
            "port must be between 0 and 65535",
        ),
        (("decode", "--block-size", "17", "--model", "m", "--cluster-secret", "s"), {}, "block_size must be one of"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], environ: dict[str, str], message: str
) -> None:
    done = pagewire(*arguments, **environ)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_model_names_the_known_ones(tmp_path: Path) -> None:
    done = pagewire("model", "path", "gpt-5", PAGEWIRE_MODELS_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "smollm2" in done.stderr
    done = pagewire("model", "list", "--json", PAGEWIRE_MODELS_DIR=str(tmp_path))
    assert json.loads(done.stdout) == [{"name": "smollm2", "path": None}]


@pytest.mark.parametrize("error", [ValueError, OSError, OverflowError, EngineFailed])
def test_what_fails_before_a_service_is_ready_is_one_line(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def fail(config: PodConfig, on_ready: object) -> None:
        raise error(f"{config.role} cannot start")

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(pod, "run", fail)
    monkeypatch.setattr(sys, "argv", ["pagewire", "prefill", "--model", str(tmp_path), "--cluster-secret", "s"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (1, 2)
    assert capsys.readouterr() == ("", "pagewire: prefill cannot start\n")


def test_what_breaks_a_running_service_is_traced_in_its_log(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    async def fail(_config: PodConfig, on_ready: Callable[[dict[str, object]], None]) -> None:
        on_ready({"id": "prefill-0"})
        raise ValueError("nobody thought of this")

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(pod, "run", fail)
    monkeypatch.setattr(sys, "argv", ["pagewire", "prefill", "--model", str(tmp_path), "--cluster-secret", "s"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr() == ('{"id": "prefill-0"}\n', "pagewire: nobody thought of this\n")
    assert caplog.records[-1].exc_info is not None


def test_an_unknown_architecture_is_named_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["T5Model"], "model_type": "t5"}')
    done = pagewire("prefill", "--model", str(tmp_path), "--cluster-secret", "s", "--threads", "1")
    assert done.returncode == 1
    assert "T5Model" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("role", ["prefill", "decode", "colocated"])
def test_a_pod_on_a_gpu_that_is_not_here_is_refused_by_one_line(role: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    told = {"PAGEWIRE_DEVICE": "cuda:99", "PAGEWIRE_CLUSTER_SECRET": "s"}
    done = pagewire(role, "--model", str(tmp_path), **told)
    assert done.returncode == 1
    assert re.fullmatch(r"pagewire: device cuda:99: .* CUDA devices? here.*\n", done.stderr), done.stderr


def test_nobody_to_talk_to_is_an_error() -> None:
    done = pagewire("complete", "hello", "--url", "127.0.0.1:1")
    assert done.returncode == 1
    assert "pagewire: failed to connect" in done.stderr


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from pagewire.cli.main import main; main()"


def test_a_package_that_is_not_here_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    command = ["run-batch", "--model", str(tmp_path), "-i", "in.jsonl", "-o", "out.jsonl"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *command], capture_output=True, text=True, env=ENVIRON, timeout=60
    )
    assert done.returncode == 2
    assert re.fullmatch(r"pagewire: this needs the package torch, .*pagewire\[.*engine.*\]\n", done.stderr), done.stderr


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    done = pagewire("certs", str(tmp_path / "tls"))
    assert done.returncode == 0, done.stderr
    again = pagewire("certs", str(tmp_path / "tls"))
    assert again.returncode == 1
    assert re.fullmatch(rf"pagewire: {tmp_path}/tls/\S+: it is there already\n", again.stderr), again.stderr


def test_a_text_that_is_none_is_said_to_be_none() -> None:
    command = [sys.executable, "-m", "pagewire.cli.main", "complete", "-"]
    environ = {**ENVIRON, "PYTHONIOENCODING": "utf-8:surrogateescape"}
    done = subprocess.run(command, input=b"\xff", capture_output=True, env=environ, timeout=60)
    assert (done.returncode, done.stderr) == (1, b"pagewire: the text is not UTF-8\n")


def test_a_pod_has_one_of_three_roles() -> None:
    done = pagewire("role", "prefill-0", "router")
    assert done.returncode == 2
    assert "'prefill', 'decode', 'colocated'" in done.stderr


def test_doctor_fails_when_a_check_failed(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Finding("Python", Verdict.OK, "3.11"), Finding("PyTorch", Verdict.FAIL, "missing")
    assert doctor.report([good], as_json=False) == 0
    capsys.readouterr()
    assert doctor.report([good, bad], as_json=True) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)[1] == {"check": "PyTorch", "verdict": "fail", "detail": "missing"}
    assert "not ready: PyTorch" in err


def test_doctor_examines_this_machine() -> None:
    found = {finding.check: finding.verdict for finding in doctor.examine()}
    assert found["Python"] is Verdict.OK
    assert found["PyTorch"] is not Verdict.FAIL
    assert found["Valkey"] is Verdict.OK


@pytest.mark.parametrize(
    ("lacks", "said"),
    [("cc", ["two passes"]), ("c++", ["plain torch"]), ("both", ["plain torch", "two passes"]), ("", [])],
)
def test_doctor_names_what_is_not_built(monkeypatch: pytest.MonkeyPatch, lacks: str, said: list[str]) -> None:
    monkeypatch.setattr("pagewire.kvtransfer.summed_copy.prepare", lambda: lacks not in ("cc", "both"))
    monkeypatch.setattr("pagewire.kernels.native_ops.load", lambda: None if lacks in ("c++", "both") else object())
    (found,) = (finding for finding in doctor.examine() if finding.check == "native code")
    assert found.verdict is (Verdict.WARN if lacks else Verdict.OK)
    assert all(each in found.detail for each in said)
    assert ("not built" in found.detail) is bool(lacks)


def test_up_passes_on_every_setting_that_it_leaves_to_the_services() -> None:
    left = {each.name for each in settings(ClusterConfig) if each.is_optional or each.is_list}
    assert left - {"prefill", "decode"} == {*left_to(PodConfig), *left_to(RouterConfig)}  # but for counts of its own
    of_both = {"redis_ca", "redis_cert", "redis_key", "otlp_endpoint"}
    assert {*left_to(PodConfig)} & {*left_to(RouterConfig)} == of_both
    assert not {"host", "port", "model", "threads"} & {*left_to(PodConfig), *left_to(RouterConfig)}


@pytest.mark.parametrize("value", [True, False])
def test_what_up_passes_on_a_pod_takes(value: bool) -> None:
    flags = flags_of(ClusterConfig(deterministic=value, max_num_seqs=7, preemption="recompute"), left_to(PodConfig))
    done = pagewire("decode", "--model", "m", "--cluster-secret", "s" * 32, *flags, "--show-config")
    assert done.returncode == 0, done.stderr
    shown = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()}
    assert (shown["deterministic"], shown["max_num_seqs"], shown["preemption"]) == (str(value), "7", "recompute")


@pytest.mark.parametrize("cls", [ClusterConfig, PodConfig])
def test_a_swap_without_host_memory_is_refused_before_anything_starts(cls: type) -> None:
    required: dict[str, object] = {"model": "m", "role": Role.DECODE, "cluster_secret": "s"} if cls is PodConfig else {}
    cls(**required, preemption="swap", host_kv_memory=1 << 20)
    with pytest.raises(ValueError, match="host_kv_memory"):
        cls(**required, preemption="swap")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"transports": "shm, tcp"}, "transport tcp sends in the clear"),
        ({"redis": "redis://redis:6379"}, "redis_url speaks in the clear"),
    ],
)
@pytest.mark.parametrize("tls", [{"tls": True}, {"tls_dir": "certificates"}])
def test_with_tls_nothing_is_started_that_would_speak_in_the_clear(
    asked: dict[str, Any], said: str, tls: dict[str, Any]
) -> None:
    ClusterConfig(**asked)
    ClusterConfig(**tls, transports="auto", redis="unix:///run/redis.sock")
    with pytest.raises(ValueError, match=said):
        ClusterConfig(**asked, **tls)


@pytest.mark.parametrize(
    ("asked", "roles"),
    [
        ({}, ["prefill", "decode"]),
        ({"prefill": 2}, ["prefill", "prefill", "decode"]),
        ({"prefill": 0}, ["decode"]),
        ({"colocated": 1}, ["colocated"]),
        ({"colocated": 1, "prefill": 1}, ["prefill", "colocated"]),
        ({"colocated": 1, "decode": 2}, ["decode", "decode", "colocated"]),
        ({"colocated": 0, "decode": 1, "prefill": 0}, ["decode"]),
    ],
)
def test_every_pod_that_is_asked_for_is_one_that_is_started(asked: dict[str, Any], roles: list[str]) -> None:
    assert [*ClusterConfig(**asked).pods.values()] == roles


@pytest.mark.parametrize(
    ("transports", "device"), [("bogus", None), ("cuda_ipc", "cpu"), ("shm", "cuda"), ("tcp,tcp", None)]
)
def test_transports_that_no_pod_takes_are_refused_before_anything_starts(transports: str, device: str | None) -> None:
    ClusterConfig(transports="nixl, tcp", device=device)
    with pytest.raises(ValueError, match="transports: "):
        ClusterConfig(transports=transports, device=device)


def test_a_new_key_is_what_its_line_says(tmp_path: Path) -> None:
    made = [json.loads(pagewire("keys", "create", "acme.eu", "--json").stdout) for _ in range(2)]
    assert made[0]["key"] != made[1]["key"]
    text = f"[tenants.'acme.eu']\nkeys = {[each['line'] for each in made]}"
    owners = [read(text, secret=b"s").tenant(each["key"]) for each in made]
    assert [owner and owner.name for owner in owners] == ["acme.eu", "acme.eu"]
    shown = pagewire("keys", "create", "acme").stdout
    key = next(line.strip() for line in shown.splitlines() if line.strip().startswith("pw_"))
    owner = read(shown[shown.index("[tenants") :], secret=b"s").tenant(key)
    assert owner is not None
    assert owner.name == "acme"
    assert pagewire("keys", "create", "no such name").returncode == 1


def test_a_new_key_has_the_limits_and_rights_that_were_asked(tmp_path: Path) -> None:
    limits = ("--max-concurrent", "3", "--tokens-per-s", "20.5", "--burst-tokens", "400", "--cache-quota", "0.25")
    made = json.loads(pagewire("keys", "create", "acme", *limits, "--priority", "-10", "--operator", "--json").stdout)
    owner = read(made["table"], secret=b"s").tenant(made["key"])
    assert owner is not None
    assert (owner.max_concurrent, owner.tokens_per_s, owner.burst_tokens) == (3, 20.5, 400)
    assert (owner.cache_share, owner.priority, owner.is_operator) == (0.25, -10, True)
    bare = json.loads(pagewire("keys", "create", "acme", "--json").stdout)
    owner = read(bare["table"], secret=b"s").tenant(bare["key"])
    assert owner is not None
    assert (owner.cache_quota, owner.priority, owner.is_operator) == (None, 0, False)
    assert pagewire("keys", "create", "acme", "--cache-quota", "1.5").returncode == 1


def test_what_is_typed_is_told_without_secrets() -> None:
    typed = ["pagewire", "slo", "run", "--api-key", "k", "--url", "https://bob:hunter2@host/v1", "--url=redis://:p@h"]
    assert command_line(typed) == ("pagewire slo run --api-key ... --url https://...@host/v1 --url=redis://...@h")
    assert bare("http://host/a@b") == "http://host/a@b"


def test_nobody_who_reads_keeps_nothing_from_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("sys.stderr", Gone())
    say("a word")


def test_secrets_of_a_sweeps_clusters_go_by_the_environment() -> None:
    (configuration,) = configurations(("redis=redis://bob:hunter2@host", "dtype=float32"), ("pods=1P:1D",))
    flags, variables, config = cluster_flags(configuration)
    assert "hunter2" not in " ".join(flags)
    assert "--dtype" in flags
    assert variables == {"PAGEWIRE_REDIS": "redis://bob:hunter2@host"}
    assert load(ClusterConfig, environ=variables, flags={}).value.redis == config.redis


@pytest.mark.parametrize("setting", ["port=80", "log_dir=x", "tls=true", "tls_dir=x", "api_keys=x"])
def test_a_sweeps_clusters_are_reached_as_the_sweep_does(setting: str) -> None:
    (configuration,) = configurations((setting,), ("pods=1P:1D",))
    with pytest.raises(ConfigError, match=f"1P:1D.*: {setting.partition('=')[0]}"):
        cluster_flags(configuration)
