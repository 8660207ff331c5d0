// One request's life as lanes, one for each process, each by its own clock. A lane begins where the one above it says
// that it handed over, so the time that a message takes is not shown: no two clocks are compared.

import { el, ms, set, svg } from "./dom.js";

export const PHASES = { queue: "queue", chunks: "chunks of the prompt", transfer: "transfer, from the first blocks announced to the last arrived", decode: "tokens" };
const LETTERS = { queue: "Q", chunks: "C", transfer: "T", decode: "D" };
const SHAPES = { queue: [4, 3], chunks: [0, 10], transfer: [2, 7], decode: [0, 10] }; // y and height
const LANE = 12;
const LEAST_SHARE = 0.05; // of the width, for a letter to fit

// Stamps as an answer has them, as the feed has them.
export const ofAnswer = (timelines) =>
  timelines.map(({ process, stamps }) => {
    const first = Math.min(...stamps.map((stamp) => stamp.at_s));
    return { process, at_ms: Object.fromEntries(stamps.map((stamp) => [stamp.phase, (stamp.at_s - first) * 1000])) };
  });

function span(phase, at, from, to) {
  return at[from] !== undefined && at[to] !== undefined && at[to] > at[from] ? [{ phase, from: at[from], to: at[to] }] : [];
}

function routerLane(at, now) {
  const handed = at.submitted ?? now;
  const last = at.last_token ?? (at.first_token === undefined ? undefined : now);
  const all = { ...at, handed, last };
  const spans = [...span("queue", all, "received", "handed"), ...span("decode", all, "first_token", "last")];
  return { name: "R", spans, first: at.first_token, end: Math.max(now ?? 0, ...Object.values(at)) };
}

function decodeLane(at, offset) {
  const isShipped = at.last_block_verified !== undefined;
  const spans = [
    ...span("queue", at, "accepted", "reserved"),
    ...span("transfer", at, "reserved", "prefix_fetched"),
    ...span("transfer", at, "first_chunk_ready", "last_block_verified"),
    ...(isShipped ? [] : span("chunks", at, "joined", "first_step")),
    ...span("decode", at, isShipped ? "joined" : "first_step", "finished"),
  ];
  return { name: "D", spans, offset, end: Math.max(...Object.values(at)) };
}

function prefillLane(at, offset) {
  const spans = [
    ...span("queue", at, "run_received", "prefill_begun"),
    ...span("chunks", at, "prefill_begun", "last_chunk_computed"),
  ];
  const first = at.first_chunk_computed;
  return { name: "P", spans, offset, tick: first < at.last_chunk_computed ? first : undefined, end: at.last_chunk_computed ?? 0 };
}

// `now` is the age of a request that runs. Of several attempts pods stamped the last one: it is put where it ended.
export function lanes(timelines, { now, attempts = 1 } = {}) {
  const of = (phase) => timelines.find((each) => each.at_ms[phase] !== undefined)?.at_ms;
  const [ours, decode, prefill] = [of("received") ?? {}, of("accepted"), of("run_received")];
  const found = [routerLane(ours, now)];
  if (!decode) return found;
  const ended = ours.last_token ?? 0;
  const offset = attempts > 1 ? ended - (decode.finished ?? 0) : (ours.submitted ?? 0) - decode.accepted;
  if (prefill) {
    const handed = decode.first_tokens_received;
    const at = handed === undefined ? decode.run_sent ?? 0 : handed - (prefill.last_chunk_computed ?? 0);
    found.push(prefillLane(prefill, offset + at));
  }
  return [...found, decodeLane(decode, offset)];
}

const SHORT = { ...PHASES, transfer: "transfer" };

function told(found, chunks) {
  const total = {};
  for (const lane of found) for (const { phase, from, to } of lane.spans) total[phase] = Math.max(total[phase] ?? 0, to - from);
  const parts = Object.entries(SHORT).filter(([phase]) => total[phase]);
  return parts.map(([phase, name]) => `${phase === "chunks" && chunks ? `${chunks} ` : ""}${name} ${ms(total[phase])}`).join(", ");
}

