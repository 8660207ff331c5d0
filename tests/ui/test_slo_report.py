"""The report in a real browser: wide and narrow, by day and by night, by keyboard; nothing overlaps, all is legible."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_runs import made_up_trial, sweep
from page_probes import FAINT, OVERLAPPING
from playwright.async_api import Browser

from pagewire.slo.experiment import Experiment
from pagewire.slo.report.report import report

# Pairs of texts of one picture that lie over each other.
OVER_EACH_OTHER = """() => {
  const found = [];
  for (const picture of document.querySelectorAll('svg')) {
    const texts = [...picture.querySelectorAll('text')].map((each) => [each.textContent, each.getBoundingClientRect()]);
    texts.forEach(([one, a], place) => texts.slice(place + 1).forEach(([other, b]) => {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 3) found.push([one, other]);
    }));
  }
  return found;
}"""

# Texts of pictures whose contrast to the card is under 4.5 to 1, as WCAG counts it.
FAINT_IN_PICTURES = """() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const linear = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = (color) => {
    const [r, g, b] = parts(color);
    return 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  };
  const ground = light(getComputedStyle(document.querySelector('section')).backgroundColor);
  return [...document.querySelectorAll('svg text')].filter((each) => {
    const ink = light(getComputedStyle(each).fill);
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05) < 4.5;
  }).map((each) => each.textContent);
}"""


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
    assert await page.evaluate(OVER_EACH_OTHER) == []
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
