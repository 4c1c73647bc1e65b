"use strict";

// The page's one state, and what follows when it changes: which step is shown, which instant of it, which allocation.

const DATA = JSON.parse(byId("data").textContent);
const view = { run: null, recording: null, log: null, bands: null, by: "role", at: 0, buffer: null };
const LOGS = new Map();

// A recording's log, unfolded when it is first asked for; null for one without records.
function logOf(recording) {
  if (!LOGS.has(recording)) LOGS.set(recording, recording.log && new Log(recording.log));
  return LOGS.get(recording);
}

const owners = new Owners((owner) => (owner.buffer ? choose(owner.buffer) : showDetails(detailsOfReport(owner), owner.key)));
const timeline = new Timeline(pick, showInstant);
const addresses = new Addresses(choose);
const kept = new Kept((buffer, position) => { pick(position); choose(buffer); });
const strip = new Strip((step) => show(view.run, view.run.recordings.find((r) => r.step === step)));

// -- what is shown ------------------------------------------------------------------------------------------------------

function show(run, recording) {
  const log = logOf(recording);
  Object.assign(view, { run, recording, log });
  const { report } = recording;
  const about = Object.entries(run.about).map(([name, value]) => `${name} ${value}`).join(", ");
  byId("step-name").textContent = isAlone(run) ? run.name : `step ${recording.step} of ${run.name}`;
  byId("run-about").textContent = `${about}${run.result === null && about ? "; the run has not finished" : ""}`;
  byId("peak-line").textContent = report.peak.op ? `The peak is reached by ${report.peak.op} in layer ` +
    `${layerName(report.peak.layer)}, phase ${report.peak.phase}, ${report.peak.line}` : "";
  fillList(byId("figures"), [["peak allocated", `${bytes(report.peak.allocated)} (${count(report.peak.allocated)})`],
    ["requested", count(report.peak.requested)], ["reserved", count(report.peak.reserved)],
    ...(report.records ? [["kept for backward", count(report.residual_bytes)],
      ["freed by the end of backward", count(report.residual_bytes_returned)]] : []),
    ["device", report.device], ...(report.batch_size ? [["batch", count(report.batch_size)]] : [])]);
  warn(report);
  byId("recording").value = optionOf(run, recording);
  strip.show(run, recording.step);
  for (const id of ["time", "addresses"]) byId(id).hidden = !log;
  if (log) {
    kept.show(keptOf(log), log.start, log.length);
    group(log.peak);
  } else {
    kept.show(keptOfReport(report), 0, Math.max(report.records, 1));
    byId("owners-title").textContent = "Largest allocations at the peak (the file has the report only, no events)";
    owners.show(report.top.map(ownerOfReport), null);
    showDetails([], null);
  }
}

// What has gained most over the steps, and what holds it.
function gained({ op, layer, line, count: results, allocated, holder, retained }) {
  return `Most of it: ${count(allocated)} bytes in ${count(results)} result${results === 1 ? "" : "s"} of ${op} in ` +
    `${layerName(layer)}, ${line}${holder && `, held by ${holder}`}` +
    `${retained ? ", which backward ran with retain_graph" : ""}. `;
}

// What links a step to the one before.
const carried = ({ op, line, reader, reader_line: at }) =>
  `${reader}, ${at}, reads a result of the previous step: ${op}, ${line}. Did you mean loss.item() or detach()? `;

function warn(report) {
  const graph = report.left.find((left) => left.held_by === "graph");
  const { growth } = report;
  const most = growth?.nodes ? ({ holder }) => holder && `Held by ${holder}. ` : gained;
  const grown = growth ? `${growth.said}. ${growth.grown.slice(0, 1).map(most).join("")}` +
    growth.carried.slice(0, 1).map(carried).join("") : "";
  const left = graph ? `Still live, kept by a graph: ${count(graph.allocated)} bytes of ${graph.op}, ${graph.line}.` : "";
  const alone = report.exported.filter((shown) => shown.alone);
  const held = alone.reduce((sum, { allocated }) => sum + allocated, 0);
  const outside = held ? ` Held only by arrays of other libraries: ${count(held)} bytes, ` +
    `most of them by ${alone[0].form}, ${alone[0].exported_at}.` : "";
  byId("warning").textContent = grown + left + outside;
  byId("warning").hidden = !(grown + left + outside);
}

// Regroup the owners, and show an instant.
function group(at) {
  view.bands = new Bands(view.log, view.by, DATA.colors);
  timeline.show(view.log, view.bands, at);
  pick(at);
}

function pick(position) {
  const { log } = view;
  view.at = position;
  view.buffer = log.kinds[position] === "A" ? log.buffers[log.subject[position]] : null;
  timeline.pick(position);
  showInstant(null);
  const peak = position === log.peak ? ", the peak" : "";
  byId("owners-title").textContent = `Live allocations after record ${count(position)}${peak}`;
  owners.show(log.aliveAt(position).map(ownerOf), view.buffer?.index);
  choose(view.buffer);
}

