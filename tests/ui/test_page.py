"""The live page in a real browser, before a real cluster: asked by keyboard alone, it shows what went on."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import tiny_model
from live_cluster import LiveCluster
from page_probes import (
    CROSSED_IN_PICTURES,
    FAINT,
    FAINT_IN_PICTURES,
    OVERLAPPING,
    OVERLAPPING_IN_PICTURES,
    OpenPage,
)
from playwright.async_api import Page

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

FLAGS = ("--dtype", "float32", "--max-model-len", "512", "--kv-memory", "4MiB", "--chunk-size", "32")
SLO = ("--slo-ttft-s", "20", "--slo-tpot-s", "0.000001")  # one that is met, and one that nobody can meet
PATIENT_MS = 60_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tiny_model.build(tmp_path_factory.mktemp("llama"), "llama"), *FLAGS, *SLO)
    yield cluster
    assert cluster.stop() == 0


async def asked(page: Page, prompt: str, tokens: int) -> None:
    """Ask by keyboard alone, from the top of the page on."""
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.className") == "skip"
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "prompt"
    await page.keyboard.type(prompt)
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.id") == "model"
    await page.keyboard.press("Tab")
    await page.keyboard.press("Control+A")
    await page.keyboard.type(str(tokens))
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.id") == "send"
    await page.keyboard.press("Enter")


async def said(page: Page, selector: str, pattern: str) -> re.Match[str]:
    """Wait until an element's text matches."""
    script = "([selector, pattern]) => new RegExp(pattern).test(document.querySelector(selector)?.innerText ?? '')"
    await page.wait_for_function(script, arg=[selector, pattern], timeout=PATIENT_MS)
    found = re.search(pattern, await page.inner_text(selector))
    assert found is not None
    return found


async def test_a_prompt_is_answered_with_its_timeline(cluster: LiveCluster, open_page: OpenPage) -> None:
    page = await open_page(cluster.http)
    await page.wait_for_function("document.querySelector('#model').options.length === 1")
    assert await page.input_value("#model") == cluster.model_name
    most = 240  # a router that gets no time meanwhile, and so hears of all tokens at once, keeps any promise of pace
    await asked(page, "A question that takes more than one chunk of the prompt to compute.", most)
    pattern = r"Finished \((\w+)\): (\d+) prompt tokens, \d+ of them cached, (\d+) answered; TTFT ([\d.]+ m?s)"
    told = await said(page, "#ask-state", pattern)
    reason, prompt_tokens, output_tokens, ttft = told.groups()
    assert int(prompt_tokens) > 32
    assert 1 < int(output_tokens) <= most
    figure = page.locator("#answer-timeline .lanes svg")
    names = await page.inner_text("#answer-timeline .names")
    assert names.split() == ["R", "P", "D"]
    drawn = await figure.get_attribute("aria-label")
    assert drawn is not None
    assert re.search(r"\d chunks of the prompt [\d.]+ ms, transfer [\d.]+ ms, tokens", drawn), drawn
    # The same request, as the feed tells of it.
    row = page.locator("#request-list .request").first
    await said(page, "#request-list .request", f"finished: {reason}")
    text = await row.inner_text()
    assert f"TTFT {ttft}" in text
    assert f"{prompt_tokens} + {output_tokens} tokens" in text
    assert "prefill-0 → decode-0" in text
    await row.locator("button").press("Enter")
    assert "last block verified" in await row.inner_text()
    assert "1 of 1 met the target of 20.0 s" in await page.inner_text("#sparks")
    assert "0 of 1 met" in await page.inner_text("#sparks")
    assert await page.locator("#sparks .missed").count() == 1


async def test_a_refusal_is_told(cluster: LiveCluster, open_page: OpenPage) -> None:
    page = await open_page(cluster.http)
    await page.wait_for_function("document.querySelector('#model').options.length === 1")
    await page.fill("#prompt", "more than fits")
    await page.fill("#most", "5000")
    await page.focus("#prompt")
    await page.keyboard.press("Control+Enter")
    await said(page, "#ask-state", "^Failed: .* 512 tokens: max_tokens 5000")


