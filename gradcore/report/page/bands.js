"use strict";

// Live bytes by owner after every record: the bands of the timeline. Beyond BANDS names the smallest share one band.

const BANDS = 8;

const KEYS = { role: (state) => state.role, layer: (state) => layerName(state.tag.layer), op: (state) => state.tag.op,
  line: (state) => state.tag.line };

class Bands {
  constructor(log, by, colours) {
    this.key = KEYS[by];
    const highest = this.highest(log);
    const roles = Object.keys(colours);
    let names = [...highest.keys()];
    if (by === "role") {
      const order = (name) => (roles.includes(name) ? roles.indexOf(name) : roles.length);
      names.sort((a, b) => order(a) - order(b));
    } else {
      const largest = new Set([...names].sort((a, b) => highest.get(b) - highest.get(a)).slice(0, BANDS));
      names = names.filter((name) => largest.has(name));
    }
    const palette = Object.values(colours).filter((_, i) => i !== 1);
    this.names = names.length < highest.size ? [...names, countOf(highest.size - names.length, "other")] : names;
    this.colours = this.names.map((name, i) => (by === "role" && colours[name]) || palette[i] || "#444444");
    if (this.names.length > names.length) this.colours[names.length] = "#bbbbbb";
    this.index = new Map(names.map((name, i) => [name, i]));
    this.values = this.names.map(() => new Float64Array(log.length));
    this.walk(log, (p, sums) => this.values.forEach((band, i) => { band[p] = sums[i]; }));
  }

  of(state) {
    return this.index.get(this.key(state)) ?? this.names.length - 1;
  }

  colour(state) {
    return this.colours[this.of(state)];
  }

  // The most bytes that each name ever has, in order of appearance.
  highest(log) {
    const sums = new Map();
    const highest = new Map();
    this.replay(log, (state, nbytes) => {
      const name = this.key(state);
      const sum = (sums.get(name) ?? 0) + nbytes;
      sums.set(name, sum);
      highest.set(name, Math.max(highest.get(name) ?? 0, sum));
    });
    return highest;
  }

  walk(log, visit) {
    const sums = this.names.map(() => 0);
    this.replay(log, (state, nbytes) => { sums[this.of(state)] += nbytes; }, (p) => visit(p, sums));
  }

  // Calls change(state, bytes) as bytes come and go, and done(position) after each record.
  replay(log, change, done = () => {}) {
    const at = new Int32Array(log.buffers.length).fill(-1);
    for (let p = 0; p < log.length; p++) {
      const buffer = log.buffers[log.subject[p]];
      if (buffer) {
        const i = buffer.index;
        const { states } = buffer;
        if (at[i] >= 0) change(states[at[i]], -buffer.allocated);
        if (states[at[i] + 1]?.from === p) at[i] += 1;
        if (buffer.freed !== p) change(states[at[i]], buffer.allocated);
      }
      done(p);
    }
  }
}
