"use strict";

// A packed log, unfolded (docs/report-schema.md has the packed form): its buffers, each with the states that it went through,
// and for every record which buffer it is about. Positions count records from 0; sizes are bytes.

const KEEPABLE = new Set(["output", "temporary"]);
const WORDS = { R: "segment reserved", U: "segment released", A: "allocated", F: "freed", K: "kept for backward",
  D: "released by the graph", L: "ran", T: "changed owner", M: "mark", V: "view", P: "upload", G: "read",
  X: "outside the pool" };
const READERS = { R: "reserve", U: "unreserve", A: "allocate", F: "free", T: "retag", K: "keep", D: "drop", M: "mark" };

class Log {
  constructor(packed) {
    const { kinds, columns, strings } = packed;
    this.length = kinds.length;
    this.kinds = kinds;
    this.columns = columns;
    this.strings = strings;
    this.tags = packed.tags.map((t) => this.readTag(packed, t));
    // Of each record: its row among its kind's columns, its buffer or -1, what was live and when it was, in ms.
    this.row = new Int32Array(this.length);
    this.subject = new Int32Array(this.length).fill(-1);
    this.total = new Float64Array(this.length);
    this.time = new Float64Array(this.length);
    this.buffers = [];
    this.segments = [];
    this.residuals = [];
    this.marks = [];
    this.start = 0;
    this.live = new Map();
    this.sum = 0;
    this.unfold();
    this.peak = this.start;
    for (let p = this.start; p < this.length; p++) if (this.total[p] > this.total[this.peak]) this.peak = p;
    // As in gradcore/folds.py: as much was live at the beginning, and an allocation reached it again.
    if (this.peak === this.start && this.kinds[this.start] !== "A") {
      const reached = (b) => b.made > this.start && b.allocated && this.total[b.made] === this.total[this.start];
      this.peak = this.buffers.find(reached)?.made ?? this.start;
    }
  }

  readTag({ strings, sites, specs }, [op, layer, phase, role, site, caller, spec, form, taken]) {
    const line = (i) => (i === null ? "" : `${strings[sites[i][0]]}:${sites[i][1]} in ${strings[sites[i][2]]}`);
    return { op: strings[op], layer: strings[layer], phase: strings[phase], role: strings[role], line: line(site),
      caller: line(caller), shape: spec === null ? "bytes" : specs[spec][0].join("x") || "scalar",
      dtype: spec === null ? "" : specs[spec][1], exported: form === undefined ? "" : `${strings[form]}, ${line(taken)}` };
  }

  unfold() {
    const rows = {};
    let began = null;
    let now = 0;
    for (let p = 0; p < this.length; p++) {
      const kind = this.kinds[p];
      const column = this.columns[kind];
      const row = (rows[kind] = (rows[kind] ?? -1) + 1);
      this.row[p] = row;
      if (column.time) {
        began ??= column.time[row];
        now = (column.time[row] - began) / 1e6;
      }
      if (READERS[kind]) this[READERS[kind]](p, column, row);
      this.time[p] = now;
      this.total[p] = this.sum;
    }
  }

  reserve(p, { segment, nbytes }, row) {
    this.segments.push({ index: segment[row], nbytes: nbytes[row], came: p, went: Infinity });
  }

  unreserve(p, { segment }, row) {
    const gone = this.segments.findLast((s) => s.index === segment[row]);
    if (gone) gone.went = p;
  }

  allocate(p, { serial, segment, offset, requested, allocated, stream, tag, node }, row) {
    const buffer = { index: this.buffers.length, serial: serial[row], made: p, freed: Infinity, requested: requested[row],
      allocated: allocated[row], segment: segment[row], offset: offset[row], stream: stream[row], node: node[row], states: [],
      open: new Map(), keepers: 0 };
    this.buffers.push(buffer);
    this.live.set(buffer.serial, buffer);
    this.enter(p, buffer, this.tags[tag[row]]);
    this.sum += buffer.allocated;
  }