async def test_blocks_and_links_are_what_pods_count(cluster: LiveCluster, open_page: OpenPage) -> None:
    page = await open_page(cluster.http)
    await asyncio.to_thread(cluster.complete, "words " * 30, 8)
    for pod in cluster.pods():
        held = await asyncio.to_thread(cluster.metrics, pod)
        total, cached = int(held["kv_blocks_total"]), int(held["kv_blocks_cached"])
        await said(page, "#pod-map", f"{pod['id']} {pod['role']}")
        card = page.locator(".pod", has_text=pod["id"])
        await card.locator(".counts", has_text=f"{cached} cached").wait_for()
        drawn = await card.locator("use").evaluate_all("all => all.map((each) => each.getAttribute('href'))")
        assert len(drawn) == min(total, 256)
        assert drawn.count("#cached") + drawn.count("#free") == len(drawn)
        assert drawn.count("#cached") >= 1
    moved = await said(page, "#links table", r"prefill-0\s+decode-0\s+([\d.]+ \w+)/s\s+([\d.]+) KiB")
    decode = await asyncio.to_thread(cluster.metrics, cluster.said["decode"][0])
    assert float(moved[2]) == pytest.approx(decode["kv_bytes_received_total"] / 1024, rel=0.01)


async def test_what_is_promised_and_what_arrives_is_drawn_while_it_travels(
    cluster: LiveCluster, open_page: OpenPage
) -> None:
    """The prefill pod's engine is held before its first chunk, and held again in the midst of the prompt."""
    page = await open_page(cluster.http)
    card = page.locator(".pod", has_text="decode-0")
    (prefill,), (decode,) = cluster.said["prefill"], cluster.said["decode"]
    engine = cluster.engine_of(prefill)

    async def shown(pattern: str) -> dict[str, int]:
        """Wait until the decode pod's card says so; return what it says, which is what it draws."""
        await card.locator(".counts", has_text=re.compile(pattern)).wait_for(timeout=PATIENT_MS)
        text, drawn = await card.evaluate(
            """(card) => [card.querySelector('.counts').textContent,
                [...card.querySelectorAll('use')].map((each) => each.getAttribute('href').slice(1))]"""
        )
        counts = {state: int(count) for count, state in re.findall(r"(\d+) (\w+)(?: ·| of)", text)}
        assert set(counts) == {"running", "arriving", "reserved", "cached", "free"}
        assert len(drawn) == min(256, sum(counts.values()))
        assert {state for state, count in counts.items() if count} == set(drawn)
        return counts

    def in_the_midst(asked: asyncio.Future[Any]) -> bool:
        """Let the engine compute for a moment at a time until the decode pod holds blocks; False where it is over."""
        give_up_s = time.monotonic() + PATIENT_MS / 1000
        while time.monotonic() < give_up_s and not asked.done():
            engine.resume()
            time.sleep(0.003)
            engine.suspend()
            held = cluster.metrics(decode)
            if held["kv_blocks_held"] and not held["num_requests_running"]:
                return True
        return False

    for attempt in range(20):
        engine.suspend()
        try:
            prompt = [3 + (7 * attempt + place) % 90 for place in range(480)]  # of no cached beginning
            asked = asyncio.ensure_future(asyncio.to_thread(cluster.complete, prompt, 16))
            promised = await shown(r"0 arriving · [1-9]\d* reserved")
            if is_held := await asyncio.to_thread(in_the_midst, asked):
                # Or it had computed all of it when it was stopped, and what it had written came later.
                travels = await shown(r"[1-9]\d* arriving · [1-9]\d* reserved|0 running · 0 arriving · 0 reserved")
                if is_held := travels["arriving"] > 0:
                    assert travels["arriving"] + travels["reserved"] == promised["reserved"]
                    assert travels["running"] == 0
        finally:
            engine.resume()
        assert (await asked).usage["prompt_tokens"] == 480
        await shown("0 running · 0 arriving · 0 reserved")
        if is_held:
            return
    raise AssertionError("no prompt was held in its midst")


