"""The sub-commands of `pagewire`. Each imports what it needs when it runs, so that --help costs nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pagewire.cli import flags, models, slo_commands
from pagewire.cli.batch_config import BatchConfig
from pagewire.cli.cluster_config import ClusterConfig
from pagewire.cli.collector import collector_of, with_collector
from pagewire.cli.keys import keys_create
from pagewire.cli.options import ApiKey, Json, TlsCa, TlsCert, TlsKey
from pagewire.cli.progress import bar
from pagewire.core import garbage, local_models
from pagewire.core.config import ConfigError
from pagewire.core.messages import Role
from pagewire.core.units import parse_bytes
from pagewire.router.config import RouterConfig
from pagewire.serving.pod_config import PodConfig
from pagewire.slo.sweeps.sweep_config import SweepConfig

if TYPE_CHECKING:
    from pagewire.engine.config import EngineConfig

log = logging.getLogger(__name__)

Url = Annotated[str, typer.Option("--url", help="gRPC address of the router", metavar="HOST:PORT")]
Model = Annotated[str, typer.Option("--model", help="which of the router's models; its first one when unset")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", help="output tokens at most")]
Temperature = Annotated[float | None, typer.Option("--temperature", help="0 takes the most likely token always")]

PODS = {
    Role.PREFILL: "Run a prefill pod: it builds prompts' KV and ships it.",
    Role.DECODE: "Run a decode pod: it owns requests and streams their tokens.",
    Role.COLOCATED: "Run a colocated pod: prompts and answers in one.",
}
DEFAULT_URL = "127.0.0.1:50050"
DEFAULT_ROUTER = "http://127.0.0.1:8000"
OTHER_VARIABLES = flags.variables(RouterConfig, PodConfig, ClusterConfig, SweepConfig) | {
    local_models.MODELS_DIR_VARIABLE, "PAGEWIRE_API_KEY",
}  # fmt: skip


def build() -> typer.Typer:
    """Return the command line."""
    app = typer.Typer(
        rich_markup_mode=None,  # whose table cuts names off where a terminal, or a pipe, is narrow
        help="Disaggregated LLM serving: prefill and decode in separate pods.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.command("up")(flags.command(ClusterConfig, up, others=OTHER_VARIABLES))
    app.command("router")(flags.command(RouterConfig, router, others=OTHER_VARIABLES))
    for role, what in PODS.items():
        app.command(role.value, help=what)(flags.command(PodConfig, pod, fixed={"role": role}, others=OTHER_VARIABLES))
    for command in (chat, complete, demo, doctor, certs):
        app.command()(command)
    app.command("run-batch")(flags.command(BatchConfig, run_batch, others=OTHER_VARIABLES))
    app.command("kv-size")(kv_size)
    app.command("role")(change_role)
    model = typer.Typer(help="Local models: get one, or see what is there.", no_args_is_help=True)
    for name, subcommand in (("get", model_get), ("path", model_path), ("list", model_list)):
        model.command(name)(subcommand)
    app.add_typer(model, name="model")
    app.add_typer(slo_commands.build(OTHER_VARIABLES), name="slo")
    keys = typer.Typer(help="API keys of a router.", no_args_is_help=True)
    keys.command("create")(keys_create)
    app.add_typer(keys, name="keys")
    return app


def up(config: ClusterConfig) -> None:
    """Start a cluster on this machine and keep it running: Valkey, pods and a router."""
    from pagewire.cli.cluster import Cluster

    collector_of(config.otlp_endpoint or "", os.environ, is_encrypted=config.is_encrypted)  # else each child refuses
    if config.model in models.KNOWN:
        with bar(config.model) as report:
            models.get(config.model, report)
    asyncio.run(Cluster(config, models.resolve(config.model), os.environ).run())


def router(config: RouterConfig) -> None:
    """Run a router: the HTTP and gRPC front door of a cluster."""
    if config.workers > 1:
        from pagewire.cli.workers import Workers
        from pagewire.serving import logs

        logs.configure(config.name, config.log_level, config.log_format)
        asyncio.run(Workers(config, sys.argv[1:]).run(_say_ready))
        return
    from pagewire.router.main import run
    from pagewire.router.models import ModelSource

    config = with_collector(config, os.environ)
    sources = [ModelSource.parse(each) for each in config.model]
    found = tuple(f"{source.name}={models.resolve(str(source.folder))}" for source in sources)
    _serve(run, dataclasses.replace(config, model=found), loop_factory=_fast_loop())


def _say_ready(ready: Mapping[str, object]) -> None:
    """Print where it serves, for whoever started it; a disk without room keeps nobody from serving."""
    try:
        print(json.dumps(ready), flush=True)
    except OSError as error:
        log.warning("%s was not printed: %s", json.dumps(ready), error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else what is left of it fails the end


def pod(config: PodConfig) -> None:
    """Run a pod of the role that it is told."""
    from pagewire.cli.pod import run

    _serve(run, dataclasses.replace(with_collector(config, os.environ), model=str(models.resolve(config.model))))


def certs(
    folder: Annotated[Path, typer.Argument(help="where to write them", metavar="DIR")],
    days: Annotated[float, typer.Option("--days", help="how long they are valid")] = 30.0,
    host: Annotated[list[str] | None, typer.Option("--host", help="another name or address, again for each")] = None,
    as_json: Json = False,
) -> None:
    """Make an authority and certificates for a test cluster: of the router, of the pods and of a client."""
    from pagewire.cli import certs as made

    written = [str(path) for path in made.make(folder, days=days, hosts=(*made.HOSTS, *(host or ())))]
    typer.echo(json.dumps(written) if as_json else "\n".join(written))


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where it is installed, None for asyncio's own."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    make: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return make


def _serve(
    run: Callable[..., Awaitable[None]],
    config: object,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    is_ready = False

    def on_ready(ready: Mapping[str, object]) -> None:
        nonlocal is_ready
        is_ready = True
        garbage.keep_what_is_here()
        _say_ready(ready)

    async def serve() -> None:
        await run(config, on_ready=on_ready)

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(serve())
    except (ValueError, OverflowError) as error:
        if not is_ready:
            raise ConfigError(str(error)) from error
        # Nobody told a service that runs anything wrong: what broke it is for whoever repairs it.
        log.exception("the service broke")
        raise


def chat(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    model: Model = "",
    system: Annotated[str, typer.Option("--system", help="system prompt")] = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
) -> None:
    """Talk to the model of a running cluster: one line is one message, Ctrl-C cuts an answer off, Ctrl-D leaves.

    Without a terminal the exit code is 1 where an answer failed.
    """
    from pagewire.cli import talk

    client = talk.client_of(url, api_key=api_key, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
    sys.exit(talk.chat(client, system=system, options=talk.options(model, max_tokens, temperature)))


def complete(
    prompt: Annotated[str, typer.Argument(help="the text to continue, - for standard input")],
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    model: Model = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    as_json: Json = False,
) -> None:
    """Continue a text on a running cluster."""
    from pagewire.cli import talk

    text = sys.stdin.read() if prompt == "-" else prompt
    if any("\udc80" <= char <= "\udcff" for char in text):  # how Python reads bytes that are no UTF-8
        raise ValueError("the text is not UTF-8")
    client = talk.client_of(url, api_key=api_key, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
    talk.complete(client, text, as_json=as_json, options=talk.options(model, max_tokens, temperature))


def demo(model: Annotated[str, typer.Option("--model", help="local model or folder")] = models.DEFAULT_MODEL) -> None:
    """Start a cluster, ask two questions behind one long system prompt over HTTP, show their timelines, stop it."""
    from pagewire.cli import demo as show

    sys.exit(asyncio.run(show.run(model)))


def doctor(as_json: Json = False) -> None:
    """Check what this machine has and lacks; exit code 1 when something needed is missing."""
    from pagewire.cli import doctor as checks

    sys.exit(checks.report(checks.examine(), as_json=as_json))


def change_role(
    pod: Annotated[str, typer.Argument(help="id of the pod")],
    role: Annotated[
        Literal["prefill", "decode", "colocated"],
        typer.Argument(help="prefill, decode or colocated", metavar="ROLE"),
    ],
    router: Annotated[str, typer.Option("--router", help="HTTP address of a router", metavar="URL")] = DEFAULT_ROUTER,
    key: Annotated[
        str, typer.Option("--operator-key", envvar="PAGEWIRE_OPERATOR_KEY", help="the router's operator_key")
    ] = "",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Have a running pod change its role, without a restart, and wait until it has."""
    from pagewire.cli import role as changes

    changes.run(router, pod, Role(role), key, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)