function choose(buffer) {
  const { log, at } = view;
  view.buffer = buffer;
  owners.mark(buffer?.index);
  addresses.show(log.segmentsAt(at), log.aliveAt(at), view.bands, buffer, log.extent());
  const go = (p) => {
    const click = () => { pick(p); choose(buffer); };
    return element("button", { type: "button", on: { click } }, `record ${count(p)}`);
  };
  showDetails(buffer ? detailsOf(log, buffer, at, go) : []);
}

function showDetails(rows, key) {
  if (key !== undefined) owners.mark(key);
  byId("detail-none").hidden = rows.length > 0;
  fillList(byId("detail-rows"), rows);
}

// What is live at the instant under the pointer, or at the chosen one.
function showInstant(pointed) {
  const { log, bands } = view;
  const at = pointed ?? view.at;
  byId("readout").textContent = `Record ${count(at)} of ${count(log.length)}, ${log.time[at].toFixed(3)} ms, ` +
    `${log.phaseAt(at)}: ${bytes(log.total[at])} live; ${log.describe(at)}`;
  byId("legend").replaceChildren(...bands.names.map((name, i) => {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = bands.colors[i];
    const nbytes = bands.values[i][at];
    return element("li", {}, swatch, `${name} ${bytes(nbytes)} (${((100 * nbytes) / (log.total[at] || 1)).toFixed(1)} %)`);
  }).reverse());
}

// -- what can be chosen -------------------------------------------------------------------------------------------------

const optionOf = (run, recording) => `${DATA.runs.indexOf(run)} ${recording.step}`;

// A step alone goes by its file's name.
const isAlone = (run) => run.steps.step.length < 2;

function labelOf(run, recording) {
  if (isAlone(run)) return run.name;
  const steps = run.recordings.map((r) => r.step);
  const peak = run.recordings.reduce((best, r) => (r.report.peak.allocated > best.report.peak.allocated ? r : best));
  const names = [recording.step === Math.min(...steps) && "first", recording === peak && "peak",
    recording.step === Math.max(...steps) && "last"].filter(Boolean).join(", ");
  const size = bytes(recording.report.peak.allocated);
  return `step ${recording.step}${steps.length > 1 ? ` (${[names, size].filter(Boolean).join(", ")})` : ""}`;
}

function nameOf(run, recording) {
  return `${DATA.runs.length > 1 && !isAlone(run) ? `${run.name}, ` : ""}${labelOf(run, recording)}`;
}

function everyRecording() {
  return DATA.runs.flatMap((run) => run.recordings.map((recording) => ({ run, recording })));
}

function fillChoices() {
  byId("recording").replaceChildren(...DATA.runs.map((run) => element("optgroup", { label: run.name },
    ...run.recordings.map((r) => element("option", { value: optionOf(run, r) }, labelOf(run, r))))));
  const others = everyRecording().filter(({ recording }) => recording.log);
  byId("beside").hidden = others.length < 2;
  byId("others").replaceChildren(...others.map(({ run, recording }) => element("li", {}, element("label", {},
    element("input", { type: "checkbox", value: optionOf(run, recording), on: { change: compare } }),
    ` ${nameOf(run, recording)}`))));
}

function compare() {
  const wanted = new Set([...byId("others").querySelectorAll("input:checked")].map((box) => box.value));
  timeline.compare(everyRecording().filter(({ run, recording }) => wanted.has(optionOf(run, recording)))
    .map(({ run, recording }) => ({ name: nameOf(run, recording), log: logOf(recording) })));
}

function start() {
  fillChoices();
  // Of a step alone there is nothing to choose, nor to say.
  const [first, other] = DATA.runs;
  byId("run").hidden = !other && isAlone(first) && !Object.keys(first.about).length;
  byId("recording").addEventListener("change", (event) => {
    const found = everyRecording().find(({ run, recording }) => optionOf(run, recording) === event.target.value);
    show(found.run, found.recording);
  });
  byId("by").addEventListener("change", (event) => {
    const { buffer } = view;
    view.by = event.target.value;
    group(view.at);
    choose(buffer);
  });
  byId("to-peak").addEventListener("click", () => pick(view.log.peak));
  byId("zoom-in").addEventListener("click", () => timeline.zoom(0.5));
  byId("zoom-out").addEventListener("click", () => timeline.zoom(2));
  byId("zoom-all").addEventListener("click", () => timeline.zoom(Infinity));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    strip.draw();
    if (view.log) timeline.draw();
    addresses.draw();
  });
  show(DATA.runs[0], DATA.runs[0].recordings.find((r) => r.step === DATA.shown));
}

start();
