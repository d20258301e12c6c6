"use strict";
// How the plots of the report are drawn. All data stands in the page; nothing is ever fetched.
const DATA = JSON.parse(document.getElementById("data").textContent);
const WORDS = {
  n: "normal", a: "anomaly", r: "rejected: ambiguous", u: "rejected: unscorable",
  c: "rejected: constant window", w: "rejected: warm-up",
};
const OUTCOMES = { caught: "✓", review: "◐", missed: "✕" };
const COLOURS = { a: "anomaly", r: "rejected", u: "unscored", c: "unscored" };
const dark = matchMedia("(prefers-color-scheme: dark)");
let ink = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["bg", "panel", "ink", "muted", "faint", "line", "grid", "normal", "normal-soft",
    "anomaly", "anomaly-soft", "rejected", "rejected-soft", "unscored", "fault", "fault-soft"]) {
    ink[name] = style.getPropertyValue("--" + name).trim();
  }
}

// ------------------------------------------------------------------------------------- data
function expand(runs, length) {
  const values = new Array(length);
  runs.forEach(([from, value], k) => values.fill(value, from, k + 1 < runs.length ? runs[k + 1][0] : length));
  return values;
}

function prepare(stream) {
  const length = stream.code.length;
  let at = 0;
  stream.x = stream.time.map((step) => (at += step));
  for (const name of ["lambda", "lower", "upper", "n", "epoch", "expected", "exact", "paper"]) {
    stream[name] = expand(stream[name], length);
  }
  // The score axis is stretched around λ as it is in calm times, so that the band can be seen
  // beside the outliers; after a fault both are far up.
  const quarter = (values) => {
    const known = values.filter((value) => value !== null).sort((a, b) => a - b);
    return known.length ? known[known.length >> 2] : 0;
  };
  const centre = quarter(stream.lambda);
  const spread = quarter(stream.upper.map((up, i) => (up === null || stream.lower[i] === null ? null : up - stream.lower[i])))
    || (Math.max(...stream.score) - centre) / 20 || 1;
  stream.warp = (score) => Math.asinh((score - centre) / spread);
  stream.unwarp = (y) => centre + spread * Math.sinh(y);
  return stream;
}

function firstAtOrAfter(x, value) {
  let low = 0, high = x.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (x[mid] < value) low = mid + 1; else high = mid;
  }
  return low;
}

// ------------------------------------------------------------------------------------ texts
const date = new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", day: "numeric", month: "short" });
const hour = new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", hour: "2-digit", minute: "2-digit" });
const short = (value) => (value === null || value === undefined ? "–"
  : Math.abs(value) >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : String(Number(value.toPrecision(4))));
const percent = (share, digits = 1) => (share === null || share === undefined ? "–" : (100 * share).toFixed(digits) + " %");

function nice(low, high, count) {
  const raw = (high - low) / Math.max(1, count) || 1;
  const base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * base).find((s) => s >= raw);
  const ticks = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) ticks.push(Number(t.toPrecision(12)));
  return ticks;
}

function timeTicks(startMs, x0, x1, width) {
  const room = Math.max(2, Math.floor(width / 84));
  const steps = [600, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600, 604800, 1209600, 2419200];
  const step = steps.find((s) => (x1 - x0) / s <= room) || 4838400;
  const offset = startMs / 1000;
  const ticks = [];
  for (let t = Math.ceil((x0 + offset) / step) * step - offset; t <= x1; t += step) {
    const at = new Date(startMs + t * 1000);
    const midnight = (t + offset) % 86400 === 0;
    ticks.push([t, step >= 86400 || midnight ? date.format(at) : hour.format(at)]);
  }
  return ticks;
}