async def test_a_large_pool_is_drawn_in_proportion(cluster: LiveCluster, open_page: OpenPage) -> None:
    page = await open_page(cluster.http)
    pools = [
        {"running": 3000, "arriving": 1, "reserved": 1, "cached": 1, "free": 4997, "total": 8000},
        {"running": 1, "arriving": 0, "reserved": 0, "cached": 0, "free": 99_999, "total": 100_000},
        {"running": 1, "arriving": 2, "reserved": 3, "cached": 4, "free": 20, "total": 30},
        {"running": 0, "arriving": 0, "reserved": 0, "cached": 0, "free": 0, "total": 0},
        {"running": 99_997, "arriving": 1, "reserved": 1, "cached": 1, "free": 0, "total": 100_000},
    ]
    for pool in pools:
        script = "async (pool) => (await import('./ui/pods.js')).cells(pool)"
        cells: dict[str, int] = await page.evaluate(script, pool)
        assert sum(cells.values()) == min(pool["total"], 256)
        for state, count in cells.items():
            exact = pool[state] * min(1.0, 256 / max(1, pool["total"]))
            assert (count > 0) == (pool[state] > 0)
            assert abs(count - exact) < 4, (state, count, exact)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 900, 420, 320])
async def test_nothing_overlaps_and_all_can_be_read(
    cluster: LiveCluster, open_page: OpenPage, scheme: str, width: int
) -> None:
    page = await open_page(cluster.http, width=width, scheme=scheme)
    await asyncio.to_thread(cluster.complete, "words " * 20, 8)
    await said(page, "#request-list .request", "finished")
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    await page.fill("#prompt", "words " * 20)
    await page.focus("#prompt")
    await page.keyboard.press("Control+Enter")
    await page.wait_for_selector("#answer-timeline svg text", timeout=PATIENT_MS)
    for probe in (OVERLAPPING, OVERLAPPING_IN_PICTURES, CROSSED_IN_PICTURES, FAINT, FAINT_IN_PICTURES):
        assert await page.evaluate(probe) == []


async def test_a_theme_is_chosen_and_kept(cluster: LiveCluster, open_page: OpenPage) -> None:
    page = await open_page(cluster.http, scheme="light")

    async def ground() -> str:
        found: str = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        return found

    light = await ground()
    await page.focus("#theme")
    await page.keyboard.press("Enter")
    assert (await page.inner_text("#theme"), await ground()) == ("Theme: light", light)
    await page.keyboard.press("Enter")
    assert await page.inner_text("#theme") == "Theme: dark"
    dark = await ground()
    assert dark != light
    await page.reload()
    assert await ground() == dark


async def test_a_browser_that_keeps_nothing_for_sites_shows_the_page_all_the_same(
    cluster: LiveCluster, open_page: OpenPage
) -> None:
    refused = "get() { throw new DOMException('Access is denied', 'SecurityError'); }"
    script = "".join(f"Object.defineProperty(window, '{each}Storage', {{{refused}}});" for each in ("local", "session"))
    page = await open_page(cluster.http, script=script)
    await page.click("#theme")
    await page.click("#theme")
    assert await page.inner_text("#theme") == "Theme: dark"
    await page.fill("#prompt", "words")
    await page.focus("#prompt")
    await page.keyboard.press("Control+Enter")
    await page.wait_for_selector("#answer-timeline svg text", timeout=PATIENT_MS)


async def test_a_paused_page_asks_nothing(cluster: LiveCluster, open_page: OpenPage) -> None:
    page = await open_page(cluster.http)
    await page.focus("#pause")
    await page.keyboard.press("Enter")
    await said(page, "#state", "paused")
    before = await page.inner_text("#request-list")
    await asyncio.to_thread(cluster.complete, "unseen", 4)
    assert await page.inner_text("#request-list") == before
    await page.keyboard.press("Enter")
    await page.wait_for_selector("#state.live")
    await page.wait_for_function("(before) => document.querySelector('#request-list').innerText !== before", arg=before)


async def test_a_router_that_stands_still_is_not_called_live(cluster: LiveCluster, open_page: OpenPage) -> None:
    """It hangs up on nobody: the page would wait for its next word for ever."""
    page = await open_page(cluster.http)
    (router,) = (each for each in psutil.Process(cluster.process.pid).children() if "router" in each.cmdline())
    router.suspend()
    try:
        await said(page, "#state", "^not live: the router fell silent; trying again$")
    finally:
        router.resume()
    await page.wait_for_selector("#state.live", timeout=PATIENT_MS)
