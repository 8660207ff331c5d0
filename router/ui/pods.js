// Pods, their pools drawn as blocks, and the links that KV comes over.

import { at, bytes, el, keep, ms, say, set, some, svg } from "./dom.js";

const STATES = ["running", "arriving", "reserved", "cached", "free"];
const MEANING = {
  running: "running: held by requests here",
  arriving: "arriving: KV is on its way",
  reserved: "reserved: promised",
  cached: "cached: a prefix to reuse",
  free: "free",
};
const COLUMNS = 32;
const MOST_CELLS = 256;
const known = new Map();
const links = new Map();
let wires = null;

// How many cells each state gets: in proportion, none of those that there are left out.
export function cells(blocks) {
  if (blocks.total <= MOST_CELLS) return Object.fromEntries(STATES.map((state) => [state, blocks[state]]));
  const exact = STATES.map((state) => (blocks[state] * MOST_CELLS) / blocks.total);
  const given = exact.map((share) => (share > 0 ? Math.max(1, Math.floor(share)) : 0));
  for (let left = MOST_CELLS - given.reduce((sum, each) => sum + each, 0); left !== 0; left -= Math.sign(left)) {
    const short = exact.map((share, place) => (left < 0 && given[place] <= 1 ? -Infinity : Math.sign(left) * (share - given[place])));
    given[short.indexOf(Math.max(...short))] += Math.sign(left);
  }
  return Object.fromEntries(STATES.map((state, place) => [state, given[place]]));
}

export function legend(list) {
  for (const state of STATES) {
    list.append(el("li", {}, svg("svg", { "aria-hidden": "true", viewBox: "0 0 10 10" }, svg("use", { href: `#${state}` })), MEANING[state]));
  }
}

function fill(picture, blocks) {
  const counts = cells(blocks);
  const states = STATES.flatMap((state) => Array(counts[state]).fill(state));
  const rows = Math.ceil(states.length / COLUMNS);
  set(picture, "viewBox", `0 0 ${COLUMNS * 12 - 2} ${Math.max(1, rows * 12 - 2)}`);
  while (picture.childElementCount > states.length) picture.lastChild.remove();
  for (let place = picture.childElementCount; place < states.length; place += 1) {
    const [x, y] = [(place % COLUMNS) * 12, Math.floor(place / COLUMNS) * 12];
    picture.append(svg("use", { x, y, width: 10, height: 10 }));
  }
  states.forEach((state, place) => set(picture.children[place], "href", `#${state}`));
  set(picture, "aria-label", STATES.map((state) => `${blocks[state]} ${state}`).join(", "));
}

function card() {
  const title = el("h3", {}, el("span"), el("span", { class: "role" }));
  return el("article", { class: "pod" }, title, svg("svg", { class: "blocks", role: "img" }), el("p", { class: "counts" }), el("p", { class: "hint" }), el("p", { class: "bad" }));
}

function update(node, pod) {
  const [name, role] = node.querySelector("h3").children;
  const { blocks } = pod;
  say(name, pod.id);
  say(role, ` ${pod.role}`);
  fill(node.querySelector(".blocks"), blocks);
  const scale = blocks.total > MOST_CELLS ? `, a square is about ${Number((blocks.total / MOST_CELLS).toPrecision(2))} blocks` : "";
  const counts = STATES.map((state) => `${blocks[state]} ${state}`).join(" · ");
  say(node.querySelector(".counts"), blocks.total ? `${counts} of ${blocks.total} blocks${scale}` : "no load was reported yet");
  const work = [`${pod.running} in the batch, ${pod.waiting} wait`];
  if (pod.waiting_tokens) work.push(`${pod.waiting_tokens} prompt tokens to do`);
  if (pod.step_ms) work.push(`step ${ms(pod.step_ms)}`);
  if (pod.host_blocks) work.push(`${some(pod.host_blocks, "block")} in host memory`);
  if (pod.brownout !== "normal") work.push(`brownout: ${pod.brownout}`);
  say(node.querySelector(".hint"), work.join(", "));
  say(node.querySelector(".bad"), pod.unusable ? `Not used: ${pod.unusable}` : "");
  node.classList.toggle("off", Boolean(pod.unusable));
}