// Where the letter of a span stands, for which it takes `least`: at its beginning, behind a tick that would go through
// it, or nowhere.
function letterAt({ from, to }, tick, least) {
  const isCrossed = tick > from && tick - from <= least;
  const place = isCrossed ? tick : from;
  return to - place > least ? place : undefined;
}

export function draw(figure, timelines, options = {}) {
  const found = lanes(timelines, options);
  const end = Math.max(1e-6, ...found.map((lane) => lane.end + (lane.offset ?? 0)));
  const start = Math.min(0, ...found.flatMap((lane) => lane.spans.map((each) => each.from + (lane.offset ?? 0))));
  const share = (value) => (value - start) / (end - start);
  const percent = (value) => `${(100 * value).toFixed(3)}%`;
  const picture = svg("svg", { height: found.length * LANE, role: "img" });
  set(picture, "aria-label", told(found, options.chunks) || "no phase is over");
  found.forEach((lane, row) => {
    const top = row * LANE + 1;
    picture.append(svg("line", { class: "axis", x1: "0%", x2: "100%", y1: top + 5, y2: top + 5 }));
    for (const { phase, from, to } of lane.spans) {
      const [x, width] = [share(from + (lane.offset ?? 0)), (to - from) / (end - start)];
      const [y, height] = SHAPES[phase];
      const box = svg("rect", { class: phase, x: percent(x), y: top + y, height });
      box.style.width = `max(${percent(width)}, 1.5px)`;
      if (phase === "transfer") box.setAttribute("fill", "url(#hatch)"), box.classList.remove("transfer");
      picture.append(box);
      const place = height === 10 ? letterAt({ from, to }, lane.tick, LEAST_SHARE * (end - start)) : undefined;
      if (place !== undefined) picture.append(svg("text", { x: percent(share(place + (lane.offset ?? 0))), dx: 3, y: top + 8 }, LETTERS[phase]));
    }
    for (const moment of [lane.first, lane.tick]) {
      if (moment === undefined) continue;
      const x = percent(share(moment + (lane.offset ?? 0)));
      picture.append(svg("line", { class: "first", x1: x, x2: x, y1: top - 1, y2: top + 11 }));
    }
  });
  const names = el("span", { class: "names", "aria-hidden": "true" });
  names.append(...found.flatMap((lane) => [lane.name, el("br")]));
  figure.replaceChildren(names, picture);
  return end;
}

export function stamps(timelines) {
  const table = el("table");
  const row = (kind, ...cells) => el("tr", {}, ...cells.map((text, place) => el(kind, place === 2 ? { class: "number" } : {}, text)));
  table.append(row("th", "process", "phase", "after its first stamp"));
  for (const { process, at_ms } of timelines) {
    const sorted = Object.entries(at_ms).sort((one, other) => one[1] - other[1]);
    sorted.forEach(([phase, at], place) => table.append(row("td", place ? "" : process, phase.replaceAll("_", " "), ms(at))));
  }
  return table;
}

export function legend(list) {
  for (const [phase, name] of Object.entries(PHASES)) {
    const [y, height] = SHAPES[phase];
    const box = svg("rect", { x: 0, y: y + 1, width: 24, height });
    if (phase === "transfer") box.setAttribute("fill", "url(#hatch)");
    else box.setAttribute("class", phase);
    const picture = svg("svg", { class: "wide lanes-key", "aria-hidden": "true", viewBox: "0 0 24 12" }, box);
    list.append(el("li", {}, picture, name));
  }
  const line = svg("line", { class: "first", x1: 6, x2: 6, y1: 0, y2: 12 });
  list.append(el("li", {}, svg("svg", { "aria-hidden": "true", viewBox: "0 0 12 12" }, line), "first token, or first chunk"));
}
