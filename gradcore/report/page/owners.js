"use strict";

// The table of allocations that are live at an instant, sortable and searchable, and the details of one allocation.

const OWNER_ROWS = 100;
const DETAIL_KEPT = 8;
const OWNER_COLUMNS = [
  { name: "bytes", number: true, value: (o) => o.allocated, text: (o) => count(o.allocated) },
  { name: "role", value: (o) => o.role },
  { name: "op", value: (o) => o.op },
  { name: "layer", value: (o) => layerName(o.layer) },
  { name: "shape", value: (o) => o.shape, wide: true },
  { name: "dtype", value: (o) => o.dtype, wide: true },
  { name: "line", value: (o) => o.line, path: true },
  { name: "record", number: true, value: (o) => o.made, text: (o) => (o.made < 0 ? "" : count(o.made)), wide: true },
];

class Owners {
  // choose(owner) is called with the row that was clicked.
  constructor(choose) {
    this.choose = choose;
    this.rows = [];
    this.chosen = null;
    this.sort = { column: OWNER_COLUMNS[0], down: true };
    this.limit = OWNER_ROWS;
    this.search = byId("search");
    this.search.addEventListener("input", () => { this.limit = OWNER_ROWS; this.draw(); });
    byId("owners-more").addEventListener("click", () => { this.limit *= 4; this.draw(); });
    this.heads = OWNER_COLUMNS.map((column) => element("th", { scope: "col", class: this.style(column) },
      element("button", { type: "button", on: { click: () => this.sortBy(column) } }, column.name)));
    byId("owners-head").replaceChildren(...this.heads);
  }

  style({ number, path, wide }) {
    return [number && "number", path && "path", wide && "wide"].filter(Boolean).join(" ");
  }

  sortBy(column) {
    this.sort = { column, down: this.sort.column === column ? !this.sort.down : Boolean(column.number) };
    this.draw();
  }

  show(rows, chosen) {
    this.rows = rows;
    this.chosen = chosen;
    this.limit = OWNER_ROWS;
    this.draw();
  }

  mark(chosen) {
    this.chosen = chosen;
    for (const row of byId("owners-rows").children) row.className = row.dataset.key === String(chosen) ? "chosen" : "";
  }

  found() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const { column: { value }, down } = this.sort;
    const sign = down ? -1 : 1;
    const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    return this.rows
      .filter((o) => {
        const text = [o.role, o.op, layerName(o.layer), o.shape, o.dtype, o.line].join(" ").toLowerCase();
        return words.every((word) => text.includes(word));
      })
      .sort((a, b) => sign * order(value(a), value(b)) || b.allocated - a.allocated || a.key - b.key);
  }

  draw() {
    const found = this.found();
    const sum = found.reduce((total, o) => total + o.allocated, 0);
    byId("owners-line").textContent = `${count(found.length)} of ${count(this.rows.length)} allocations, ${count(sum)} bytes`;
    this.heads.forEach((head, i) => {
      if (OWNER_COLUMNS[i] === this.sort.column) head.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    byId("owners-rows").replaceChildren(...found.slice(0, this.limit).map((o) => this.row(o)));
    byId("owners-more").hidden = found.length <= this.limit;
  }

  row(owner) {
    const cells = OWNER_COLUMNS.map((column, i) => {
      const text = (column.text ?? column.value)(owner);
      const inner = i ? breakable(text) : [element("button", { type: "button" }, text)];
      return element("td", { class: this.style(column) }, ...inner);
    });
    const chosen = owner.key === this.chosen ? "chosen" : undefined;
    return element("tr", { class: chosen ?? "", "data-key": owner.key, on: { click: () => this.choose(owner) } }, ...cells);
  }
}

// A live state of a log as a row of the table.
function ownerOf({ buffer, tag, role }) {
  return { key: buffer.index, buffer, allocated: buffer.allocated, role, op: tag.op, layer: tag.layer, shape: tag.shape,
    dtype: tag.dtype, line: tag.line, made: buffer.made };
}

// One of the largest buffers of a report that came without its records.
function ownerOfReport(top, key) {
  const shape = top.shape === null ? "bytes" : top.shape.join("x") || "scalar";
  return { key, allocated: top.allocated * top.count, role: top.role, op: top.op, layer: top.layer, dtype: top.dtype ?? "",
    line: top.line, shape: top.count > 1 ? `${count(top.count)} of ${shape}` : shape, made: -1, top };
}

// What is known of a buffer at an instant. go(position) makes a button that goes to a record.
function detailsOf(log, buffer, at, go) {
  const { tag, role } = log.stateAt(buffer, Math.max(at, buffer.made));
  const kept = log.residuals.filter((r) => r.buffer === buffer);
  const when = (p) => [go(p), ` after ${log.time[p].toFixed(3)} ms`];
  const rows = [["op", tag.op], ["layer", layerName(tag.layer)], ["phase", tag.phase], ["role", role], ["shape", tag.shape],
    ["dtype", tag.dtype], ["bytes", `${count(buffer.allocated)} allocated, ${count(buffer.requested)} requested`],
    ["line", tag.line], ["called from", tag.caller], ["shared by", tag.exported],
    ["node", buffer.node || ""], ["stream", buffer.stream],
    ["address", `segment ${buffer.segment}, offset ${count(buffer.offset)}`],
    ["allocated", ...(buffer.made < log.start ? ["before the step"] : when(buffer.made))]];
  for (const r of kept.slice(0, DETAIL_KEPT)) {
    rows.push([`kept as ${r.name}`, ...(r.node ? [`by node ${r.node}, `, ...when(r.kept)] : ["before the step"])]);
    const gone = r.dropped === null ? ["not in this step"] : [`by node ${r.node}, `, ...when(r.dropped)];
    rows.push([r.reason || "released", ...gone]);
  }
  if (kept.length > DETAIL_KEPT) rows.push(["kept", `${count(kept.length - DETAIL_KEPT)} more times`]);
  rows.push(["freed", ...(buffer.freed === Infinity ? ["not in this step"] : when(buffer.freed))]);
  return rows.filter(([, what]) => what !== "");
}

function detailsOfReport({ top }) {
  const rows = [["op", top.op], ["layer", layerName(top.layer)], ["phase", top.phase], ["role", top.role],
    ["bytes", `${top.count > 1 ? "each " : ""}${count(top.allocated)} allocated, ${count(top.requested)} requested`],
    ["line", top.line], ["called from", top.caller ?? ""], ["node", top.node || ""], ["kept by", top.kept_by.join(", ")]];
  return rows.filter(([, what]) => what !== "");
}
