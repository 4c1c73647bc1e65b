"use strict";

// Live bytes by owner after every record: the bands of the timeline. Beyond BANDS names the smallest share one band.

const BANDS = 8;

const KEYS = { role: (state) => state.role, layer: (state) => layerName(state.tag.layer), op: (state) => state.tag.op,
  line: (state) => state.tag.line };

// By name: of layers whose paths differ in one number, and that have as many bytes at most, one name: "h.0-5.mlp"; also of
// equal networks: "Head#1-8". Every second part of a path is what stands between two others.
function together(highest) {
  const numbers = /^\d+$/;
  let rows = [...highest].map(([name, most]) => ({ path: name.split(/([.#])/), most, names: [name] }));
  const depth = rows.reduce((deepest, { path }) => Math.max(deepest, path.length), 0);
  for (let at = 0; at < depth; at++) {
    const alike = new Map();
    rows.forEach((row, i) => {
      // A path of numbers alone, as in a plain Sequential, says nothing without them.
      const numbered = numbers.test(row.path[at]) && !row.path.every((part, j) => j % 2 || numbers.test(part));
      const key = numbered ? JSON.stringify([row.path.map((part, j) => (j === at ? null : part)), row.most]) : i;
      alike.set(key, [...(alike.get(key) ?? []), row]);
    });
    rows = [...alike.values()].map((group) => (group.length === 1 ? group[0] : {
      path: group[0].path.map((part, j) => (j === at ? ranges(group.map((row) => Number(row.path[at]))) : part)),
      most: group[0].most,
      names: group.flatMap((row) => row.names),
    }));
  }
  return new Map(rows.flatMap((row) => row.names.map((name) => [name, row.path.join("")])));
}

// "0-2,5" for 0, 1, 2 and 5.
function ranges(numbers) {
  const runs = [];
  for (const n of numbers.sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && last.at(-1) === n - 1) last.splice(1, 1, n);
    else runs.push([n]);
  }
  return runs.map((run) => run.join("-")).join(",");
}

class Bands {
  constructor(log, by, colors) {
    this.key = KEYS[by];
    let highest = this.highest(log);
    if (by === "layer" && highest.size > BANDS) {
      const bands = together(highest);
      this.key = (state) => bands.get(KEYS[by](state));
      highest = this.highest(log);
    }
    const roles = Object.keys(colors);
    let names = [...highest.keys()];
    if (by === "role") {
      const order = (name) => (roles.includes(name) ? roles.indexOf(name) : roles.length);
      names.sort((a, b) => order(a) - order(b));
    } else {
      const largest = new Set([...names].sort((a, b) => highest.get(b) - highest.get(a)).slice(0, BANDS));
      names = names.filter((name) => largest.has(name));
    }
    const palette = Object.values(colors).filter((_, i) => i !== 1);
    this.names = names.length < highest.size ? [...names, countOf(highest.size - names.length, "other")] : names;
    this.colors = this.names.map((name, i) => (by === "role" && colors[name]) || palette[i] || "#444444");
    if (this.names.length > names.length) this.colors[names.length] = "#bbbbbb";
    this.index = new Map(names.map((name, i) => [name, i]));
    this.values = this.names.map(() => new Float64Array(log.length));
    this.walk(log, (p, sums) => this.values.forEach((band, i) => { band[p] = sums[i]; }));
  }

  of(state) {
    return this.index.get(this.key(state)) ?? this.names.length - 1;
  }

  color(state) {
    return this.colors[this.of(state)];
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
