"use strict";

// The pool's address map at an instant: a row a segment, its live blocks where they lie, the rest free.

const MAP_ROWS = 80;
const ROW = 26;
const MAP_LEFT = 96;

class Addresses {
  // choose(buffer) is called with the block that was clicked.
  constructor(choose) {
    this.choose = choose;
    this.places = [];
    this.map = byId("map");
    this.map.addEventListener("click", (event) => {
      const block = this.at(event);
      if (block) this.choose(block.buffer);
    });
    this.map.addEventListener("pointermove", (event) => {
      const block = this.at(event);
      this.map.title = block ? `${bytes(block.buffer.allocated)} of ${block.tag.op} in ${layerName(block.tag.layer)}` : "";
    });
    new ResizeObserver(() => this.draw()).observe(byId("addresses"));
  }

  // `extent` is as far as addresses are drawn: what no block ever reached is left out.
  show(segments, alive, bands, chosen, extent) {
    Object.assign(this, { segments, alive, bands, chosen, extent });
    this.draw();
  }

  at(event) {
    const { left, top } = this.map.getBoundingClientRect();
    const x = event.clientX - left;
    const y = event.clientY - top;
    // Pointers stand on whole pixels, and a block may be narrower than one: of those that are near, the widest is meant.
    const near = this.places.filter((p) => x >= p.x - 0.5 && x < p.x + Math.max(p.width, 1) && y >= p.y && y < p.y + p.height);
    return near.length ? near.reduce((a, b) => (b.width > a.width ? b : a)) : undefined;
  }

  draw() {
    if (!this.segments) return;
    const shown = this.segments.slice(0, MAP_ROWS);
    const { context: c, width } = sharpened(this.map, Math.max(shown.length, 1) * ROW);
    const widest = Math.max(this.extent, 1);
    const live = this.alive.reduce((sum, { buffer }) => sum + buffer.allocated, 0);
    const reserved = this.segments.reduce((sum, s) => sum + s.nbytes, 0);
    byId("addresses-line").textContent = `${countOf(this.segments.length, "segment")}, ${count(reserved)} bytes reserved, ` +
      `${count(live)} in blocks, ${count(reserved - live)} free; addresses up to ${bytes(this.extent)} are drawn` +
      (shown.length < this.segments.length ? `; the first ${shown.length} are shown` : "");
    this.map.setAttribute("aria-label", byId("addresses-line").textContent);
    const rows = new Map(shown.map((s, i) => [s.index, { y: i * ROW, ...s }]));
    const scale = (width - MAP_LEFT) / widest;
    c.textAlign = "right";
    for (const { index, y, nbytes } of rows.values()) {
      c.fillStyle = ink("quiet");
      c.fillText(`${index}: ${bytes(nbytes)}`, MAP_LEFT - 6, y + 17);
      c.strokeStyle = ink("quiet");
      c.strokeRect(MAP_LEFT + 0.5, y + 3.5, nbytes * scale, ROW - 7);
    }
    this.places = [];
    for (const state of this.alive) {
      const { buffer } = state;
      const row = rows.get(buffer.segment);
      if (!row) continue;
      const place = { ...state, x: MAP_LEFT + buffer.offset * scale, y: row.y + 3, width: buffer.allocated * scale,
        height: ROW - 6 };
      this.places.push(place);
      c.fillStyle = this.bands.color(state);
      c.fillRect(place.x, place.y, Math.max(place.width - (place.width > 3 ? 1 : 0), 0.5), place.height);
      if (buffer === this.chosen) {
        c.strokeStyle = ink("ink");
        c.lineWidth = 2;
        c.strokeRect(place.x, place.y, Math.max(place.width, 2), place.height);
        c.lineWidth = 1;
      }
    }
  }
}
