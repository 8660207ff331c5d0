"""Sequences that are handed over twice, because the pod that took them drains too: whatever it had done by then.

Real pods and links, and a router's part played by `Course`. Time stands still in the pods: where a hold is not ended by
the fetch that takes its blocks, its pod never drains, and the test fails.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faulty_channel import swallow
from pods import BLOCK, Asked, Colocated, Pod, Pods, going_slowly, pods, prompt, until

from pagewire.core.block_hash import BlockHash
from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import Held, Hold
from pagewire.core.messages import Source
from pagewire.core.report import Report
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import Branch, SequenceSpec
from pagewire.decode_service.handovers import Handovers


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What is asked."""

    tokens: list[int]
    max_tokens: int
    sampling: dict[str, Any]


QUESTIONS = {
    "greedy": Question(prompt(1, 100), 60, {}),
    "seeded": Question(prompt(3, 75), 60, {"seed": 5, "temperature": 0.9}),
    "several": Question(prompt(2, 90), 50, {"n": 3, "seed": 11, "temperature": 1.1}),
}


class Course:
    """One request on its way, as a router leads it: the next pod is told of who gave it up since a token came."""

    def __init__(self, cluster: Pods, name: str, question: Question) -> None:
        self.name = name
        self.question = question
        self.known = [Branch(index=index) for index in range(question.sampling.get("n", 1))]  # that go on
        self.said: dict[int, tuple[int, ...]] = {}  # of those that ended
        self._cluster = cluster
        self._sources: list[Source] = []
        self._asked: list[Asked] = []

    @property
    def num_new(self) -> int:
        """Tokens of the first sequence from the pod that has it now."""
        return len(self._asked[-1].tokens)

    @property
    def num_known(self) -> int:
        """Tokens of the prompt and of the first sequence that goes on."""
        return len(self.question.tokens) + len(self.known[0].output)

    @property
    def report(self) -> Report:
        """What it cost where it ended."""
        return self._asked[-1].report

    async def go_on(self, pod: Pod, **options: Any) -> None:
        """Submit it to a pod, with the tokens that came before."""
        first, *others = self.known
        asked = await self._cluster.submit(
            f"{self.name}.{len(self._asked)}", self.question.tokens, self.question.max_tokens, on=pod,
            sources=self._sources, output=first.output, index=first.index, others=tuple(others),
            **self.question.sampling, **options,
        )  # fmt: skip
        self._asked.append(asked)

    async def given_up(self, pod: Pod) -> None:
        """Wait for the pod's word that another is to go on with it."""
        asked = await self._cluster.end(self._asked[-1])
        assert asked.cause == "handed_over"
        self._take(asked)
        self._sources = [pod.source(self.num_known), *(self._sources if self.num_new == 0 else ())]

    async def over(self) -> None:
        """Wait for its good end."""
        asked = await self._cluster.end(self._asked[-1])
        assert asked.cause == ""
        self._take(asked)
        assert self.known == []

    def _take(self, asked: Asked) -> None:
        outputs = {index: output + tuple(asked.streams[index]) for index, output in asked.outputs.items()}
        self.said |= {index: output for index, output in outputs.items() if index in asked.reasons}
        self.known = [
            Branch(index=index, output=output) for index, output in outputs.items() if index not in asked.reasons
        ]


class Scene:
    """Three decode pods, of which the first has handed over what it ran, and the second was asked to go on with it."""

    def __init__(self, cluster: Pods) -> None:
        self.first, self.second, self.third = cluster.decode
        self.cluster = cluster
        self.courses = [Course(cluster, name, question) for name, question in QUESTIONS.items()]

    async def drain(self, pod: Pod) -> None:
        """Have a pod give up what it runs."""
        pod.front.lifecycle.drain("the test says so")
        pod.service.hand_over()
        async with going_slowly(pod):
            for course in self.courses:
                await course.given_up(pod)


async def run(pod: Pod, courses: Sequence[Course]) -> None:
    """Have a pod step until it has said a few tokens of each course, and stand."""
    while any(course.num_new < 3 for course in courses):
        said = [course.num_new for course in courses]
        pod.engine.allow(1)
        for _ in range(50):  # steps go ahead of what is heard of them: more of them, and an answer would be over
            await asyncio.sleep(0.002)
            if said != [course.num_new for course in courses]:
                break
    pod.engine.allow(0)


Moment = Callable[[Scene], Awaitable[None]]


async def asked(scene: Scene) -> None:
    """No block has come yet."""
    scene.second.bulk[0].flowing.clear()
    await submitted(scene)
    await until(lambda: len(scene.second.deliveries) == len(scene.courses))


async def halfway(scene: Scene) -> None:
    """Blocks have come, the others do not."""
    channel = scene.second.bulk[0]
    channel.plan = swallow(*range(channel.num_messages + 4, channel.num_messages + 100))
    await submitted(scene)
    await until(lambda: scene.second.num_landed == 4)


async def fetched(scene: Scene) -> None:
    """All that was held has come, and not a step was made since."""
    scene.second.engine.allow(0)
    await submitted(scene)
    await until(lambda: scene.first.counter("handovers_fetched") == len(scene.courses))


async def running(scene: Scene) -> None:
    """The second pod has said tokens of its own."""
    scene.second.engine.allow(0)
    await submitted(scene)
    await run(scene.second, scene.courses)


async def running_with_the_first_gone(scene: Scene) -> None:
    await running(scene)
    await scene.first.service.drained()
    await gone(scene)


