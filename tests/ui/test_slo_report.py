"""The report in a real browser: wide and narrow, by day and by night, by keyboard; nothing overlaps, all is legible."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_runs import made_up_trial, sweep
from page_probes import FAINT, FAINT_IN_PICTURES, OVERLAPPING, OVERLAPPING_IN_PICTURES
from playwright.async_api import Browser

from pagewire.slo.figures.experiment import Experiment
from pagewire.slo.report.report import report

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    two = Experiment(title="Two", trials=tuple(made_up_trial(2, 5.0 * (k + 1), name="ab"[k], seed=k) for k in (0, 1)))
    folder, written = tmp_path_factory.mktemp("pages"), {}
    for name, experiment in (("sweep", sweep()), ("two", two)):
        written[name] = folder / f"{name}.html"
        written[name].write_text(report(experiment).html(), encoding="utf-8")
    return written


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("name", ["sweep", "two"])
async def test_all_is_legible(browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str) -> None:
    asked: list[str] = []
    page = await browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page.on("console", lambda told: asked.append(told.text))
    page.on("request", lambda each: asked.append(each.url))
    await page.goto(pages[name].as_uri())
    await page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert await page.evaluate(OVERLAPPING) == []
    assert await page.evaluate(OVERLAPPING_IN_PICTURES) == []
    assert await page.evaluate(FAINT) == []
    assert await page.evaluate(FAINT_IN_PICTURES) == []
    assert await page.evaluate("document.documentElement.scrollWidth") == width  # what is wider scrolls in its box
    assert asked == [pages[name].as_uri()]


async def test_it_is_read_by_keyboard_alone(browser: Browser, pages: dict[str, Path]) -> None:
    page = await browser.new_page(viewport={"width": 390, "height": 900})
    await page.goto(pages["two"].as_uri())
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.className") == "skip"
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "verdict"
    for _ in range(40):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    label = await page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label.startswith("Table: ")
    await page.keyboard.press("ArrowRight")
    await page.wait_for_function("document.activeElement.scrollLeft > 0")
