"use strict";

// The timeline: live bytes over the records of a step as stacked bands, other steps as lines, one instant under a cursor.
// The bands are drawn once on a canvas of their own, so that moving the cursor costs the same for any number of records.

const LEFT = 66;
const TOP = 20;
const BOTTOM = 20;
const DASHES = [[6, 3], [2, 3], [9, 3, 2, 3], [1, 2]];

class Timeline {
  // picked(position) and hovered(position or null) are called as the reader chooses and points.
  constructor(picked, hovered) {
    this.picked = picked;
    this.hovered = hovered;
    this.log = null;
    this.beside = [];
    this.canvas = byId("bands");
    this.cursor = byId("cursor");
    this.cursor.addEventListener("click", (event) => { if (this.log) this.picked(this.positionAt(event)); });
    this.cursor.addEventListener("pointermove", (event) => this.point(this.positionAt(event)));
    this.cursor.addEventListener("pointerleave", () => this.point(null));
    this.cursor.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.draw()).observe(byId("plot"));
  }

  show(log, bands, at) {
    if (log !== this.log) {
      this.from = log.start;
      this.to = log.length;
    }
    Object.assign(this, { log, bands, at, pointed: null });
    this.draw();
  }

  // Lines of other steps: [{name, log}].
  compare(beside) {
    this.beside = beside;
    this.draw();
  }

  point(position) {
    if (!this.log || position === this.pointed) return;
    this.pointed = position;
    this.drawCursor();
    this.hovered(position);
  }

  pick(position) {
    this.at = position;
    if (position < this.from || position >= this.to) this.center(this.to - this.from);
    else this.drawCursor();
  }

  zoom(factor) {
    this.center((this.to - this.from) * factor);
  }

  // Show so many records around the chosen instant.
  center(span) {
    const whole = this.log.length - this.log.start;
    const size = Math.round(Math.min(Math.max(span, Math.min(20, whole)), whole));
    this.from = Math.round(Math.min(Math.max(this.at - size / 2, this.log.start), this.log.length - size));
    this.to = this.from + size;
    this.draw();
  }

  press(event) {
    if (!this.log || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.round((this.to - this.from) / 10));
    const moves = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, PageUp: this.at - page, PageDown: this.at + page,
      Home: this.log.start, End: this.log.length - 1, p: this.log.peak, P: this.log.peak };
    const zooms = { "+": 0.5, "=": 0.5, "-": 2, 0: Infinity };
    if (event.key in moves) this.picked(Math.min(Math.max(moves[event.key], this.log.start), this.log.length - 1));
    else if (event.key in zooms) this.zoom(zooms[event.key]);
    else return;
    event.preventDefault();
  }

  // The record under the pointer: the peak when it is near, or else the highest of those that share the pixel.
  positionAt(event) {
    if (!this.log) return null;
    const x = event.clientX - this.cursor.getBoundingClientRect().left;
    const peak = this.log.peak;
    if (peak >= this.from && peak < this.to && Math.abs(x - this.x(peak + 0.5)) < 5) return peak;
    const first = this.from + ((x - LEFT) / (this.width - LEFT)) * (this.to - this.from);
    const clamp = (p) => Math.min(Math.max(Math.floor(p), this.from), this.to - 1);
    return highest(this.log.total, clamp(first), clamp(first + this.perPixel() - 1));
  }

  perPixel() {
    return Math.max(1, (this.to - this.from) / (this.width - LEFT));
  }

  x(position) {
    return LEFT + ((position - this.from) / (this.to - this.from)) * (this.width - LEFT);
  }

  y(nbytes) {
    return this.height - BOTTOM - (nbytes / this.top) * (this.height - TOP - BOTTOM);
  }

  draw() {
    if (!this.log) return;
    const { context, width, height } = sharpened(this.canvas);
    Object.assign(this, { context, width, height });
    const beside = this.beside.filter(({ log }) => log !== this.log);
    const others = beside.map(({ log }) => log.total[log.peak]);
    this.top = Math.max(this.log.total[this.log.peak], ...others, 1) * 1.02;
    this.drawAxis();
    this.drawBands();
    beside.forEach(({ name, log }, i) => this.drawLine(log, name, DASHES[i % DASHES.length]));
    this.drawPeak();
    this.drawCursor();
  }

  drawAxis() {
    const c = this.context;
    c.fillStyle = ink("quiet");
    c.strokeStyle = ink("line");
    c.lineWidth = 1;
    c.textAlign = "right";
    // Round sizes are powers of two.
    const step = 2 ** Math.floor(Math.log2(this.top / 3));
    for (let size = 0; size <= this.top; size += step) {
      const y = Math.round(this.y(size)) + 0.5;
      c.fillText(bytes(size), LEFT - 6, y + 4);
      c.beginPath();
      c.moveTo(LEFT, y);
      c.lineTo(this.width, y);
      c.stroke();
    }
    c.textAlign = "left";
    let free = LEFT;
    for (const { what, label, at } of this.log.marks) {
      const x = this.x(at);
      const name = label === "step" ? "forward" : label;
      if (what !== "begin" || x < LEFT || x > this.width || !["step", "backward", "optimizer"].includes(label)) continue;
      c.fillRect(x, this.height - BOTTOM, 1, 6);
      const room = c.measureText(name).width;
      const left = Math.min(x + 3, this.width - room);
      if (left < free) continue;
      c.fillText(name, left, this.height - 5);
      free = left + room + 8;
    }
  }

  // The records to draw: for each pixel the highest of those that it stands for, with the pixels where it begins and ends.
  stretches(total, from, to) {
    const number = Math.min(Math.max(1, Math.floor(this.width - LEFT)), to - from);
    const found = [];
    for (let i = 0; i < number; i++) {
      const first = from + Math.floor(((to - from) * i) / number);
      const last = from + Math.floor(((to - from) * (i + 1)) / number) - 1;
      found.push({ position: highest(total, first, last), left: first, right: last + 1 });
    }
    return found;
  }

  drawBands() {
    const c = this.context;
    const shown = this.stretches(this.log.total, this.from, this.to)
      .map((s) => ({ ...s, x0: this.x(s.left), x1: this.x(s.right) }));
    const below = new Float64Array(shown.length);
    const edge = ink("panel");
    this.bands.values.forEach((band, k) => {
      const lower = shown.map((s, i) => this.y(below[i]));
      shown.forEach((s, i) => { below[i] += band[s.position]; });
      c.beginPath();
      shown.forEach((s, i) => { const y = this.y(below[i]); c.lineTo(s.x0, y); c.lineTo(s.x1, y); });
      for (let i = shown.length - 1; i >= 0; i--) { c.lineTo(shown[i].x1, lower[i]); c.lineTo(shown[i].x0, lower[i]); }
      c.closePath();
      c.fillStyle = this.bands.colors[k];
      c.fill();
      // A seam between bands, for eyes and screens that do not tell two colors apart.
      c.strokeStyle = edge;
      c.lineWidth = 0.6;
      c.stroke();
    });
  }

  // Another step, counted from its own beginning, with its name at its peak.
  drawLine(log, name, dash) {
    const c = this.context;
    const shift = log.start - this.log.start;
    const from = Math.max(log.start, this.from + shift);
    const to = Math.min(log.length, this.to + shift);
    if (from >= to) return;
    c.beginPath();
    for (const { position, left, right } of this.stretches(log.total, from, to)) {
      const y = this.y(log.total[position]);
      c.lineTo(this.x(left - shift), y);
      c.lineTo(this.x(right - shift), y);
    }
    // A rim of the ground's color: the line crosses bands of every color.
    c.strokeStyle = ink("ground");
    c.lineWidth = 4;
    c.stroke();
    c.strokeStyle = ink("ink");
    c.lineWidth = 1.75;
    c.setLineDash(dash);
    c.stroke();
    c.setLineDash([]);
    const x = this.x(log.peak - shift);
    if (x >= LEFT) this.label(name, x, this.y(log.total[log.peak]) - 6);
  }

  drawPeak() {
    const { peak, total } = this.log;
    if (peak < this.from || peak >= this.to) return;
    const c = this.context;
    const x = this.x(peak + 0.5);
    const y = this.y(total[peak]);
    c.fillStyle = ink("ink");
    c.beginPath();
    c.moveTo(x - 5, y - 9);
    c.lineTo(x + 5, y - 9);
    c.lineTo(x, y - 1);
    c.fill();
    this.label(`peak ${bytes(total[peak])}`, x, y - 4);
  }

  // Text beside a place, on whichever side there is room, with a rim that parts it from what lies below.
  label(text, x, y) {
    const c = this.context;
    const fits = x + 9 + c.measureText(text).width < this.width;
    c.textAlign = fits ? "left" : "right";
    c.lineWidth = 3;
    c.lineJoin = "round";
    c.strokeStyle = ink("ground");
    c.strokeText(text, x + (fits ? 9 : -9), y);
    c.fillStyle = ink("ink");
    c.fillText(text, x + (fits ? 9 : -9), y);
  }

  drawCursor() {
    const { context, height } = sharpened(this.cursor);
    const line = (position, dash) => {
      if (position === null || position < this.from || position >= this.to) return;
      const x = this.x(position + 0.5);
      context.strokeStyle = ink("ink");
      context.lineWidth = dash.length ? 1 : 2;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(x, TOP - 4);
      context.lineTo(x, height - BOTTOM + 4);
      context.stroke();
    };
    line(this.at, []);
    line(this.pointed, [3, 3]);
    const { log, at, cursor } = this;
    cursor.setAttribute("aria-valuemin", log.start);
    cursor.setAttribute("aria-valuemax", log.length - 1);
    cursor.setAttribute("aria-valuenow", at);
    cursor.setAttribute("aria-valuetext", `record ${at}, ${bytes(log.total[at])} live, ${log.describe(at)}`);
  }
}

// The first of the largest values between two positions, both included.
function highest(values, first, last) {
  let best = first;
  for (let p = first + 1; p <= last; p++) if (values[p] > values[best]) best = p;
  return best;
}