async def without_an_answer(scene: Scene) -> None:
    """Its engine has set blocks aside, and the answer is on its way."""
    scene.second.engine.answering.clear()
    await submitted(scene)
    await until(lambda: len(scene.second.engine.engine.scheduler.sequences) > 0)


async def waiting(scene: Scene) -> None:
    """One of the pod's own has the blocks that they wait for."""
    filler = Course(scene.cluster, "filler", Question(prompt(4, 200), 20, {}))
    scene.second.engine.allow(0)
    await filler.go_on(scene.second, prefill="local")
    await run(scene.second, [filler])
    await submitted(scene)
    await until(lambda: scene.second.num_waiting > 0)
    scene.courses.append(filler)


async def submitted(scene: Scene) -> None:
    for course in scene.courses:
        await course.go_on(scene.second)


async def gone(scene: Scene) -> None:
    await scene.cluster.router.hang_up(scene.first)
    await scene.first.server.stop(0)


@pytest.mark.parametrize(
    "moment",
    [asked, halfway, fetched, running, running_with_the_first_gone, without_an_answer, waiting],
    ids=lambda moment: moment.__name__,
)
async def test_the_pod_that_took_them_drains_too(model: Path, colocated: Colocated, moment: Moment) -> None:
    """The last one computes none of what is held for it anywhere, and nobody is kept from going away."""
    settings = {"kv_memory_bytes": 30 * 12288} if moment is waiting else {}  # 30 blocks
    async with pods(model, 1, 3, d=settings) as cluster:
        scene = await begun(cluster)
        await moment(scene)
        await scene.drain(scene.second)
        scene.second.engine.answering.set()
        for course in scene.courses:
            num_known = course.num_known
            await course.go_on(scene.third)
            await course.over()
            assert course.report.decode_fetched_tokens == (num_known - 1) // BLOCK * BLOCK
        assert_right(scene, colocated)
        for pod in (scene.first, scene.second):
            await until(lambda pod=pod: len(pod.service._handovers) == 0)  # type: ignore[misc]
            assert pod.counter("handovers_fetched") <= pod.counter("requests_handed_over") <= len(scene.courses)


async def test_who_had_no_block_to_leave_is_counted_too(model: Path) -> None:
    async with pods(model, 0, 1) as cluster:
        pod = cluster.d
        pod.engine.allow(3)
        short = await cluster.submit("short", prompt(1, 5), 60)
        await until(lambda: len(short.tokens) >= 2)
        pod.front.lifecycle.drain("the test says so")
        pod.service.hand_over()
        async with going_slowly(pod):
            await cluster.end(short)
        assert short.cause == "handed_over"
        assert (pod.counter("requests_handed_over"), pod.counter("handovers_fetched")) == (1, 0)


async def test_the_first_is_gone_before_its_blocks_have_come(model: Path, colocated: Colocated) -> None:
    async with pods(model, 1, 3) as cluster:
        scene = await begun(cluster)
        scene.second.engine.allow(0)
        await halfway(scene)
        await gone(scene)
        await until(lambda: not scene.second.deliveries)
        await scene.drain(scene.second)
        for course in scene.courses:
            await course.go_on(scene.third)
            await course.over()
        assert_right(scene, colocated)
        scene.first.advance(11.0)  # nobody can fetch what it holds


async def begun(cluster: Pods) -> Scene:
    """Have the first pod run the courses for a while and hand them over; the second has met it."""
    scene = Scene(cluster)
    await cluster.ask("known", prompt(8, 20), 2, on=scene.first)
    await cluster.ask("known too", prompt(8, 20), 2, on=scene.second, sources=[scene.first.source(20)])
    scene.first.engine.allow(0)
    for course in scene.courses:
        await course.go_on(scene.first, prefill="local")
    await run(scene.first, scene.courses)
    await scene.drain(scene.first)
    return scene


def assert_right(scene: Scene, colocated: Colocated) -> None:
    """Every sequence has said what it says undisturbed."""
    for course in scene.courses:
        question = course.question
        sampling = {name: value for name, value in question.sampling.items() if name != "n"}
        for index in range(question.sampling.get("n", 1)):
            answer = colocated.answer(question.tokens, question.max_tokens, index=index, **sampling)
            assert list(course.said[index]) == answer, course.name


class _Pinning:
    """An engine that takes its time to pin."""

    def __init__(self) -> None:
        self.ready = SimpleNamespace(layout=SimpleNamespace(block_size=2))
        self.may_answer = asyncio.Event()
        self.released: list[str] = []

    async def hold(self, hold: Hold) -> Held:
        await self.may_answer.wait()
        return Held(request_id=hold.request_id, block_ids=(1,))

    def release(self, hold_id: str) -> None:
        self.released.append(hold_id)


@pytest.mark.parametrize("forgotten", [("a",), ("b",), ()])
async def test_what_is_forgotten_while_it_is_pinned_is_let_go_at_once(forgotten: tuple[str, ...]) -> None:
    engine = _Pinning()
    handovers = Handovers(cast(Any, engine), ManualClock())
    spec = SequenceSpec(request_id="a", tokens=(1, 2, 3), sampling=SamplingParams(), root=BlockHash(bytes(16)))
    holding = asyncio.create_task(handovers.hold(spec, (4,)))
    await asyncio.sleep(0)
    for name in forgotten:
        handovers.forget(name)
    engine.may_answer.set()
    await holding
    assert len(handovers) == (forgotten != ("a",))
    assert len(engine.released) == (forgotten == ("a",))