def run_batch(
    config: BatchConfig,
    source: Annotated[Path, typer.Option("-i", "--input", help="requests, one JSON object a line", metavar="FILE")],
    target: Annotated[Path, typer.Option("-o", "--output", help="answers, one JSON object a line", metavar="FILE")],
    as_json: Json = False,
) -> None:
    """Answer a file of OpenAI batch requests in this process, without a server; exit code 130 when interrupted."""
    from pagewire.cli import run_batch as batches
    from pagewire.engine.in_place import InPlaceEngine
    from pagewire.text.tokenizer import Tokenizer

    folder = models.resolve(config.model)
    settings = _engine_config(config, folder)
    with bar(str(source)) as report:
        summary, is_whole = batches.run(lambda: InPlaceEngine.load(settings, Tokenizer(folder)), source, target, report)
    typer.echo(batches.as_json(summary) if as_json else summary.line())
    sys.exit(0 if is_whole else 130)


def _engine_config(config: BatchConfig, folder: Path) -> EngineConfig:
    from pagewire.engine.config import EngineConfig

    told = dataclasses.asdict(config)
    for name in ("kv_memory", "host_kv_memory"):
        told[f"{name}_bytes"] = told.pop(name)
    told["adapters"] = told.pop("adapter")
    return EngineConfig(**{**told, "model": str(folder)}, role=Role.COLOCATED)


