// Elements, and changes to them that leave alone what is as it should be.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export const el = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);
export const at = (id) => document.getElementById(id);

export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function set(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// Children by key, in this order: those that stay are the same elements, with their focus and what is open in them.
export function keep(parent, known, wanted, make) {
  const keys = new Set(wanted.map(([key]) => key));
  for (const [key, node] of known) {
    if (!keys.has(key)) {
      node.remove();
      known.delete(key);
    }
  }
  let next = parent.firstChild;
  for (const [key, value] of wanted) {
    let node = known.get(key);
    if (!node) known.set(key, (node = make(value)));
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
}

export function ms(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  const told = Math.round(value * 100) / 100; // as the feed does: one time is the same wherever it is read
  return told >= 100 ? `${Math.round(told)} ms` : `${told.toFixed(1)} ms`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function some(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
