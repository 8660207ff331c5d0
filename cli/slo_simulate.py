"""`pagewire slo simulate` and `calibrate`: a cluster in virtual time, and what its steps are said to cost."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagewire.cli import out_file
from pagewire.cli.options import Figures, Records, Slo, TlsCa
from pagewire.cli.slo_origin import origin
from pagewire.core.config import ConfigError
from pagewire.core.errors import Overloaded, Unavailable
from pagewire.slo.workloads.workload_config import WorkloadConfig

if TYPE_CHECKING:
    from pagewire.slo.costs.cost_model import CostModel
    from pagewire.slo.figures.record import Record

ROUTER, ROUNDS, EFFICIENCY = "127.0.0.1:50050", 3, 0.6  # of `calibrate`, where nothing else is said
SIMULATED = "simulated: no cluster was asked, and the figures are as good as the cost model is"
BEYOND = 2  # times the longest prompt that a law was fitted to, within which it is taken to hold
Costs = Annotated[Path, typer.Option("--costs", help="cost model that `pagewire slo calibrate` wrote", metavar="FILE")]


def simulate(
    config: WorkloadConfig,
    costs: Costs,
    prefill: Annotated[int, typer.Option("--prefill", help="prefill pods")] = 1,
    decode: Annotated[int, typer.Option("--decode", help="decode pods")] = 1,
    colocated: Annotated[int, typer.Option("--colocated", help="colocated pods, in place of both")] = 0,
    pods_per_machine: Annotated[
        int, typer.Option("--pods-per-machine", help="pods that share a machine and slow each other down")
    ] = 1,
    block_size: Annotated[int, typer.Option("--block-size", help="slots of a KV block, in tokens")] = 16,
    chunk_size: Annotated[int, typer.Option("--chunk-size", help="prompt tokens of a chunk at most")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(help="token budget of a step")] = 1024,
    max_num_seqs: Annotated[int, typer.Option(help="sequences of a step at most")] = 64,
    max_model_len: Annotated[
        int, typer.Option("--max-model-len", help="longest sequence; 0: as where the costs were measured")
    ] = 0,
    kv_blocks: Annotated[int, typer.Option("--kv-blocks", help="blocks of each pod's KV pool")] = 4096,
    policy: Annotated[str, typer.Option("--policy", help="how the router chooses pods")] = "prefix_affinity",
    prefill_mode: Annotated[str, typer.Option(help="where prompts are built: remote, local, auto")] = "remote",
    admission: Annotated[bool, typer.Option(help="the router's limits, its queue and its gate")] = True,
    slo: Slo = "",
    records: Records = None,
    detailed: Annotated[
        bool,
        typer.Option(
            "--details/--no-details",
            help="keep gaps between tokens, most of the memory of a long run, and where TTFT went, some of its time",
        ),
    ] = True,
    summary: Figures = None,
) -> None:
    """Play a workload on a cluster that is not there, by the product's own decisions and a cost model."""
    from pagewire.cli.progress import say
    from pagewire.slo.figures.objectives import parse_objectives
    from pagewire.slo.figures.table import failures, table
    from pagewire.slo.figures.tally import Tally
    from pagewire.slo.simulation.composition import MAX_MODEL_LEN, Composition
    from pagewire.slo.simulation.simulator import Simulator
    from pagewire.slo.workloads.workload_source import workload_of

    try:
        objectives, model = parse_objectives(slo), read_costs(costs)
        composition = Composition(
            prefill=prefill,
            decode=decode,
            colocated=colocated,
            pods_per_machine=pods_per_machine,
            block_size=block_size,
            chunk_size=chunk_size,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len or model.max_model_len or MAX_MODEL_LEN,
            kv_blocks=kv_blocks,
            policy=policy,
            prefill_mode=prefill_mode,
            admission=admission,
        )
        duration_s = config.duration_s or math.inf
        workload = workload_of(config)
        simulator = Simulator(composition, model, workload, config.seed, is_detailed=detailed, duration_s=duration_s)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for file in (summary, records):
        out_file.try_out(file)
    tally = Tally(config.warmup_s, duration_s, objectives, is_closed=bool(config.concurrency))
    done, longest, details = 0, 0, dict[str, str]()
    with out_file.kept(records) as keep:

        def take(record: Record) -> None:
            nonlocal done, longest
            done, longest = done + 1, max(longest, record.input_tokens)
            if record.error:
                details.setdefault(record.error, record.detail)
            tally.add(record)
            keep(record)

        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        simulator.play(take)
        elapsed_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
        told = tally.summary(is_cut=simulator.is_cut)
        warnings = [*failures(told, details)]
        if composition.prefill and not (colocated or model.knows_travel):
            warnings.append(f"{costs} was measured where no KV travelled: here it travels for next to nothing")
        if longest > BEYOND * model.longest_prompt > 0:
            asked = f"prompts of up to {model.longest_prompt} tokens, and here one has {longest}"
            warnings.append(f"{costs} was fitted to {asked}: what the longer ones take is an extrapolation")
        figures = {
            **told.as_json(),
            "warnings": [SIMULATED, *warnings],
            "labels": composition.labels,
            "composition": dataclasses.asdict(composition),
            "costs": model.as_json(),
            "simulated_s": simulator.now_s,
            "cpu_s": cpu_s,
            **origin(config),
        }
        try:  # first: what was found is not lost with a terminal
            out_file.write_json(summary, figures)
        finally:
            print("\n".join(table(told)))
            for each in warnings:
                say(f"pagewire: {each}")
            print(
                f"{composition}: {done} requests, {simulator.now_s:.1f} simulated seconds in {elapsed_s:.1f} s, "
                f"{cpu_s:.1f} s of CPU: {1e3 * cpu_s / done:.2f} ms a request",
                file=sys.stderr,
            )


