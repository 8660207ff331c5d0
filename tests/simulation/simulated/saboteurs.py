"""Faults that others had, planted in the product, to see that a simulation finds them.

Each is small, named after what went wrong and where it was reported, and says in how many seeds and by which rules it
must be found. Knows the product's inside, which is what it changes. Invariant: what was planted is taken out again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from pagewire.core import block_hash
from pagewire.core.messages import Fence, Fetch, Landed, Resend
from pagewire.core.sampling import FinishReason
from pagewire.decode_service import admission as admission_file
from pagewire.decode_service import request as request_file
from pagewire.decode_service import service as service_file
from pagewire.engine import engine_loop as engine_file
from pagewire.engine import progress as progress_file
from pagewire.engine import scheduler as scheduler_file
from pagewire.engine import sequence as sequence_file
from pagewire.engine.exchange import export as export_file
from pagewire.engine.exchange import exports as exports_file
from pagewire.kvtransfer import arrivals as arrivals_file
from pagewire.kvtransfer import lease as lease_file
from pagewire.kvtransfer import shipment as shipment_file
from pagewire.router import life as life_file
from pagewire.router import lookup as lookup_file
from pagewire.router import retry_budget as budget_file
from pagewire.serving import doors as doors_file
from simulated.checker import BROKEN

HELD = f"nothing_broke: {BROKEN['leftover']}"
TOUCHED = f"nothing_broke: {BROKEN['breach']}"

Plant = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Saboteur:
    """A planted fault; `reported` is where others had it, `within` the seeds in which it is found at the latest.

    `breaks` are the rules that find it, each the beginning of what the checker says.
    """

    name: str
    reported: str
    within: int
    breaks: tuple[str, ...]
    plant: Plant


SABOTEURS: list[Saboteur] = []


def saboteur(reported: str, *, within: int, breaks: tuple[str, ...]) -> Callable[[Plant], Plant]:
    """Add one under its function's name."""

    def add(plant: Plant) -> Plant:
        SABOTEURS.append(Saboteur(plant.__name__, reported, within, breaks, plant))
        return plant

    return add


@saboteur("vllm#46283, vllm#50425", within=100, breaks=(HELD,))
def abort_while_waiting_for_kv_frees_nothing() -> Any:
    """A request that ends before it has joined leaves its blocks to whoever ships them."""
    settle = request_file.Request._settle

    async def forgetful(self: Any) -> None:
        self._is_in_engine = self._is_in_engine and self._has_joined
        await settle(self)

    return mock.patch.object(request_file.Request, "_settle", forgetful)


@contextlib.contextmanager
def _blocks_wait_for_a_taker_for_ever() -> Iterator[None]:
    with (
        mock.patch.object(exports_file.Exports, "link_lost", return_value=None),
        mock.patch.object(lease_file.LeaseTable, "expired", return_value=()),
        mock.patch.object(exports_file.Exports, "fail", return_value=None),
    ):
        yield


@saboteur("vllm PR#41269, the NIXL path of sglang", within=500, breaks=(HELD,))
def blocks_of_a_taker_that_died_are_held_for_ever() -> Any:
    """A prefill pod waits for the decode pod's word, which never comes: no lease, no deadline, no loss ends that."""
    return _blocks_wait_for_a_taker_for_ever()


@saboteur("vllm#32255, vllm PR#56104", within=500, breaks=(TOUCHED,))
def blocks_are_reused_while_they_are_written() -> Any:
    """A shipment hands its blocks over while a copy into them is still going on."""
    return mock.patch.object(arrivals_file.Arrivals, "has_claims", property(lambda self: False))


@saboteur("vllm#52234, aws-do-eks PR#84", within=500, breaks=(TOUCHED,))
def blocks_are_released_while_they_are_sent() -> Any:
    """A prefill pod gives blocks back without asking the transport whether it still reads them."""

    async def hasty(self: Any, export: Any) -> None:
        self.act(export, export.shipment.purged())

    return mock.patch.object(exports_file.Exports, "_purge", hasty)


@saboteur("sglang PR#36926", within=200, breaks=(TOUCHED,))
def abort_does_not_wait_for_the_step() -> Any:
    """An abort frees blocks that the running step still writes."""
    abort = engine_file.EngineLoop.abort

    def hasty(self: Any, request_id: str) -> Any:
        self._in_step -= {request_id}
        return abort(self, request_id)

    return mock.patch.object(engine_file.EngineLoop, "abort", hasty)