def kv_size(
    model: Annotated[str, typer.Option("--model", help="local model or folder")] = models.DEFAULT_MODEL,
    concurrency: Annotated[int, typer.Option("--concurrency", help="sequences at once", min=1)] = 1,
    context: Annotated[int, typer.Option("--context", help="tokens of each, prompt and output", min=1)] = 4096,
    memory: Annotated[str, typer.Option("--memory", help="memory for KV of one rank: 80GiB", metavar="SIZE")] = "1GiB",
    block_size: Annotated[int, typer.Option("--block-size", help="slots of a KV block, in tokens")] = 16,
    kv_dtype: Annotated[
        str, typer.Option("--kv-dtype", "--dtype", help="type of the KV: bfloat16, float16, float32, fp8, int8, auto")
    ] = "bfloat16",
    tensor_parallel: Annotated[int, typer.Option("--tensor-parallel", help="ranks that share the KV heads")] = 1,
    as_json: Json = False,
) -> None:
    """Say how many sequences a memory holds the KV of; exit code 1 when those asked for do not fit."""
    from pagewire.cli import kv_size as sizes

    folder = models.resolve(model)
    sizing = sizes.sizing(
        folder, memory_bytes=parse_bytes(memory), block_size=block_size, dtype=kv_dtype,
        tensor_parallel=tensor_parallel,
    )  # fmt: skip
    told = sizes.figures(sizing, sizes.service(folder), concurrency=concurrency, context=context)
    typer.echo(json.dumps(told) if as_json else "\n".join(sizes.table(told, tensor_parallel)))
    sys.exit(0 if told["fits"] else 1)


def model_get(name: Annotated[str, typer.Argument(help="name of the model")] = models.DEFAULT_MODEL) -> None:
    """Fetch a model, unless it is here and intact, and print its folder."""
    with bar(name) as report:
        folder = models.get(name, report)
    typer.echo(folder)


def model_path(name: Annotated[str, typer.Argument(help="name or folder")] = models.DEFAULT_MODEL) -> None:
    """Print the folder of a model."""
    typer.echo(models.resolve(name))


def model_list(as_json: Json = False) -> None:
    """List the models on this machine and those that can be got."""
    here = {path.name: str(path) for path in local_models.installed()}
    rows = [{"name": name, "path": here.get(name)} for name in sorted({*here, *models.KNOWN})]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        typer.echo(f"{row['name']}  {row['path'] or 'not here; pagewire model get ' + str(row['name'])}")
