// The rolling rejection rate against theory, extended as the monitors speak.

import { $, $$, call, every, onKeys, pageData, plural, readData, showTime } from "./shell.js";
import { clockTicks } from "./plots.js";

/* global uPlot */
const data = readData("live-data");
const box = $("#chart");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const percent = (v) => (v === null || v === undefined ? "–" : v === 0 ? "0\u00a0%" : `${(100 * v).toFixed(Math.abs(v) >= 0.01 ? 1 : 2)}\u00a0%`);
const state = { samples: new Map(), seq: data.seq || 0, source: null };

// A screen that stays open all week keeps the stretch that was asked for, not everything since.
const keepMs = { 1: 3600000, 6: 6 * 3600000, 24: 24 * 3600000, 168: 7 * 24 * 3600000 }[data.hours] || Infinity;
const put = (sample) => state.samples.set(sample.t_ms, sample);
function forget() {
  const oldest = Math.max(...state.samples.keys()) - keepMs;
  for (const t of state.samples.keys()) if (t < oldest) state.samples.delete(t);
}
const columns = () => {
  const all = [...state.samples.values()].sort((a, b) => a.t_ms - b.t_ms);
  const steps = all.slice(1).map((s, i) => s.t_ms - all[i].t_ms).sort((a, b) => a - b);
  const usual = steps.length ? steps[steps.length >> 1] : 0;
  const table = [[], [], [], [], [], [], []];
  const push = (t, s) => {
    table[0].push(t);
    // With fewer than 60 events since a model swap there is no rate to speak of.
    const young = !s || s.lower === undefined || s.lower === null;
    ["rate", "lower", "upper", "expected", "frozen_bound", "paper_bound"].forEach((name, i) => table[i + 1].push(!s || (young && i < 3) ? null : s[name] ?? null));
  };
  all.forEach((s, i) => {
    // Where nothing was heard for long there is a gap, not a line.
    if (i && usual && s.t_ms - all[i - 1].t_ms > 10 * usual) push(all[i - 1].t_ms + usual, null);
    push(s.t_ms, s);
  });
  return table;
};

let plot = null;
let zoom = null; // [from, to] chosen by hand: new samples do not move it
function place() {
  const t = plot.data[0];
  const [first, last] = t.length ? [t[0], t[t.length - 1]] : [Date.now() - 3600000, Date.now()];
  const [min, max] = zoom || (last > first ? [first, last] : [first - 60000, last + 60000]);
  plot.setScale("x", { min, max });
  for (const button of $$("[data-act=reset]")) button.disabled = !zoom;
}
function look(from, to) {
  const t = plot.data[0];
  if (t.length < 2) return;
  const [first, last] = [t[0], t[t.length - 1]];
  const width = Math.max(60000, to - from);
  if (width >= last - first) { zoom = null; place(); return; }
  const start = Math.min(Math.max((from + to - width) / 2, first), last - width);
  zoom = [start, start + width];
  place();
}
const pan = (share) => { const { min, max } = plot.scales.x; look(min + share * (max - min), max + share * (max - min)); };
function magnify(factor) {
  const { min, max } = plot.scales.x;
  const [middle, half] = [(min + max) / 2, ((max - min) / 2) * factor];
  look(middle - half, middle + half);
}
const reset = () => { zoom = null; place(); };

