"""`python -m simulated run [--seeds N] [--first N] [--processes N]`, and `replay SEED`, which also makes it small.

A run fails where a seed breaks a rule, and where a kind of fault never did anything: then nothing was shown of it.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import time

from simulated.plan import Plan, draw_plan
from simulated.runner import Played, Summary, kinds, outcomes, play
from simulated.shrink import shrink
from simulated.world import tokenizer

SHOWN = 5  # failing seeds


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulated", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="play many seeds")
    run.add_argument("--seeds", type=int, default=2000)
    run.add_argument("--first", type=int, default=0)
    run.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    again = commands.add_parser("replay", help="play one seed, tell what happened, and make it small where it fails")
    again.add_argument("seed", type=int)
    options = parser.parse_args()
    if options.command == "replay":
        return replay(options.seed)
    return play_many(range(options.first, options.first + options.seeds), options.processes)


def play_many(seeds: range, processes: int) -> int:
    """Play seeds and say what came of them."""
    began_s = time.perf_counter()
    summary = Summary()
    for outcome in outcomes(seeds, processes=processes):
        summary.outcomes.append(outcome)
        for violation in outcome.violations[:3]:
            print(f"seed {outcome.seed} breaks {violation}", flush=True)
    took_s = time.perf_counter() - began_s
    count = len(summary.outcomes)
    print(f"{count} seeds in {took_s:.0f} s, {count / took_s:.1f} a second; {len(summary.failing)} break a rule")
    print("share of the seeds in which each fault did something, and the states that it met:")
    states = summary.states()
    for kind, share in summary.share().items():
        met = {
            state.partition(" at ")[2]: number
            for state, number in sorted(states.items())
            if state.startswith(f"{kind} at ")
        }
        print(f"  {kind:<18} {share:6.1%}  {', '.join(f'{state} {number}' for state, number in met.items())}")
    idle = [kind for kind, share in summary.share().items() if not share]
    for kind in idle:
        print(f"{kind} never did anything: nothing is shown of it")
    for outcome in sorted(summary.failing, key=lambda each: each.seed)[:SHOWN]:
        print(f"again: make simulation-test SEED={outcome.seed}")
    return 1 if summary.failing or idle else 0


def replay(seed: int) -> int:
    """Play a seed twice, which must be the same, and make it small where it breaks a rule."""
    gc.disable()
    plan = draw_plan(seed, kinds())
    played, again = play(plan), play(plan)
    _tell(played)
    if played.history.digest() != again.history.digest():
        print("it was not the same when it was played again")
        return 1
    if not played.violations:
        return 0
    rules = {violation.rule for violation in played.violations}

    def breaks(smaller: Plan) -> bool:
        return bool(rules & {violation.rule for violation in play(smaller).violations})

    print("\nas small as it goes:\n")
    _tell(play(shrink(plan, breaks)))
    return 1


def _tell(played: Played) -> None:
    print(played.plan)
    print(played.history)
    for violation in played.violations:
        print(f"breaks {violation}")
    print(f"digest {played.history.digest()}", flush=True)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what a seed plays
        os.execve(
            sys.executable, [sys.executable, "-m", "simulated", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    code = main()
    shutil.rmtree(tokenizer()[0])
    sys.stdout.flush()
    os._exit(code)  # what was killed in a world is not cleaned up