// ------------------------------------------------------------------------------------ plots
class Plot {
  constructor(canvas, height, view, paint, options = {}) {
    Object.assign(this, { canvas, height, view, paint, ...options });
    this.left = 0; this.right = 0; this.top = options.top || 6; this.bottom = options.axis ? 22 : 6;
  }
  draw() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    const height = this.height;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio); this.canvas.height = Math.round(height * ratio);
      this.canvas.style.height = height + "px";
    }
    const c = this.c = this.canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    c.font = "12px system-ui, sans-serif"; c.lineJoin = "round";
    this.width = width; this.left = this.bare ? 0 : 46; this.right = this.bare ? 0 : 4;
    this.x0 = this.bare ? this.view.full[0] : this.view.x0; this.x1 = this.bare ? this.view.full[1] : this.view.x1;
    this.paint(this);
  }
  X(x) { return this.left + (x - this.x0) / (this.x1 - this.x0) * (this.width - this.left - this.right); }
  at(px) { return this.x0 + (px - this.left) / (this.width - this.left - this.right) * (this.x1 - this.x0); }
  scale(low, high) {
    if (!(high > low)) { low -= 1; high += 1; }
    const span = this.height - this.top - this.bottom;
    this.Y = (y) => this.top + (high - y) / (high - low) * span;
  }
  get floor() { return this.height - this.bottom; }
  visible() {
    const x = this.view.stream.x;
    return [Math.max(0, firstAtOrAfter(x, this.x0) - 1), Math.min(x.length, firstAtOrAfter(x, this.x1) + 1)];
  }
  clip() { const c = this.c; c.save(); c.beginPath(); c.rect(this.left, 0, this.width - this.left - this.right, this.height); c.clip(); }
  frame(ticks, text) {
    const c = this.c;
    c.lineWidth = 1; c.fillStyle = ink.muted; c.textAlign = "right"; c.textBaseline = "middle";
    for (const [y, label] of ticks) {
      c.strokeStyle = ink.grid; c.beginPath(); c.moveTo(this.left, Math.round(y) + 0.5); c.lineTo(this.width - this.right, Math.round(y) + 0.5); c.stroke();
      c.fillText(label, this.left - 7, y);
    }
    if (!this.axis) return;
    c.textAlign = "center"; c.textBaseline = "alphabetic";
    for (const [t, label] of timeTicks(this.view.stream.start_ms, this.x0, this.x1, this.width - this.left)) {
      const x = this.X(t);
      if (x < this.left + 12 || x > this.width - 16) continue;
      c.fillText(label, x, this.height - 5);
    }
  }
  faults(labels) {
    const c = this.c, rows = [-1e9, -1e9, -1e9];
    for (const fault of this.view.stream.faults) {
      const half = this.view.stream.step_s / 2;
      const a = this.X(fault.from_s - half), b = Math.max(this.X(fault.to_s + half), a + 3);
      if (b < this.left || a > this.width) continue;
      c.fillStyle = ink["fault-soft"]; c.fillRect(a, labels ? this.top - 4 : 0, b - a, this.floor - (labels ? this.top - 4 : 0));
      if (!labels) continue;
      const text = OUTCOMES[fault.outcome] + " " + fault.title;
      const wide = c.measureText(text).width;
      const x = Math.min(Math.max((a + b) / 2 - wide / 2, this.left + 2), this.width - this.right - wide);
      const row = rows.findIndex((taken) => x > taken + 12);
      if (row < 0) continue;
      rows[row] = x + wide;
      c.fillStyle = ink.fault; c.textAlign = "left"; c.textBaseline = "alphabetic"; c.fillText(text, x, this.top - 10 - 14 * row);
    }
  }
  learning() {
    const { stream } = this.view, c = this.c;
    const end = stream.code.search(/[^w]/);
    if (end <= 0) return;
    const a = Math.max(this.X(stream.x[0]), this.left), b = this.X(stream.x[end]);
    if (b <= a) return;
    c.fillStyle = ink.grid; c.fillRect(a, this.top, b - a, this.floor - this.top);
  }
  line(values, colour, width, { dash = [], step = false } = {}) {
    const { x, step_s } = this.view.stream, c = this.c, [from, to] = this.visible();
    c.beginPath(); c.strokeStyle = colour; c.lineWidth = width; c.setLineDash(dash);
    let last = null;
    for (let i = from; i < to; i++) {
      if (values[i] === null || values[i] === undefined) { last = null; continue; }
      const px = this.X(x[i]), py = this.Y(values[i]);
      if (last === null || (!step && x[i] - x[last] > 3.5 * step_s)) c.moveTo(px, py);
      else { if (step) c.lineTo(px, this.Y(values[last])); c.lineTo(px, py); }
      last = i;
    }
    c.stroke(); c.setLineDash([]);
  }
  marks(values) {
    const { stream } = this.view, c = this.c, [from, to] = this.visible();
    const room = (this.width - this.left) / Math.max(1, to - from);
    const size = Math.min(5, Math.max(2.1, room * 0.7));
    for (const kind of ["r", "u", "c", "a"]) {
      c.strokeStyle = c.fillStyle = ink[COLOURS[kind]];
      for (let i = from; i < to; i++) {
        if (stream.code[i] !== kind) continue;
        const missing = values[i] === null || values[i] === undefined;
        mark(c, kind, this.X(stream.x[i]), missing ? this.floor - 5 : this.Y(values[i]), size);
      }
    }
  }
  crosshair() {
    const c = this.c, { hover, stream, drag } = this.view;
    if (drag && drag.moved) {
      const a = this.X(drag.from), b = this.X(drag.to);
      c.fillStyle = ink["fault-soft"]; c.fillRect(Math.min(a, b), 0, Math.abs(b - a), this.floor);
    } else if (hover !== null) {
      const x = Math.round(this.X(stream.x[hover])) + 0.5;
      c.strokeStyle = ink.muted; c.lineWidth = 1; c.beginPath(); c.moveTo(x, this.top - 4); c.lineTo(x, this.floor); c.stroke();
    }
  }
}

