"""The tables of docs/experiments/paper-tables.md, each measured and written anew by one command.

    python bench/paper_tables.py TABLE...|all [--rounds 3] [--seed 0] [--json bench/results] [--written]

Real clusters of the real model, by the SLO laboratory: `sweep` is `pagewire slo sweep` itself, the others play closed
and open loops on all clusters of a table in turns. Figures go to FOLDER/paper-TABLE.json; the page's part between the
table's markers is made of that file (with --written of the one that is there, and nothing is measured).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

from origin import command, machine, versions
from paper import COMMON, tables
from turns import play

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "experiments" / "paper-tables.md"
SWEEP = "sweep"
SLO = "ttft=500ms,tpot=50ms"
SWEEP_FLAGS = (
    *("--grid", "pods=2 colocated,1P:1D", "--common", ",".join(COMMON), "--slo", SLO),
    *("--attainment", "0.9", "--rate", "8", "--lowest-rate", "2", "--highest-rate", "32", "--precision", "0.45"),
    *("--repeats", "2", "--duration-s", "9", "--warmup-s", "1", "--input", "32-64", "--output", "4-8"),
)


def main() -> None:
    """Measure and write what was asked for."""
    known = tables()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=[*known, SWEEP, "all"], metavar="TABLE", help=f"{[*known, SWEEP]}")
    parser.add_argument("--rounds", type=int, default=3, help="of all loads on all clusters")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    parser.add_argument("--json", type=Path, default=ROOT / "bench" / "results", help="folder of the figures")
    parser.add_argument("--page", type=Path, default=PAGE, help="page to write the tables into")
    parser.add_argument("--written", action="store_true", help="take the figures that are there")
    parser.add_argument("--sweep", type=Path, help="folder of the sweep: one that was cut off is gone on with")
    args = parser.parse_args()
    for name in [*known, SWEEP] if "all" in args.tables else args.tables:
        path = args.json / f"paper-{name}.json"
        if not args.written:
            asked = f"python bench/paper_tables.py {name} --rounds {args.rounds} --seed {args.seed}"
            about = {"command": asked, "machine": machine(), "versions": versions("torch"), "seed": args.seed}
            if name == SWEEP:
                told = {**about, **swept(args.seed, args.sweep)}
            else:
                table = known[name]
                runs = asyncio.run(play(table.configurations, table.loads, args.rounds, args.seed, say))
                told = {**about, "common": COMMON, "runs": runs}
            path.write_text(written(told), encoding="utf-8")
        told = json.loads(path.read_text(encoding="utf-8"))
        rows = sweep_lines(told) if name == SWEEP else known[name].lines(told["runs"])
        write(args.page, name, [*rows, "", *origin(told)])


def swept(seed: int, kept: Path | None) -> dict[str, Any]:
    """Return what `pagewire slo sweep` tells of its configurations; in the folder `kept`, or a temporary one."""
    with tempfile.TemporaryDirectory(prefix="pagewire-bench-") as scratch:
        folder, flags = kept or Path(scratch), [*SWEEP_FLAGS, "--seed", str(seed)]
        program = [sys.executable, "-P", "-m", "pagewire.cli.main", "slo", "sweep", *flags, "--out", str(folder)]
        subprocess.run(program, check=True)
        found = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["configurations"]
        for probe in (probe for each in found for probe in each["probes"]):
            run = json.loads((folder / probe["folder"] / "run.json").read_text(encoding="utf-8"))
            probe |= {name: run[name] for name in ("attainment_by_objective", "ttft_ms", "tpot_ms", "warnings")}
        return {"sweep": command(["pagewire", "slo", "sweep", *flags, "--out", "FOLDER"]), "configurations": found}


def sweep_lines(told: dict[str, Any]) -> Iterator[str]:
    """Yield the rates that each cluster carries, and the probes behind them."""
    yield "| cluster | requests/s at 90 % | probes: rate, good (95 % sure), p90 of TTFT and TPOT in ms |"
    yield "|---|---|---|"
    for each in told["configurations"]:
        probes = "; ".join(
            f"{probe['rate']:g}/s {probe['share']:.0%} ({probe['low']:.0%}-{probe['high']:.0%}), "
            f"{probe['ttft_ms']['p90']:.0f} and {probe['tpot_ms']['p90']:.0f}"
            for probe in each["probes"]
        )
        yield f"| {each['name']} | {each['error'] or each['rates'][0]['told']} | {probes} |"


def origin(told: dict[str, Any]) -> Iterator[str]:
    """Yield with what it was made."""
    at, found = told["machine"], told["versions"]
    made = ", ".join(f"{name} {version}" for name, version in found.items())
    cores = f"{at['cores']} cores of {at['cpu']}, family-model {at['family-model']}, {', '.join(at['instructions'])}"
    yield f"`{told['command']}`; {cores}; {made}."
    yield f"It runs `{told[SWEEP]}`." if SWEEP in told else "Median of rounds (least-most)."


def write(page: Path, name: str, lines: list[str]) -> None:
    """Put lines between the markers of a table; raises ValueError where the page has none."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page.name} has no {begin} ... {end}")
    page.write_text("\n".join([before + begin, *lines, end + after]), encoding="utf-8")


def written(told: dict[str, Any]) -> str:
    """Return it as JSON, a run a line."""
    rest = {name: value for name, value in told.items() if name != "runs"}
    text = json.dumps(rest, indent=1)
    if "runs" not in told:
        return text + "\n"
    rows = ",\n".join(f"  {json.dumps(each)}" for each in told["runs"])
    return text[: -len("\n}")] + f',\n "runs": [\n{rows}\n ]\n}}\n'


def say(text: str) -> None:
    """Tell who waits."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