def calibrate(
    output: Annotated[Path, typer.Option("--output", help="cost model to write", metavar="FILE")],
    url: Annotated[
        str, typer.Option("--url", help="gRPC address of the router of an idle cluster", metavar="HOST:PORT")
    ] = ROUTER,
    rounds: Annotated[int, typer.Option("--rounds", help="how often everything is measured", min=1)] = ROUNDS,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="model by name, its folder or config.json, for a roofline", metavar="MODEL"),
    ] = None,
    flops: Annotated[float, typer.Option("--flops", help="peak FLOP/s of a device; makes it a roofline")] = 0.0,
    bandwidth: Annotated[float, typer.Option("--bandwidth", help="bytes/s of its memory")] = 0.0,
    link: Annotated[float, typer.Option("--link", help="bytes/s between two pods")] = 0.0,
    efficiency: Annotated[float, typer.Option("--efficiency", help="share of both peaks that is reached")] = EFFICIENCY,
    api_key: Annotated[
        str,
        typer.Option("--api-key", envvar="PAGEWIRE_API_KEY", help="an operator's key, where keys are asked for"),
    ] = "",
    tls_ca: TlsCa = None,
) -> None:
    """Fit a cost model to a short run on a cluster of your own, or make one from a device's data sheet."""
    import asyncio

    from pagewire.cli.progress import say
    from pagewire.cli.slo_plan import read_model
    from pagewire.client import Tls
    from pagewire.slo.costs.calibrate import calibrate as measured
    from pagewire.slo.costs.calibrate import summary_lines
    from pagewire.slo.costs.roofline import Device, roofline, sheet_lines

    out_file.try_out(output)
    has_sheet = model is not None or flops or bandwidth or link or efficiency != EFFICIENCY
    if has_sheet and (url != ROUTER or rounds != ROUNDS or tls_ca is not None):
        raise ConfigError("a roofline is made of a data sheet: it asks no cluster by --url, --rounds or --tls-ca")
    try:
        if has_sheet:
            if model is None or not flops or not bandwidth or not link:
                raise ConfigError("a roofline takes --model, --flops, --bandwidth and --link")
            device = Device(flops=flops, bandwidth=bandwidth, efficiency=efficiency)
            costs = roofline(read_model(model), device, link_bytes_per_s=link)
            laws = sheet_lines(costs)
        else:
            tls = Tls(ca=tls_ca) if tls_ca is not None else None
            costs = asyncio.run(measured(url, api_key=api_key, tls=tls, rounds=rounds, say=say))
            laws = summary_lines(costs)
    except Overloaded as error:
        said = f"the cluster refused a request: {error.message}; calibrate an idle one, without objectives (slo_*_s)"
        raise Unavailable(said) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    output.write_text(costs.to_json(), encoding="utf-8")  # first: what was measured is not lost with a terminal
    print("\n".join(laws))
    say(f"pagewire: cost model in {output}")


def read_costs(path: Path) -> CostModel:
    """Return the cost model in a file; raises ConfigError naming it."""
    from pagewire.slo.costs.cost_model import CostModel

    try:
        return CostModel.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
