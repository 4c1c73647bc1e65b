"use strict";

// Everything that the page writes goes through here: into text nodes and named properties, never through a parser of HTML.

const byId = (id) => document.getElementById(id);

// An element with attributes and children, which are elements or text. `on` holds listeners.
function element(tag, { on = {}, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const [name, listener] of Object.entries(on)) made.addEventListener(name, listener);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

// A text that may break after each slash, as paths should.
function breakable(text) {
  return String(text).split(/(?<=\/)/).flatMap((part, i) => (i ? [element("wbr"), part] : [part]));
}

// A definition list's rows: a name, and what it is.
function fillList(list, rows) {
  const shown = (what) => (what instanceof Node ? [what] : breakable(what));
  list.replaceChildren(...rows.map(([name, ...what]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, ...what.flatMap(shown)))));
}

const count = (n) => n.toLocaleString("en");

// "1 step", "2 steps".
const countOf = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

// As gradcore/units.py writes them.
function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    const most = unit === "B" ? 1024 : unit === "TiB" ? Infinity : 1023.95;
    if (Math.abs(n) < most) return `${n.toFixed(unit === "B" ? 0 : Math.abs(n) < 9.995 ? 2 : 1)} ${unit}`;
    n /= 1024;
  }
  return "";
}

const layerName = (layer) => layer || "(root)";

// The page's colors as the style sheet has them, light or dark.
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A canvas made as sharp as the screen is; drawing is in CSS pixels.
function sharpened(canvas, height) {
  if (height !== undefined) canvas.style.height = `${height}px`;
  const { width, height: tall } = canvas.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(tall * ratio));
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "12px system-ui, sans-serif";
  return { context, width, height: tall };
}