  free(p, { serial }, row) {
    const buffer = this.live.get(serial[row]);
    buffer.freed = p;
    this.subject[p] = buffer.index;
    this.live.delete(buffer.serial);
    this.sum -= buffer.allocated;
  }

  retag(p, { serial, tag }, row) {
    this.enter(p, this.live.get(serial[row]), this.tags[tag[row]]);
  }

  keep(p, { serial, node, name }, row) {
    const buffer = this.live.get(serial[row]);
    const { tag } = buffer.states.at(-1);
    const residual = { buffer, node: node[row], name: this.strings[name[row]], tag, kept: p, dropped: null, reason: "" };
    this.residuals.push(residual);
    buffer.open.set(residual.node, [...(buffer.open.get(residual.node) ?? []), residual]);
    buffer.keepers += 1;
    this.enter(p, buffer, tag);
  }

  // Node 0 stands for whoever kept it before the log began.
  drop(p, { serial, node, reason }, row) {
    const buffer = this.live.get(serial[row]);
    const gone = buffer && (buffer.open.get(node[row])?.shift() ?? buffer.open.get(0)?.shift());
    if (!gone) return;
    Object.assign(gone, { dropped: p, reason: this.strings[reason[row]] });
    buffer.keepers -= 1;
    this.enter(p, buffer, buffer.states.at(-1).tag);
  }

  mark(p, { what, label }, row) {
    const mark = { what: this.strings[what[row]], label: this.strings[label[row]], at: p };
    if (mark.what === "begin" && mark.label === "step" && !this.marks.some((m) => m.label === "step")) this.start = p;
    if (mark.what !== "at") this.marks.push(mark);
  }

  // A buffer's state from a record on: a kept output is a residual, a kept parameter stays a parameter.
  enter(p, buffer, tag) {
    const role = buffer.keepers && KEEPABLE.has(tag.role) ? "residual" : tag.role;
    const last = buffer.states.at(-1);
    if (last?.tag !== tag || last.role !== role) buffer.states.push({ from: p, tag, role });
    this.subject[p] = buffer.index;
  }

  // The states of what is live after a record, in order of allocation.
  aliveAt(p) {
    const alive = [];
    for (const buffer of this.buffers) {
      if (buffer.made > p) break;
      if (buffer.freed > p) alive.push({ buffer, ...this.stateAt(buffer, p) });
    }
    return alive;
  }

  stateAt(buffer, p) {
    return buffer.states.findLast((s) => s.from <= p) ?? buffer.states[0];
  }

  segmentsAt(p) {
    return this.segments.filter((s) => s.came <= p && p < s.went);
  }

  // The largest address that was ever used in a segment.
  extent() {
    return this.buffers.reduce((most, b) => Math.max(most, b.offset + b.allocated), 0);
  }

  phaseAt(p) {
    let phase = p < this.start ? "before the step" : "forward";
    for (const { what, label, at } of this.marks) {
      if (at > p) break;
      if (what === "begin" && (label === "backward" || label === "optimizer")) phase = label;
      if (what === "end") phase = label === "step" ? "end of the step" : `after ${label}`;
    }
    return phase;
  }

  // What a record did, in words.
  describe(p) {
    const kind = this.kinds[p];
    const column = this.columns[kind];
    const row = this.row[p];
    const buffer = this.buffers[this.subject[p]];
    if (buffer) {
      const { tag } = this.stateAt(buffer, p);
      return `${WORDS[kind]}: ${bytes(buffer.allocated)} of ${tag.op} in ${layerName(tag.layer)}`;
    }
    if (kind === "L" || kind === "V") {
      const tag = this.tags[column.tag[row]];
      return `${WORDS[kind]}: ${tag.op} in ${layerName(tag.layer)}`;
    }
    if (kind === "M") return `${this.strings[column.what[row]]} ${this.strings[column.label[row]]}`;
    return column.nbytes ? `${WORDS[kind]}: ${bytes(column.nbytes[row])}` : WORDS[kind];
  }
}
