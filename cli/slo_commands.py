"""The sub-commands of `pagewire slo`. Each imports what it needs when it runs, so that --help costs nothing."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

import typer

from pagewire.cli import flags, out_file, slo_plan, slo_simulate
from pagewire.cli.options import ApiKey, Figures, Records, Slo, TlsCa, TlsCert, TlsKey
from pagewire.cli.progress import say
from pagewire.core.config import ConfigError
from pagewire.slo.sweeps.sweep_config import SweepConfig
from pagewire.slo.workloads.workload_config import WorkloadConfig

DEFAULT_URL = "http://127.0.0.1:8000"


def build(others: Collection[str]) -> typer.Typer:
    """Return `pagewire slo`; `others` are PAGEWIRE_* variables that belong to other commands."""
    app = typer.Typer(help="The SLO laboratory: load, and figures of TTFT and TPOT.", no_args_is_help=True)
    app.command("run")(flags.command(WorkloadConfig, run, others=others))
    app.command("simulate")(flags.command(WorkloadConfig, slo_simulate.simulate, others=others))
    app.command("plan")(flags.command(WorkloadConfig, slo_plan.plan, others=others))
    app.command("calibrate")(slo_simulate.calibrate)
    app.command("report")(report)
    app.command("sweep")(flags.command(SweepConfig, sweep, others=others))
    app.command("export")(flags.command(WorkloadConfig, export, others=others))
    return app


def run(
    config: WorkloadConfig,
    url: Annotated[
        str, typer.Option("--url", help="OpenAI-compatible server (http...), or HOST:PORT of a router's gRPC")
    ] = DEFAULT_URL,
    api: Annotated[
        Literal["completions", "chat"], typer.Option("--api", help="token ids or texts, or messages of a chat")
    ] = "completions",
    model: Annotated[
        str, typer.Option("--model", help="name of the model, the first that is served unless given")
    ] = "",
    slo: Slo = "",
    timeout_s: Annotated[float, typer.Option("--timeout-s", help="of one request, in seconds", min=0.001)] = 600.0,
    token_ids: Annotated[
        str,
        typer.Option(
            "--token-ids", help="ids that prompts are made of, ordinary ones of the model", metavar="LOW-HIGH"
        ),
    ] = "100-29999",
    plain: Annotated[
        bool, typer.Option("--plain", help="OpenAI's own fields alone: no ignore_eos, no return_token_ids, no priority")
    ] = False,
    records: Records = None,
    summary: Figures = None,
    api_key: ApiKey = "",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Play a workload against a running server and print what TTFT and TPOT came to, and what share met its SLO.

    Exit code 1 where no request was answered, 130 where Ctrl-C cut it short; what came until then is told and written
    all the same.
    """
    from pagewire.cli import slo_run
    from pagewire.slo.figures.objectives import parse_objectives
    from pagewire.slo.load.pieces import parse_vocabulary
    from pagewire.slo.load.run import RunPlan, Server

    try:
        plan = RunPlan(
            objectives=parse_objectives(slo),
            warmup_s=config.warmup_s,
            duration_s=config.duration_s or math.inf,
            timeout_s=timeout_s,
            vocabulary=parse_vocabulary(token_ids),
            is_chat=api == "chat",
        )
        server = Server(
            url=url, model=model, extends=not plain, api_key=api_key,
            ca=str(tls_ca or ""), cert=str(tls_cert or ""), key=str(tls_key or ""),
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(str(error)) from error
    sys.exit(slo_run.execute(config, server, plan, records=records, summary=summary))


def report(
    sources: Annotated[
        list[Path], typer.Argument(help="--json files with their records beside them, or folders of a sweep")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="the page", metavar="FILE")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", help="each figure as SVG and PNG, too", metavar="DIR")
    ] = None,
    slo: Annotated[
        str | None, typer.Option("--slo", help="judge all runs by these objectives in place of their own")
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option("--compare", help="two runs by their names, the only two unless given", metavar="NAME NAME"),
    ] = None,
    title: Annotated[str, typer.Option("--title", help="of the page")] = "",
    seed: Annotated[int, typer.Option("--seed", help="of the resamples that intervals come from")] = 0,
) -> None:
    """Write recorded runs as one self-contained page: figures, their numbers, definitions and a verdict."""
    from pagewire.slo.figures.experiment_files import read_experiment
    from pagewire.slo.figures.objectives import parse_objectives

    try:
        objectives = None if slo is None else parse_objectives(slo)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    out_file.try_out(output)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # before it comes in: where it keeps caches is no concern
    from pagewire.slo.report.report import report as reported

    made = reported(read_experiment(sources, title=title, objectives=objectives), compared=compare, seed=seed)
    output.write_text(made.html(), encoding="utf-8")
    if figures is not None:
        made.write_figures(figures)
    print("\n".join(made.verdict))
    say(f"pagewire: {len(made.figures)} figures in {output}")


def sweep(
    config: SweepConfig,
    out: Annotated[
        Path, typer.Option("--out", help="folder of the sweep; one that is there is gone on with", metavar="FOLDER")
    ],
    retry: Annotated[bool, typer.Option("--retry", help="try configurations again that failed before")] = False,
) -> None:
    """Start local clusters of many settings, one after the other, and find the highest rate that each carries.

    It may be killed and started again: finished probes are not repeated. Exit code 1 when a configuration failed.
    """
    from pagewire.cli import slo_sweep

    sys.exit(slo_sweep.execute(config, out, retry=retry))


def export(
    config: WorkloadConfig,
    recording: Annotated[Path, typer.Argument(help="recording to write, as .jsonl", metavar="FILE")],
) -> None:
    """Write a workload, recorded or made up, as a recording in Mooncake's format, which other tools read as well."""
    from pagewire.slo.workloads.formats.mooncake import write_mooncake
    from pagewire.slo.workloads.workload_source import workload_of

    if config.concurrency:
        raise ConfigError("a closed loop has no times that a recording could say: leave concurrency out")
    write_mooncake(workload_of(config), recording)