function mark(c, kind, x, y, size) {
  c.beginPath();
  if (kind === "a") { // a filled triangle
    c.moveTo(x, y - size * 1.15); c.lineTo(x + size * 1.1, y + size * 0.8); c.lineTo(x - size * 1.1, y + size * 0.8); c.closePath(); c.fill();
  } else if (kind === "r") { // a ring
    c.lineWidth = size > 3 ? 1.7 : 1.2; c.arc(x, y, size, 0, 2 * Math.PI); c.stroke();
  } else { // a cross
    c.lineWidth = 1.8; c.moveTo(x - size, y - size); c.lineTo(x + size, y + size); c.moveTo(x + size, y - size); c.lineTo(x - size, y + size); c.stroke();
  }
}

function range(plot, arrays) {
  const [from, to] = plot.visible();
  let low = Infinity, high = -Infinity;
  for (const values of arrays) for (let i = from; i < to; i++) {
    const v = values[i];
    if (v !== null && v !== undefined) { if (v < low) low = v; if (v > high) high = v; }
  }
  return low <= high ? [low, high] : [0, 1];
}

const paintSeries = (channel, first) => (plot) => {
  const { stream } = plot.view, values = stream.values[channel];
  const [low, high] = range(plot, [values]), pad = (high - low) * 0.08 || 1;
  plot.scale(low - pad, high + pad);
  plot.learning(); plot.faults(first);
  plot.frame(nice(low, high, plot.height > 150 ? 4 : 3).map((v) => [plot.Y(v), short(v)]));
  plot.clip(); plot.line(values, ink.normal, 1.3); plot.marks(values); plot.crosshair(); plot.c.restore();
};

function paintScore(plot) {
  const { stream } = plot.view, c = plot.c;
  const warp = (values) => values.map((v) => (v === null ? null : stream.warp(v)));
  stream.warped ||= { score: warp(stream.score), lambda: warp(stream.lambda), lower: warp(stream.lower), upper: warp(stream.upper) };
  const w = stream.warped;
  const [low, high] = range(plot, [w.score, w.lower, w.upper]), pad = (high - low) * 0.06 || 1;
  plot.scale(low - pad, high + pad);
  plot.learning(); plot.faults(false);
  const ticks = [];
  for (let k = 0; k < 5; k++) {
    const value = Number(stream.unwarp(low + (high - low) * k / 4).toPrecision(2)), y = plot.Y(stream.warp(value));
    if (y <= plot.floor && y >= plot.top && !ticks.some((t) => Math.abs(t[0] - y) < 15)) ticks.push([y, short(value)]);
  }
  plot.frame(ticks);
  plot.clip();
  const [from, to] = plot.visible();
  for (let i = from; i < to; i++) { // runs of equal limits: one rectangle each
    let j = i;
    while (j + 1 < to && w.lower[j + 1] === w.lower[i] && w.upper[j + 1] === w.upper[i]) j++;
    const a = plot.X(stream.x[i]), b = plot.X(stream.x[Math.min(j + 1, stream.x.length - 1)]);
    if (w.lower[i] !== null && w.upper[i] !== null) {
      c.fillStyle = ink["rejected-soft"]; c.fillRect(a, plot.Y(w.upper[i]), b - a, plot.Y(w.lower[i]) - plot.Y(w.upper[i]));
    }
    i = j;
  }
  c.strokeStyle = ink.faint; c.lineWidth = 1; c.setLineDash([1, 3]);
  for (let i = Math.max(from, 1); i < to; i++) { // another model speaks from here on
    if (stream.epoch[i] === stream.epoch[i - 1] || stream.epoch[i] === null || stream.epoch[i - 1] === null) continue;
    const x = Math.round(plot.X(stream.x[i])) + 0.5;
    c.beginPath(); c.moveTo(x, plot.top); c.lineTo(x, plot.floor); c.stroke();
  }
  c.setLineDash([]);
  plot.line(w.score, ink.normal, 1.1);
  plot.line(w.lambda, ink.ink, 1.3, { dash: [6, 4], step: true });
  plot.marks(w.score); plot.crosshair(); c.restore();
}

