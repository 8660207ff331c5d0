"""`pagewire slo plan`: the cheapest cluster that keeps its promises, by the simulator."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagewire.cli import out_file
from pagewire.cli.options import Slo
from pagewire.cli.slo_origin import origin
from pagewire.core.config import ConfigError
from pagewire.core.document_files import read_object
from pagewire.slo.workloads.workload_config import WorkloadConfig

if TYPE_CHECKING:
    from pagewire.slo.costs.roofline import ModelShape

REQUESTS = 400  # of a workload that is made up and says no number: a share of 90 % is known within 3 %


def plan(
    config: WorkloadConfig,
    model: Annotated[Path, typer.Option("--model", help="model by name, its folder or config.json", metavar="MODEL")],
    devices: Annotated[
        Path, typer.Option("--devices", help="TOML file of kinds of devices: figures, links, prices", metavar="FILE")
    ],
    slo: Slo,
    attainment: Annotated[float, typer.Option("--attainment", help="share of requests that have to be good")] = 0.9,
    chunk_sizes: Annotated[str, typer.Option("--chunk-sizes", help="chunks to choose from, in tokens")] = "256,1024",
    policies: Annotated[
        str, typer.Option("--policies", help="ways in which the router chooses pods, to choose from")
    ] = "prefix_affinity",
    prefill_modes: Annotated[
        str, typer.Option("--prefill-modes", help="where prompts are built, to choose from: remote, auto")
    ] = "remote,auto",
    max_num_seqs: Annotated[
        str, typer.Option("--max-num-seqs", help="sequences of a step at most, to choose from")
    ] = "256",
    max_pods: Annotated[int, typer.Option("--max-pods", help="pods of a cluster at most", min=1)] = 16,
    what_if: Annotated[
        bool, typer.Option("--what-if/--no-what-if", help="what if links, prompts or rate change")
    ] = True,
    summary: Annotated[Path | None, typer.Option("--json", help="the plan, as JSON", metavar="FILE")] = None,
) -> None:
    """Find the cheapest cluster that keeps an SLO, colocated or not, and tell why. Figures are the simulator's.

    Exit code 1 where no cluster does.
    """
    from pagewire.slo.figures.objectives import parse_objectives
    from pagewire.slo.figures.summary import Window
    from pagewire.slo.planning import telling
    from pagewire.slo.planning.candidate import Choices
    from pagewire.slo.planning.device_files import read_kinds
    from pagewire.slo.planning.plan import Question
    from pagewire.slo.planning.plan import plan as planned
    from pagewire.slo.workloads.workload_source import workload_of

    if config.concurrency:
        raise ConfigError("a plan is for a rate of requests: a closed loop (--concurrency) has none")
    if not (config.trace or config.requests or config.duration_s):
        config = dataclasses.replace(config, requests=REQUESTS)
    workload = workload_of(config)
    out_file.try_out(summary)
    try:
        question = Question(
            model=read_model(model),
            kinds=read_kinds(devices),
            workload=workload,
            window=Window(from_s=config.warmup_s, until_s=config.duration_s or math.inf),
            objectives=parse_objectives(slo),
            target=attainment,
            choices=Choices(
                chunk_sizes=tuple(map(int, _split(chunk_sizes))),
                policies=_split(policies),
                prefill_modes=_split(prefill_modes),
                max_num_seqs=tuple(map(int, _split(max_num_seqs))),
                max_pods=max_pods,
            ),
            seed=config.seed,
        )
        started_s = time.perf_counter()
        found = planned(question, with_what_ifs=what_if)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    elapsed_s = time.perf_counter() - started_s
    try:  # first: what was found is not lost with a terminal
        out_file.write_json(summary, {**telling.as_json(found), **origin(config)})
    finally:
        print("\n".join(telling.lines(found)))
        print(f"{found.runs} clusters simulated in {elapsed_s:.1f} s", file=sys.stderr)
    if found.chosen is None:
        sys.exit(1)


def read_model(path: Path) -> ModelShape:
    """Return the shape of a local model, by its name or folder, or of a config.json; raises ValueError naming it.

    Raises UnknownModel where there is none, and OSError.
    """
    from pagewire.cli.models import resolve
    from pagewire.slo.costs.roofline import ModelShape

    file = path if path.is_file() else resolve(str(path)) / "config.json"
    return ModelShape.of(file.parent.name, read_object(file))


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
