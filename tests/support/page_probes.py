"""What tests ask of a page in a browser: whether texts lie over each other, and whether they stand out enough.

Of texts that are the page's own, and of those in pictures (svg), which stand on what is drawn there before them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from playwright.async_api import Page

OpenPage = Callable[..., Awaitable[Page]]

# Every element that is seen and has text of its own.
_TEXTS = """
  const texts = [...document.querySelectorAll('body *')].filter((each) =>
    !each.closest('svg, dialog, select, .skip') && each.getClientRects().length
    && each.checkVisibility() && [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
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

# A color's parts, what is behind an element, and the contrast of two colors.
_CONTRAST = """
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const linear = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (each) => {
    for (; each; each = each.parentElement) {
      const color = parts(getComputedStyle(each).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const contrast = (one, other) => {
    const [a, b] = [light(one), light(other)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
"""

# Those whose contrast to what is behind them is under 4.5 to 1, as WCAG counts it.
FAINT = f"""() => {{
  {_TEXTS}
  {_CONTRAST}
  return texts.filter((each) => !each.disabled).map((each) => [
    each.innerText, contrast(parts(getComputedStyle(each).color), behind(each)),
  ]).filter(([, found]) => found < 4.5);
}}"""

# Texts of pictures that are seen, with their boxes; and what else is painted near one, in the order of painting.
_PICTURES = """
  const letters = [...document.querySelectorAll('svg text')].filter((each) =>
    each.getClientRects().length && each.checkVisibility() && each.textContent.trim());
  const drawn = 'line, polyline, polygon, path, rect, circle, ellipse, text';
  const shapes = (picture) => [...picture.querySelectorAll(drawn)].filter((each) =>
    !each.closest('defs, symbol, clipPath, mask, marker'));
  const isOn = (each, kind, x, y) => {
    const at = new DOMPoint(x, y).matrixTransform(each.getScreenCTM().inverse());
    return kind === 'fill' ? each.isPointInFill(at) : each.isPointInStroke(at);
  };
  const opacity = (each, picture) => each === picture.parentElement ? 1 :
    getComputedStyle(each).opacity * opacity(each.parentElement, picture);
  // Fills and strokes that are seen, from the lowest on, of what is painted near a text: before it, or after it too.
  const near = (letter, isBeforeAlone) => {
    const [picture, box, found] = [letter.closest('svg'), letter.getBoundingClientRect(), []];
    for (const each of shapes(picture)) {
      if (each === letter && isBeforeAlone) break;
      const { left, right, top, bottom } = each.getBoundingClientRect();
      const isNear = left < box.right + 9 && right > box.left - 9 && top < box.bottom + 9 && bottom > box.top - 9;
      const style = getComputedStyle(each);
      if (!isNear || each.tagName === 'text' || style.visibility !== 'visible') continue;
      for (const kind of ['fill', 'stroke']) {
        const alpha = style[`${kind}Opacity`] * opacity(each, picture);
        if (style[kind] !== 'none' && alpha > 0) found.push({ each, kind, color: style[kind], alpha });
      }
    }
    return found;
  };
  const points = (each, inset) => {
    const { left, right, top, bottom } = each.getBoundingClientRect();
    const found = [];
    for (let x = left + 0.5; x < right; x += 1)
      for (let y = top + inset; y <= bottom - inset; y += 1) found.push([x, y]);
    return found;
  };
"""

# Pairs of texts that lie over each other, of which at least one is in a picture.
OVERLAPPING_IN_PICTURES = f"""() => {{
  {_TEXTS}
  {_PICTURES}
  const boxes = [...letters, ...texts].map((each) => [each, each.getBoundingClientRect()]);
  const found = [];
  boxes.slice(0, letters.length).forEach(([one, a], place) => boxes.slice(place + 1).forEach(([other, b]) => {{
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 3 && !other.contains(one)) found.push([one.textContent, other.textContent]);
  }}));
  return found;
}}"""

# Texts of pictures that a line is seen to go through.
CROSSED_IN_PICTURES = f"""() => {{
  {_PICTURES}
  const isCrossed = (letter) => {{
    const painted = near(letter, false).reverse();
    return points(letter, 3).some(([x, y]) =>
      painted.find(({{ each, kind }}) => isOn(each, kind, x, y))?.kind === 'stroke');
  }};
  return letters.filter(isCrossed).map((each) => each.textContent);
}}"""

# Texts of pictures whose contrast to what is filled behind any point of them is under 4.5 to 1, as WCAG counts it.
FAINT_IN_PICTURES = f"""() => {{
  {_PICTURES}
  {_CONTRAST}
  return letters.map((letter) => {{
    const fills = near(letter, true).filter(({{ kind }}) => kind === 'fill');
    const paper = behind(letter.closest('svg').parentElement);
    const mixed = (under, {{ color, alpha }}) => {{
      const [over, own] = [parts(color), parts(color)[3] ?? 1];
      return under.slice(0, 3).map((part, place) => part + (over[place] - part) * own * alpha);
    }};
    const ground = ([x, y]) => fills.filter(({{ each }}) => isOn(each, 'fill', x, y)).reduce(mixed, paper);
    const ink = parts(getComputedStyle(letter).fill);
    return [letter.textContent, Math.min(...points(letter, 3).map((at) => contrast(ink, ground(at))))];
  }}).filter(([, least]) => least < 4.5);
}}"""
