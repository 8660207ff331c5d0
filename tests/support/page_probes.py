"""What tests ask of a page in a browser: whether texts lie over each other, and whether they stand out enough."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from playwright.async_api import Page

OpenPage = Callable[..., Awaitable[Page]]

# Every element that is seen and has text of its own.
_TEXTS = """
  const texts = [...document.querySelectorAll('body *')].filter((each) =>
    !each.closest('svg, dialog, select, .skip') && each.getClientRects().length
    && [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
"""

# Pairs of those whose boxes meet, though neither is in the other.
OVERLAPPING = f"""() => {{
  {_TEXTS}
  const boxes = texts.map((each) => [each, each.getBoundingClientRect()]);
  const found = [];
  boxes.forEach(([one, a], place) => boxes.slice(place + 1).forEach(([other, b]) => {{
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    const isWithin = one.contains(other) || other.contains(one);
    if (wide > 2 && high > 2 && !isWithin) found.push([one.innerText, other.innerText]);
  }}));
  return found;
}}"""

# Those whose contrast to what is behind them is under 4.5 to 1, as WCAG counts it.
FAINT = f"""() => {{
  {_TEXTS}
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const linear = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (each) => {{
    for (; each; each = each.parentElement) {{
      const color = parts(getComputedStyle(each).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }}
  }};
  return texts.filter((each) => !each.disabled).map((each) => {{
    const [a, b] = [light(parts(getComputedStyle(each).color)), light(behind(each))];
    return [each.innerText, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
  }}).filter(([, contrast]) => contrast < 4.5);
}}"""