function place(map, pods) {
  const isPair = pods.some((pod) => pod.role === "prefill") && pods.some((pod) => pod.role !== "prefill");
  map.classList.toggle("one", !isPair);
  if (map.childElementCount !== (isPair ? 3 : 1)) {
    known.clear();
    wires = isPair ? svg("svg", { id: "wires", "aria-hidden": "true" }) : null;
    const columns = [el("div", { class: "column" }), el("div", { class: "column" })];
    map.replaceChildren(...(isPair ? [columns[0], wires, columns[1]] : [columns[0]]));
    for (const column of columns) column.known = new Map();
  }
  const sides = isPair ? [pods.filter((pod) => pod.role === "prefill"), pods.filter((pod) => pod.role !== "prefill")] : [pods];
  sides.forEach((side, number) => {
    const column = map.children[number * 2];
    const keyed = side.map((pod) => [`${pod.id}@${pod.incarnation}`, pod]);
    keep(column, column.known, keyed, card);
    for (const [key, pod] of keyed) {
      update(column.known.get(key), pod);
      known.set(pod.id, column.known.get(key));
    }
  });
}

function wire(all) {
  if (!wires || !wires.clientWidth) return;
  const box = wires.getBoundingClientRect();
  const busiestLast = [...all].sort((one, other) => (one.bytes_per_s ?? 0) - (other.bytes_per_s ?? 0));
  const paths = busiestLast.flatMap((link) => {
    const [from, to] = [known.get(link.from), known.get(link.to)];
    if (!from?.isConnected || !to?.isConnected || from.parentNode === to.parentNode) return [];
    const isRight = from.getBoundingClientRect().left < box.left;
    const middle = (node) => node.getBoundingClientRect().top + node.offsetHeight / 2 - box.top;
    const [x, w] = isRight ? [0, box.width] : [box.width, -box.width];
    const [y, z] = [middle(from), middle(to)];
    const path = svg("path", { d: `M${x} ${y}C${x + w / 2} ${y} ${x + w / 2} ${z} ${x + w} ${z}` });
    if (link.bytes_per_s) path.setAttribute("stroke-width", Math.min(9, 1.5 + Math.log2(1 + link.bytes_per_s / 65536)));
    else path.setAttribute("class", "idle");
    return [path];
  });
  wires.replaceChildren(...paths);
}

function listed(all, leftOut) {
  const box = at("links");
  if (!all.length) {
    links.clear();
    box.replaceChildren(el("p", { class: "empty" }, "No pod has taken blocks from another one yet."));
    return;
  }
  if (!box.querySelector("table")) {
    const heads = ["from", "to", "bytes per second", "", "in all"];
    const row = el("tr", {}, ...heads.map((text, place) => el("th", place === 2 || place === 4 ? { class: "number", scope: "col" } : { scope: "col" }, text)));
    box.replaceChildren(el("table", {}, el("thead", {}, row), el("tbody")), el("p", { class: "hint" }));
  }
  const cell = (number) => el("td", number ? { class: "number" } : {});
  const bar = () => el("meter", { min: 0, max: 1, "aria-label": "share of the busiest link" });
  const make = () => el("tr", {}, cell(), cell(), cell(true), el("td", {}, bar()), cell(true));
  const most = Math.max(1, ...all.map((link) => link.bytes_per_s ?? 0));
  const keyed = all.map((link) => [`${link.from} ${link.to}`, link]).sort((one, other) => (one[0] < other[0] ? -1 : 1));
  keep(box.querySelector("tbody"), links, keyed, make);
  for (const [key, link] of keyed) {
    const { children } = links.get(key);
    [link.from, link.to, link.bytes_per_s === null ? "–" : `${bytes(link.bytes_per_s)}/s`].forEach((text, place) => say(children[place], text));
    children[3].firstChild.value = (link.bytes_per_s ?? 0) / most;
    say(children[4], bytes(link.bytes));
  }
  say(box.querySelector(".hint"), leftOut ? `${leftOut} more links are not shown` : "");
}

export function show(snapshot) {
  const note = at("pods-note");
  if (!snapshot.pods) {
    say(note, "Pods and links are shown to operators alone.");
    for (const id of ["pod-map", "links", "links-title", "block-legend"]) at(id).hidden = true;
    return;
  }
  for (const id of ["pod-map", "links", "links-title", "block-legend"]) at(id).hidden = false;
  const more = snapshot.pods_left_out ? ` ${snapshot.pods_left_out} more pods are not shown.` : "";
  say(note, snapshot.pods.length ? `As of each pod's last heartbeat, about once a second.${more}` : "No pod has registered yet.");
  place(at("pod-map"), snapshot.pods);
  listed(snapshot.links, snapshot.links_left_out);
  wire(snapshot.links);
}