function paintRate(plot) {
  const { stream } = plot.view;
  // The paper's bound starts far up while the window is short: there it may leave the plot.
  const [, to] = plot.visible(), paper = stream.paper[to - 1] || 0;
  const top = Math.max(paper, range(plot, [stream.exact])[1], range(plot, [stream.rate])[1], 0.01) * 1.12;
  plot.scale(0, top);
  plot.faults(false);
  plot.frame(nice(0, top, 4).map((v) => [plot.Y(v), percent(v, top < 0.04 ? 1 : 0)]));
  plot.clip();
  plot.line(stream.paper, ink.faint, 1.4, { dash: [2, 4], step: true });
  plot.line(stream.exact, ink.anomaly, 1.4, { dash: [7, 4], step: true });
  plot.line(stream.expected, ink.ink, 1.4, { step: true });
  plot.line(stream.rate, ink.rejected, 2.2);
  plot.crosshair(); plot.c.restore();
}

const paintDays = (budget) => (plot) => {
  const { stream } = plot.view, c = plot.c;
  const shown = stream.days.filter((day) => day[0] + 86400 >= plot.x0 && day[0] <= plot.x1);
  const top = Math.max(budget || 0, ...shown.map((day) => day[1] + day[2] + day[3]), 1) * 1.1;
  plot.scale(0, top);
  plot.faults(false);
  plot.frame(nice(0, top, 2).filter(Number.isInteger).map((v) => [plot.Y(v), short(v)]));
  plot.clip();
  for (const [at, anomalies, rejected, unscored] of shown) {
    const a = plot.X(at), b = plot.X(at + 86400), gap = Math.min(3, (b - a) * 0.15);
    let base = 0;
    for (const [count, colour] of [[rejected, "rejected"], [unscored, "unscored"], [anomalies, "anomaly"]]) {
      if (!count) continue;
      c.fillStyle = ink[colour]; c.fillRect(a + gap, plot.Y(base + count), b - a - 2 * gap, plot.Y(base) - plot.Y(base + count));
      base += count;
    }
  }
  if (budget) {
    const y = Math.round(plot.Y(budget)) + 0.5;
    c.strokeStyle = ink.ink; c.lineWidth = 1.4; c.setLineDash([6, 4]); c.beginPath(); c.moveTo(plot.left, y); c.lineTo(plot.width, y); c.stroke(); c.setLineDash([]);
  }
  plot.crosshair(); c.restore();
};

function paintStrip(plot) {
  const { stream, x0, x1, full } = plot.view, c = plot.c, values = stream.values[0];
  c.fillStyle = ink.bg; c.fillRect(0, 0, plot.width, plot.height);
  const [low, high] = range(plot, [values]);
  plot.top = plot.bottom = 8; plot.scale(low, high);
  plot.line(values, ink.faint, 1);
  plot.faults(false);
  for (const [kind, y] of [["r", plot.height - 6], ["a", plot.height - 3]]) {
    c.fillStyle = ink[COLOURS[kind]];
    for (let i = 0; i < stream.code.length; i++) if (stream.code[i] === kind) c.fillRect(plot.X(stream.x[i]) - 0.7, y, 1.6, 3);
  }
  if (x0 > full[0] || x1 < full[1]) {
    c.fillStyle = ink.panel; c.globalAlpha = 0.72;
    c.fillRect(0, 0, plot.X(x0), plot.height); c.fillRect(plot.X(x1), 0, plot.width, plot.height); c.globalAlpha = 1;
    c.strokeStyle = ink.muted; c.strokeRect(plot.X(x0) + 0.5, 0.5, plot.X(x1) - plot.X(x0) - 1, plot.height - 1);
  }
}
