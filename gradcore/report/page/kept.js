"use strict";

// What was kept for backward, by layer, with the record at which each buffer was released.

const KEPT_ROWS = 150;
const KEPT_COLUMNS = ["node", "kept as", "op", "bytes", "interval", "kept at", "released at", "freed at"];

class Kept {
  // choose(buffer, position) is called with the row that was clicked.
  constructor(choose) {
    this.choose = choose;
    this.rows = [];
    this.limit = KEPT_ROWS;
    byId("kept-head").replaceChildren(...KEPT_COLUMNS.map((name) => element("th", { scope: "col" }, name)));
    byId("kept-all").addEventListener("change", () => this.draw());
    byId("kept-more").addEventListener("click", () => { this.limit = Infinity; this.draw(); });
  }

  // Rows: {node, name, op, layer, role, allocated, kept, dropped, freed, reason, buffer, serial}, with positions from `start`
  // to `end`.
  show(rows, start, end) {
    Object.assign(this, { rows, start, end, limit: KEPT_ROWS });
    this.draw();
  }

  draw() {
    const all = byId("kept-all").checked;
    const rows = this.rows.filter((r) => all || r.role === "output" || r.role === "temporary");
    const layers = new Map(rows.map((r) => [r.layer, []]));
    for (const row of rows) layers.get(row.layer).push(row);
    const shown = new Set(rows.slice(0, this.limit));
    const buffers = bufferSizes(rows);
    const held = bufferSizes(rows.filter((r) => r.dropped === null));
    byId("kept-line").textContent = `${countOf(buffers.size, "buffer")} kept, ${count(buffers.size - held.size)} released ` +
      "within the step";
    byId("kept-rows").replaceChildren(...[...layers].flatMap(([layer, group]) => {
      const some = group.filter((r) => shown.has(r));
      return some.length ? [this.head(layer, group), ...some.map((r) => this.row(r))] : [];
    }));
    byId("kept-more").hidden = rows.length <= this.limit;
  }

  head(layer, group) {
    const sum = [...bufferSizes(group).values()].reduce((total, size) => total + size, 0);
    const last = Math.max(...group.map((r) => r.dropped ?? Infinity));
    const when = last === Infinity ? "some still kept at the end of the step" : `all released by record ${count(last)}`;
    return element("tr", { class: "group" }, element("th", { scope: "rowgroup", colspan: KEPT_COLUMNS.length },
      `${layerName(layer)}: ${count(sum)} bytes, ${when}`));
  }

  row(r) {
    const bar = element("span");
    const share = (p) => `${(100 * Math.min(Math.max((p - this.start) / (this.end - this.start), 0), 1)).toFixed(2)}%`;
    bar.style.left = share(r.kept);
    bar.style.right = `calc(100% - ${share(r.dropped ?? this.end)})`;
    const go = { click: () => this.choose(r.buffer, r.kept) };
    const name = r.buffer ? element("button", { type: "button", on: go }, r.name) : r.name;
    const at = (p) => (p === null ? "" : count(p));
    const cells = [r.node || "before the step", name, r.op, count(r.allocated), element("div", { class: "track" }, bar),
      at(r.kept), r.dropped === null ? "still kept" : `${at(r.dropped)} ${r.reason}`, at(r.freed)];
    return element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
  }
}

// The bytes of each buffer in these rows: several nodes may keep one. A report of before serials cannot tell.
function bufferSizes(rows) {
  return new Map(rows.map((r) => [r.serial || r, r.allocated]));
}

function keptOf(log) {
  return log.residuals.filter((r) => r.kept >= log.start).map(({ node, name, tag, buffer, kept, dropped, reason }) => ({
    node, name, op: tag.op, layer: tag.layer, role: tag.role, allocated: buffer.allocated, kept, dropped,
    freed: buffer.freed === Infinity ? null : buffer.freed, reason, buffer, serial: buffer.serial }));
}

function keptOfReport(report) {
  return report.kept.map((k) => ({ node: k.node, name: k.name, op: k.op, layer: k.layer, role: k.role, allocated: k.allocated,
    kept: k.kept_at, dropped: k.dropped_at, freed: k.freed_at, reason: k.reason, serial: k.serial }));
}
