"use strict";

// The steps of a run as a strip: the peak of each, where live bytes grew, and the steps whose events are in the file.

const GROWING = 3;
const TURNS = 4;
const STRIP = 70;

class Strip {
  // choose(step) is called with the nearest step that has events.
  constructor(choose) {
    this.canvas = byId("strip");
    this.canvas.addEventListener("click", (event) => {
      const { left, width } = this.canvas.getBoundingClientRect();
      const { step } = this.run.steps;
      const at = Math.floor(((event.clientX - left - LEFT) / (width - LEFT)) * step.length);
      const i = Math.min(Math.max(at, 0), step.length - 1);
      const there = this.run.recordings.map((r) => r.step);
      choose(there.reduce((best, s) => (Math.abs(s - step[i]) < Math.abs(best - step[i]) ? s : best)));
    });
    new ResizeObserver(() => this.draw()).observe(byId("run"));
  }

  show(run, step) {
    Object.assign(this, { run, step });
    this.growing = growth(run.steps.live);
    const grown = this.growing.reduce((sum, g) => sum + g, 0);
    const first = this.growing.indexOf(1);
    byId("strip-line").textContent = run.steps.step.length < 2 ? "" :
      `Peak bytes of ${count(run.steps.step.length)} steps, ${bytes(Math.min(...range(run.steps.allocated)))} to ` +
      `${bytes(Math.max(...range(run.steps.allocated)))}. Triangles: steps whose events are in the file. ` +
      (grown ? `Marked below: live bytes grew for ${GROWING} steps or more, in ${count(grown)} steps, first at step ` +
        `${count(run.steps.step[first])}.` : "Live bytes never grew for three steps in a row.");
    this.canvas.hidden = run.steps.step.length < 2;
    this.canvas.setAttribute("aria-label", byId("strip-line").textContent);
    this.draw();
  }

  draw() {
    if (!this.run || this.canvas.hidden) return;
    const { context: c, width } = sharpened(this.canvas, STRIP);
    const { step, allocated } = this.run.steps;
    const [, top] = range(allocated);
    const x = (i) => LEFT + (i / step.length) * (width - LEFT);
    const base = STRIP - 18;
    c.fillStyle = ink("quiet");
    c.textAlign = "right";
    c.fillText(bytes(top), LEFT - 6, 14);
    c.fillText("0 B", LEFT - 6, base);
    const number = Math.min(step.length, Math.max(1, Math.floor(width - LEFT)));
    for (let i = 0; i < number; i++) {
      const first = Math.floor((step.length * i) / number);
      const last = Math.floor((step.length * (i + 1)) / number) - 1;
      const height = (allocated[highest(allocated, first, last)] / top) * (base - 6);
      const gap = x(last + 1) - x(first) > 4 ? 1 : 0;
      c.fillStyle = ink("accent");
      c.fillRect(x(first), base - height, x(last + 1) - x(first) - gap, height);
      if (this.growing.subarray(first, last + 1).includes(1)) {
        c.fillStyle = ink("alarm");
        c.fillRect(x(first), base + 1, x(last + 1) - x(first), 4);
      }
    }
    for (const recording of this.run.recordings) {
      const size = recording.step === this.step ? 7 : 4;
      // Those of the last steps of a long run are drawn whole, too.
      const at = Math.min(x(step.indexOf(recording.step) + 0.5), width - size);
      c.fillStyle = ink("ink");
      c.beginPath();
      c.moveTo(at, base + 4);
      c.lineTo(at - size, base + 5 + 1.6 * size);
      c.lineTo(at + size, base + 5 + 1.6 * size);
      c.fill();
    }
  }
}

// The smallest and the largest of a list that may be too long to be spread into arguments.
function range(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return [low, high];
}

// 1 for each step that belongs to GROWING or more in a row of which each left more bytes live than the one before, or where up
// to TURNS kinds of steps take turns, than the last of its kind, GROWING times each.
function growth(live) {
  const growing = new Uint8Array(live.length);
  for (let turns = 1; turns <= TURNS; turns++) {
    for (let i = turns, first = turns; i <= live.length; i++) {
      if (i < live.length && live[i] > live[i - turns]) continue;
      if (i - first >= GROWING * turns) growing.fill(1, first, i);
      first = i + 1;
    }
  }
  return growing;
}