function draw() {
  if (!box) return;
  const table = columns();
  if (plot) {
    plot.batch(() => { plot.setData(table, false); place(); });
    return;
  }
  const line = (name, dash, width = 1.3) => ({ stroke: () => colour(name), width, dash, points: { show: false } });
  const axis = { stroke: () => colour("--muted"), grid: { stroke: () => colour("--plot-grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  plot = new uPlot({
    width: box.clientWidth, height: 300, ms: 1, legend: { show: false }, padding: [10, 8, 0, 0],
    tzDate: (ms) => (pageData.clock === "local" ? new Date(ms) : uPlot.tzDate(new Date(ms), "Etc/UTC")),
    cursor: { drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => { reset(); return null; } } },
    scales: { x: { time: true, range: (_u, min, max) => [min, max] }, y: { range: (u) => [0, top(u.data)] } },
    axes: [{ ...axis, size: 38, values: clockTicks }, { ...axis, size: 56, values: (_u, ticks) => ticks.map(percent) }],
    series: [{}, { ...line("--plot-1", undefined, 2), points: { show: (u) => u.data[0].length < 40, size: 5 } }, { ...line("--plot-1"), width: 0 }, { ...line("--plot-1"), width: 0 },
      line("--good", [2, 3], 1.6), line("--rejected", [8, 4], 1.6), line("--anomaly", [10, 4, 2, 4], 1.6)],
    bands: [{ series: [3, 2], fill: () => colour("--limits") }],
    hooks: { draw: [marks], setCursor: [(u) => readout(u)], setSelect: [dragged] },
  }, table, box);
  place();
}
function dragged(u) {
  const { left, width } = u.select;
  if (width < 5) return;
  const range = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
  u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  look(...range);
}
// The paper's bound may lie far above everything that happens: then it is named at the edge.
function top(table) {
  const highest = (column) => table[column].reduce((most, v) => (v !== null && v > most ? v : most), 0);
  // Wide limits of a young window may leave the picture; what is drawn as a line may not.
  const uppers = table[3].filter((v) => v !== null).sort((a, b) => a - b);
  const own = Math.max(highest(1), highest(5), uppers[Math.floor(uppers.length * 0.8)] || 0, 0.001);
  const paper = highest(6);
  return (paper && paper < 2.2 * own ? Math.max(own, paper) : own) * 1.12;
}
function marks(u) {
  const { ctx, bbox } = u;
  const size = 11 * devicePixelRatio;
  ctx.save();
  ctx.font = `${size}px system-ui, "DejaVu Sans", sans-serif`;
  for (const mark of data.marks || []) {
    const x = u.valToPos(mark.t_ms, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    const alarm = mark.kind.startsWith("alarm");
    ctx.strokeStyle = ctx.fillStyle = colour(alarm ? "--anomaly" : "--muted");
    ctx.setLineDash([2, 4]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.textAlign = "center";
    if (alarm) {
      ctx.fillRect(x - size * 0.6, bbox.top, size * 1.2, size * 1.4);
      ctx.fillStyle = colour("--panel");
      ctx.fillText("!", x, bbox.top + size * 1.1);
    } else ctx.fillText("▽", x, bbox.top + size);
  }
  const paper = u.data[6].filter((v) => v !== null).pop();
  if (paper && paper > u.scales.y.max) {
    ctx.fillStyle = colour("--anomaly");
    ctx.textAlign = "right";
    ctx.fillText(`paper bound ${percent(paper)} ↑`, bbox.left + bbox.width - 4, bbox.top + size * 2.6);
  }
  ctx.restore();
}
function readout(u) {
  const i = u.cursor.idx;
  if (i === null || i === undefined || u.data[1][i] === null) { $("#readout").textContent = ""; return; }
  const [t, rate, lower, upper, expected, exact, paper] = u.data.map((column) => column[i]);
  $("#readout").textContent = `${showTime(t, "day")}   rate ${percent(rate)} (${percent(lower)} to ${percent(upper)})   R ${percent(expected)}   exact ${percent(exact)}   paper ${percent(paper)}`;
}

function show(status) {
  if (!status) return;
  const set = (id, text) => { const element = $(id); if (element && element.textContent !== text) element.textContent = text; };
  set("#n-rate", percent(status.rate));
  set("#n-limits", `99 % limits: ${percent(status.lower)} to ${percent(status.upper)}`);
  set("#n-expected", percent(status.expected));
  set("#n-exact", percent(status.frozen_bound));
  set("#n-paper", percent(status.paper_bound));
  set("#n-anomaly", percent(status.anomaly_rate));
  set("#n-events", status.rolling_events.toLocaleString("en"));
  set("#n-effective", `worth ${status.effective_events === null ? "–" : Math.round(status.effective_events).toLocaleString("en")} independent ones`);
  set("#state", status.state);
  $("#state").className = `state ${["as planned", "calibrating"].includes(status.state) ? "calm" : status.state === "above bound" ? "note" : "alarm"}`;
  const alarms = status.alarms.map((alarm) => {
    const line = document.createElement("p");
    line.className = "alarm-line";
    const kind = document.createElement("b");
    kind.textContent = `! ${alarm.kind.replace("_", " ")} `;
    line.append(kind, alarm.message);
    return line;
  });
  $("#alarms").replaceChildren(...alarms);
}

// What happened on the way, in words: the signs in the picture say only when.
function showMarks(found) {
  data.marks = found || [];
  const list = $("#marks");
  list.hidden = !data.marks.length;
  const alarms = data.marks.filter((mark) => mark.kind.startsWith("alarm"));
  const swaps = data.marks.length - alarms.length;
  $("summary", list).textContent = [alarms.length && plural(alarms.length, "alarm"), swaps && plural(swaps, "model swap")].filter(Boolean).join(" and ") + " in this stretch";
  $("ul", list).replaceChildren(...data.marks.map((mark) => {
    const line = document.createElement("li");
    const name = document.createElement("b");
    name.textContent = mark.kind.startsWith("alarm:") ? `! ${mark.kind.slice(6).replace("_", " ")}` : "▽ model swap";
    line.append(`${showTime(mark.t_ms, "day")} `, name, ` ${mark.text}`);
    return line;
  }));
}

// One stream while the page can be seen, none while it is hidden.
const dot = (name, text) => { const d = $("#dot"); if (d) { d.dataset.state = name; $("#connection").textContent = text; } };
function connect() {
  if (state.source || document.hidden || !box) return;
  const parts = new URLSearchParams({ pipeline: data.pipeline, stream: data.stream, seq: state.seq });
  const source = (state.source = new EventSource(`/api/live/stream?${parts}`));
  source.addEventListener("open", () => dot("live", "live"));
  source.addEventListener("rate", (event) => {
    const message = JSON.parse(event.data);
    state.seq = +event.lastEventId;
    message.samples.forEach(put);
    forget();
    draw();
    show(message.status);
  });
  source.addEventListener("bye", () => { disconnect(); dot("away", "reconnecting"); setTimeout(connect, 1500); });
  source.addEventListener("error", () => {
    dot("away", "reconnecting");
    // A browser gives up for good on some failures: begin anew from what we have.
    if (source.readyState === EventSource.CLOSED) { disconnect(); setTimeout(connect, 1500); }
  });
}
function disconnect() { if (state.source) { state.source.close(); state.source = null; } }
document.addEventListener("visibilitychange", () => { if (document.hidden) { disconnect(); dot("paused", "paused"); } else connect(); });
addEventListener("pagehide", disconnect);

if (box) {
  for (const sample of data.samples) put(sample);
  showMarks(data.marks);
  draw();
  new ResizeObserver(() => plot && plot.setSize({ width: box.clientWidth, height: 300 })).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot && plot.redraw());
  connect();
  every(5000, async () => {
    const parts = new URLSearchParams({ pipeline: data.pipeline, stream: data.stream, hours: data.hours });
    if (data.first_line) parts.set("from", data.first_line);
    const response = await fetch(`/live/streams?${parts}`).catch(() => null);
    if (!response || !response.ok) return;
    const text = await response.text();
    const body = $("#streams");
    if (!body.contains(document.activeElement)) body.innerHTML = text;
    const found = await call(`/api/live?${parts}&parts=said`).catch(() => null);
    if (found) { showMarks(found.marks); show(found.status); plot.redraw(false); }
  });
  onKeys({ pan_left: () => pan(-0.25), pan_right: () => pan(0.25), zoom_in: () => magnify(0.5), zoom_out: () => magnify(2), reset });
  box.probe = () => {
    const { min, max } = plot.scales.x;
    return { samples: state.samples.size, seq: state.seq, open: Boolean(state.source), times: [...state.samples.keys()], from: min, to: max };
  };
}
