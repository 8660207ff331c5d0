// Requests by id, counts and times, and how the last of them kept what is promised.

import { at, bytes, el, keep, ms, say, some, svg } from "./dom.js";
import { draw, stamps } from "./timeline.js";

const rows = new Map();
const HEIGHT = 58;

function phase(request) {
  const have = request.timelines[0].at_ms;
  if (have.first_token !== undefined) return `streams, ${some(request.output_tokens, "token")}`;
  if (have.submitted !== undefined) return "prompt is computed";
  return have.tokenized === undefined ? "is tokenized" : "waits for a pod";
}

function where(request) {
  const pods = [request.prefill_pod, request.decode_pod].filter(Boolean).join(" → ");
  const tries = request.attempts > 1 ? `, ${request.attempts} attempts` : "";
  return `${pods || (request.outcome === undefined ? "no pod yet" : "no pod")}${tries}`;
}

function counts(request) {
  const cached = request.cached_tokens ? ` (${request.cached_tokens} cached)` : "";
  const shipped = request.bytes_shipped ? `, ${some(request.blocks_shipped, "block")} ${bytes(request.bytes_shipped)} by ${request.transport}` : "";
  return `${request.prompt_tokens}${cached} + ${some(request.output_tokens, "token")}${shipped}`;
}

const line = (kind) => el("div", { class: kind });

function running() {
  return el("article", { class: "request" }, el("div", {}, line("who mono"), line("what")), line("lanes"), el("div", {}, line("what"), line("what")));
}

function refresh(node, request) {
  const [left, figure, right] = node.children;
  say(left.children[0], request.id);
  say(left.children[1], `runs: ${phase(request)}`);
  draw(figure, request.timelines, { now: request.age_ms });
  say(right.children[0], `${ms(request.age_ms)} so far, ${request.prompt_tokens} prompt tokens`);
  say(right.children[1], where(request));
}

function finished(request) {
  const node = running();
  const [left, figure, right] = node.children;
  left.children[1].append(request.failed ? el("span", { class: "bad" }, `failed: ${request.outcome}`) : `finished: ${request.outcome}`, `, ${where(request)}`);
  const end = draw(figure, request.timelines, request);
  say(right.children[0], `${ms(end)}: TTFT ${ms(request.ttft_ms)}, TPOT ${ms(request.tpot_ms)}`);
  say(right.children[1], counts(request));
  const toggle = el("button", { type: "button", class: "who mono", "aria-expanded": "false", title: "its stamps" }, request.id);
  left.children[0].replaceWith(toggle);
  toggle.addEventListener("click", () => {
    const isOpen = node.querySelector(".stamps") !== null;
    if (isOpen) node.querySelector(".stamps").remove();
    else node.append(el("div", { class: "stamps" }, stamps(request.timelines)));
    toggle.setAttribute("aria-expanded", !isOpen);
  });
  return node;
}

function middle(values, share) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

function spark(name, text, values, targetS) {
  const target = targetS * 1000;
  const box = el("div", { class: "spark" });
  if (!values.length) {
    const promise = target ? `; the target is ${ms(target)}` : "";
    box.append(el("p", {}, el("strong", {}, name), ` ${text}: no request has finished yet${promise}`));
    return box;
  }
  const met = values.filter((value) => value <= target).length;
  const promise = target ? `; ${met} of ${values.length} met the target of ${ms(target)}` : "; no target is set";
  box.append(el("p", {}, el("strong", {}, name), ` ${text}: last ${ms(values.at(-1))}, p50 ${ms(middle(values, 0.5))}, p95 ${ms(middle(values, 0.95))}${promise}`));
  const width = Math.max(120, at("sparks").clientWidth);
  const top = Math.max(target, ...values) * 1.1 || 1; // tokens that came together took no time
  const x = (place) => 4 + (place * (width - 8)) / Math.max(1, values.length - 1);
  const y = (value) => HEIGHT - 4 - (value / top) * (HEIGHT - 18);
  const picture = svg("svg", { role: "img", "aria-label": `${name} of the last ${values.length} requests` });
  if (target) picture.append(svg("line", { class: "target", x1: 0, x2: width, y1: y(target), y2: y(target) }));
  picture.append(svg("polyline", { points: values.map((value, place) => `${x(place)},${y(value)}`).join(" ") }));
  values.forEach((value, place) => {
    const isMissed = target && value > target;
    picture.append(svg("circle", { cx: x(place), cy: y(value), r: isMissed ? 3.5 : 1.6, ...(isMissed ? { class: "missed" } : {}) }));
  });
  picture.append(svg("text", { x: 0, y: 9 }, `0 to ${ms(top)}${target ? ", dashed: target, rings: missed" : ""}`));
  box.append(picture);
  return box;
}

export function show(snapshot) {
  const list = at("request-list");
  const now = snapshot.running.map((request) => [`runs ${request.id} ${request.timelines[0].at_ms.tokenized}`, request]);
  const past = snapshot.finished.map((request) => [`past ${request.id} ${JSON.stringify(request.timelines)}`, request]);
  if (!now.length && !past.length) {
    rows.clear();
    list.replaceChildren(el("p", { class: "empty" }, snapshot.sees_all ? "No request yet." : "No request of yours yet."));
  } else {
    list.querySelector(".empty")?.remove();
    keep(list, rows, [...now, ...past], (request) => (request.outcome === undefined ? running() : finished(request)));
    for (const [key, request] of now) refresh(rows.get(key), request);
  }
  const more = snapshot.running_left_out ? `, ${snapshot.running_left_out} more run` : "";
  say(at("requests-title"), `${snapshot.sees_all ? "Requests" : "Your requests"}${more}`);
  const columns = [0, 1].map((place) => snapshot.latencies.map((each) => each[place]).filter((value) => value !== null));
  const { ttft_s: ttft, tpot_s: tpot } = snapshot.slo;
  const shown = JSON.stringify([columns, ttft, tpot, at("sparks").clientWidth]);
  if (at("sparks").dataset.shown === shown) return;
  at("sparks").dataset.shown = shown;
  at("sparks").replaceChildren(spark("TTFT", "time to first token", columns[0], ttft), spark("TPOT", "time per token after it", columns[1], tpot));
}