@saboteur("vllm#49250, sglang#30233", within=200, breaks=("tokens_are_right",))
def gaps_are_kept() -> Any:
    """What landed of a lost shipment is not looked at: all up to its last block is taken for there."""
    announced = property(lambda self: max(0, self._arrivals.end - self.first_block))
    return mock.patch.object(shipment_file.IncomingShipment, "landed_prefix_blocks", announced)


@saboteur("sglang PR#24159, llm-d#2433", within=400, breaks=("failures_are_excused",))
def errors_of_prefill_stay_there() -> Any:
    """A prefill pod that gives up tells its log, and not the decode pod, which waits."""
    return mock.patch.object(export_file.Export, "say_failed", return_value=None)


@saboteur("the random state of dynamo's migration", within=200, breaks=("tokens_are_right",))
def continuation_draws_anew() -> Any:
    """A request that goes on elsewhere draws by another seed."""
    begin = life_file.Life.begin_attempt

    def anew(self: Any) -> Any:
        sampling = begin(self)
        return dataclasses.replace(sampling, seed=(sampling.seed or 0) + self.attempt)

    return mock.patch.object(life_file.Life, "begin_attempt", anew)


@saboteur("LMCache#4385, and every shared cache without a salt", within=100, breaks=("tenants_are_apart",))
def tenants_share_a_cache() -> Any:
    """The salt of a request is not part of its hashes."""
    root = block_hash.root_hash
    return mock.patch.object(lookup_file, "root_hash", lambda *, salt, **parts: root(salt="", **parts))


@saboteur("sglang#7147", within=20, breaks=("failures_are_excused",))
def one_token_is_two() -> Any:
    """A request ends one token too late."""
    reason = sequence_file.finish_reason

    def late(output: list[int], num_prompt: int, sampling: Any, *rest: Any) -> FinishReason | None:
        return reason(output, num_prompt, dataclasses.replace(sampling, max_tokens=sampling.max_tokens + 1), *rest)

    return mock.patch.object(progress_file, "finish_reason", late)


@saboteur("sglang PR#30053, sglang#34572", within=400, breaks=("failures_are_excused",))
def a_queue_forgets_to_wake() -> Any:
    """Who leaves the queue for blocks does not tell the next one."""
    return mock.patch.object(admission_file.Admission, "room", return_value=None)


@saboteur("kthena#1589", within=1000, breaks=("nothing_enters_a_drain",))
def drains_admit() -> Any:
    """A pod that drains takes new requests all the same."""
    check = service_file.DecodeService._check

    def lenient(self: Any, submit: Any) -> None:
        lifecycle = self._front.lifecycle
        with mock.patch.object(type(lifecycle), "is_ready", property(lambda _: True)):
            check(self, submit)

    return mock.patch.object(service_file.DecodeService, "_check", lenient)


@saboteur("the KV of others in a partial block", within=50, breaks=(TOUCHED,))
def tails_are_not_sealed() -> Any:
    """A block that is not full leaves the pod with what was in it before."""
    freeze = scheduler_file.Scheduler._freeze

    def open_tail(self: Any, sequence: Any, count: int, drafted: tuple[int, ...]) -> Any:
        return dataclasses.replace(freeze(self, sequence, count, drafted), seal=False)

    return mock.patch.object(scheduler_file.Scheduler, "_freeze", open_tail)


@saboteur("dynamo PR#7489, vllm PR#50754", within=500, breaks=("rests_soon",))
def fences_are_not_answered() -> Any:
    """A prefill pod goes on with what was cancelled."""
    hear = exports_file.Exports.on_message

    def deaf(self: Any, link: Any, message: Fetch | Landed | Resend | Fence) -> None:
        if not isinstance(message, Fence):
            hear(self, link, message)

    return mock.patch.object(exports_file.Exports, "on_message", deaf)


@saboteur("the retry storms of proxies without a budget", within=400, breaks=("retries_are_budgeted",))
def retries_have_no_budget() -> Any:
    """A router tries again as long as a request may, however many have failed."""
    return mock.patch.object(budget_file.RetryBudget, "spend", return_value=True)


@saboteur("every server that is found before it is ready", within=200, breaks=("nothing_comes_before_readiness",))
def pods_are_found_before_they_are_ready() -> Any:
    """A pod registers and takes requests, and is ready a while later."""
    serving = doors_file.Doors.serving

    def late(self: Any, is_serving: bool) -> None:
        if is_serving:
            asyncio.get_running_loop().call_later(0.5, serving, self, True)
        else:
            serving(self, False)

    return mock.patch.object(doors_file.Doors, "serving", late)
