// A stack of plots on one clock and one cursor. Every line has at most a few points per pixel and
// keeps its extremes; gaps in the data are gaps in the line.

import { pageData, showTime } from "./shell.js";

/* global uPlot */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// As many decimals as tell two that are a step apart.
const short = (v, step) => {
  if (v === null || v === undefined || Number.isNaN(v)) return "–";
  const size = Math.abs(v);
  if (step > 1e-6 && size < 1e7) return v.toFixed(Math.max(0, Math.ceil(-Math.log10(step) - 1e-6)));
  return size >= 1e5 || (size > 0 && size < 1e-3) ? v.toExponential(2) : String(+v.toPrecision(4));
};
const MARKS = { 1: ["▲", "--anomaly"], 2: ["◆", "--rejected"] };

export class PlotStack {
  // `onBrush(from, to)` is called when a range was dragged, `onMove(t, values)` with the cursor.
  constructor(box, { episode, onBrush, onMove, onPin }) {
    Object.assign(this, { box, episode, onBrush, onMove, onPin, charts: [], brush: null, holes: [], sync: uPlot.sync(`stack-${Math.random()}`) });
    box.charts = this.charts;
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(box);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.onScheme = () => this.redraw();
    this.scheme.addEventListener("change", this.onScheme);
  }

  destroy() {
    this.observer.disconnect();
    this.scheme.removeEventListener("change", this.onScheme);
    for (const chart of this.charts) chart.plot.destroy();
    this.charts.length = 0;
  }

  get width() { return Math.max(240, Math.floor(this.box.clientWidth)); }

  // `lines`: [{name, t, v, height, color}], the last one may carry bands and marks.
  draw(lines, from, to) {
    const same = this.charts.length === lines.length && lines.every((line, i) => line.name === this.charts[i].line.name && line.pinned === this.charts[i].line.pinned);
    if (!same) {
      for (const chart of this.charts) { chart.plot.destroy(); chart.element.remove(); }
      this.charts.length = 0;
      this.box.replaceChildren();
      lines.forEach((line, i) => this.add(line, i === lines.length - 1, from, to));
    }
    lines.forEach((line, i) => {
      const chart = this.charts[i];
      chart.line = line;
      chart.plot.setData(dataOf(line), false);
      this.rescale(chart, from, to);
    });
  }

  rescale(chart, from, to) {
    chart.plot.batch(() => {
      chart.plot.setScale("x", { min: from, max: to });
      const [low, high] = extent(chart.line, from, to);
      chart.plot.setScale("y", { min: low, max: high });
    });
  }

  add(line, last, from, to) {
    const element = document.createElement("figure");
    const title = document.createElement("figcaption");
    title.className = "plot-title";
    const name = document.createElement("b");
    name.textContent = line.title || line.name;
    const unit = document.createElement("span");
    unit.className = "soft";
    unit.textContent = line.note || "";
    if (line.unit) name.append(` (${line.unit})`);
    title.append(name, unit);
    if (line.pinned !== undefined) {
      const pin = document.createElement("button");
      pin.className = "link";
      pin.textContent = line.pinned ? "unpin" : "pin";
      pin.setAttribute("aria-label", `${pin.textContent} ${line.title || line.name}`);
      pin.addEventListener("click", () => this.onPin(line.name));
      title.append(pin);
    }
    element.append(title);
    this.box.append(element);
    const chart = { line, element };
    const stroke = () => colour(line.color || "--plot-1");
    const axis = { stroke: () => colour("--muted"), grid: { stroke: () => colour("--plot-grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const series = [{}, { stroke, width: 1.4, points: { size: 4, filter: alone }, spanGaps: false }];
    chart.plot = new uPlot({
      width: this.width, height: line.height + (last ? 36 : 4), ms: 1,
      tzDate: (ms) => (pageData.clock === "local" ? new Date(ms) : uPlot.tzDate(new Date(ms), "Etc/UTC")),
      padding: [6, 8, last ? 0 : 2, 0], legend: { show: false },
      cursor: { sync: { key: this.sync.key, scales: ["x", null] }, drag: { x: true, y: false, setScale: false }, y: false, points: { size: 6 } },
      select: { show: true, over: true },
      scales: { x: { time: true, range: (_u, min, max) => [min, max] }, y: { range: (_u, min, max) => [min, max] } },
      axes: [{ ...axis, size: last ? 38 : 0, values: last ? clockTicks : (_u, ticks) => ticks.map(() => "") },
             { ...axis, size: 52, values: (_u, ticks) => ticks.map((v) => short(v, ticks[1] - ticks[0])) }],
      series,
      hooks: {
        drawClear: [(u) => this.under(u, chart)],
        draw: [(u) => this.over(u, chart)],
        setSelect: [(u) => this.dragged(u)],
        setCursor: [(u) => { if (u.cursor.event || u === this.lead) this.moved(u); }],
      },
    }, dataOf(line), element);
    chart.plot.over.addEventListener("mouseenter", () => { this.lead = chart.plot; });
    this.charts.push(chart);
    this.rescale(chart, from, to);
  }

  // Behind the line: the episode, the marked part, the rejection band.
  under(u, chart) {
    const { ctx, bbox } = u;
    const at = (ms) => u.valToPos(ms, "x", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const { start_ms, end_ms } = this.episode;
    let [left, right] = [at(start_ms), at(end_ms)];
    const least = 4 * devicePixelRatio;
    if (right - left < least) [left, right] = [(left + right - least) / 2, (left + right + least) / 2];
    ctx.fillStyle = colour("--episode");
    ctx.fillRect(left, bbox.top, right - left, bbox.height);
    if (this.brush) {
      ctx.fillStyle = colour("--focus");
      ctx.globalAlpha = 0.22;
      const [a, b] = this.brush.map(at);
      ctx.fillRect(a - 1, bbox.top, Math.max(3, b - a + 2), bbox.height);
      ctx.globalAlpha = 1;
    }
    for (const [from, to, kind] of chart.line.holes || this.holes) this.hole(u, at(from), at(to), kind);
    const { band, expected, onset } = chart.line;
    if (band) {
      const [a, b] = band.map((v) => u.valToPos(v, "y", true));
      ctx.fillStyle = colour(chart.line.bandColor || "--band");
      // What others make one expect takes the place of what is usual, from the onset on.
      const end = expected && expected.length ? Math.min(at(onset), bbox.left + bbox.width) : bbox.left + bbox.width;
      ctx.fillRect(bbox.left, b, Math.max(0, end - bbox.left), a - b);
    }
    if (expected && expected.length) this.expectation(u, expected);
    ctx.restore();
  }

  // Where readings were expected to lie, event by event: each as wide as half way to its neighbours.
  expectation(u, expected) {
    const x = expected.map(([t]) => u.valToPos(t, "x", true));
    const steps = x.slice(1).map((right, i) => right - x[i]).sort((a, b) => a - b);
    const reach = Math.max(1.5 * devicePixelRatio, (steps[steps.length >> 1] || 0) * 0.75);
    u.ctx.fillStyle = colour("--expected");
    expected.forEach(([, low, high], i) => {
      const left = i ? Math.max((x[i - 1] + x[i]) / 2, x[i] - reach) : x[i] - reach;
      const right = i + 1 < x.length ? Math.min((x[i] + x[i + 1]) / 2, x[i] + reach) : x[i] + reach;
      const [a, b] = [u.valToPos(low, "y", true), u.valToPos(high, "y", true)];
      u.ctx.fillRect(left, b, right - left, Math.max(devicePixelRatio, a - b));
    });
  }

  // What is not known is hatched, silence is a dotted line at the foot: neither looks like a reading.
  hole({ ctx, bbox }, left, right, kind) {
    [left, right] = [Math.max(left, bbox.left), Math.min(right, bbox.left + bbox.width)];
    if (right - left < 1) return;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, bbox.top, right - left, bbox.height);
    ctx.clip();
    ctx.strokeStyle = colour("--muted");
    ctx.lineWidth = devicePixelRatio;
    ctx.beginPath();
    if (kind === "silent") {
      ctx.setLineDash([2 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.moveTo(left, bbox.top + bbox.height - 3 * devicePixelRatio);
      ctx.lineTo(right, bbox.top + bbox.height - 3 * devicePixelRatio);
    } else {
      ctx.globalAlpha = 0.45;
      const step = 8 * devicePixelRatio;
      for (let x = left - bbox.height - (left - bbox.height) % step; x < right; x += step) {
        ctx.moveTo(x, bbox.top + bbox.height);
        ctx.lineTo(x + bbox.height, bbox.top);
      }
    }
    ctx.stroke();
    ctx.restore();
  }

  // On top of it: the threshold, and a mark for every event that was not normal.
  over(u, chart) {
    const { ctx, bbox } = u;
    const { threshold, marked, limits } = chart.line;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const limit of limits || []) {
      if (limit === undefined || limit === null) continue;
      const y = u.valToPos(limit, "y", true);
      ctx.strokeStyle = colour("--muted");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([2 * devicePixelRatio, 2 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.setLineDash([]);
    }
    if (threshold !== undefined && threshold !== null) {
      const y = u.valToPos(threshold, "y", true);
      ctx.strokeStyle = colour("--anomaly");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.fillStyle = colour("--anomaly");
      ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
      ctx.fillText("λ", bbox.left + 4 * devicePixelRatio, y - 4 * devicePixelRatio);
    }
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.font = `${10 * devicePixelRatio}px system-ui, "DejaVu Sans", sans-serif`;
    ctx.fillStyle = colour("--muted");
    for (const t of chart.line.missing || []) ctx.fillText("×", u.valToPos(t, "x", true), bbox.top + bbox.height - 5 * devicePixelRatio);
    for (const [t, v, code] of marked || []) {
      const [sign, name] = MARKS[code] || MARKS[2];
      ctx.fillStyle = colour(name);
      ctx.fillText(sign, u.valToPos(t, "x", true), u.valToPos(v, "y", true));
    }
    ctx.restore();
  }

  dragged(u) {
    const { left, width } = u.select;
    if (width < 3) return;
    const range = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.onBrush(range);
  }

  mark(range) {
    this.brush = range;
    this.redraw();
  }

  moved(u) {
    const { left } = u.cursor;
    if (left === undefined || left < 0) { this.onMove(null); return; }
    const t = u.posToVal(left, "x");
    this.onMove(t, this.charts.map(({ line, plot }) => [line.title || line.name, near(line, t), line.unit, (plot.scales.y.max - plot.scales.y.min) / 30]));
  }

  redraw() { for (const { plot } of this.charts) plot.redraw(false); }
  resize() { for (const { plot } of this.charts) plot.setSize({ width: this.width, height: plot.height }); }
}

// 24 hours, and the date where it changes.
export function clockTicks(_u, ticks, _axis, _space, step) {
  let day = "";
  return ticks.map((t) => {
    const [date, time] = showTime(t, "day").split(" ");
    const label = step >= 86400000 ? date.slice(5) : step < 60000 ? time : time.slice(0, 5);
    const named = step < 86400000 && day && day !== date ? `${label}\n${date}` : label;
    day = date;
    return named;
  });
}

// Where points are not drawn anyway: those that no line goes through.
function alone(u, i, shown) {
  if (shown) return null;
  const v = u.data[i];
  const found = [];
  for (let k = 0; k < v.length; k += 1) if (v[k] !== null && (v[k - 1] ?? null) === null && (v[k + 1] ?? null) === null) found.push(k);
  return found;
}

const dataOf = (line) => [line.t, line.v];

function extent(line, from, to) {
  let low = Infinity;
  let high = -Infinity;
  const take = (v) => { if (v !== null && v < low) low = v; if (v !== null && v > high) high = v; };
  line.t.forEach((t, i) => { if (t >= from && t <= to) take(line.v[i]); });
  if (line.threshold !== undefined && line.threshold !== null) take(line.threshold);
  for (const edge of line.band || []) take(edge);
  for (const [t, below, above] of line.expected || []) if (t >= from && t <= to) { take(below); take(above); }
  if (low > high) return [0, 1];
  const pad = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - pad, high + pad];
}

function near(line, t) {
  let a = 0;
  let b = line.t.length - 1;
  if (b < 0) return null;
  while (b - a > 1) { const middle = (a + b) >> 1; if (line.t[middle] < t) a = middle; else b = middle; }
  return Math.abs(line.t[a] - t) < Math.abs(line.t[b] - t) ? line.v[a] : line.v[b];
}

export const readout = (t, values) => `${showTime(t, "day")}   ${values.map(([name, v, unit, step]) => `${name} ${short(v, step)}${unit && v !== null ? `\u202f${unit}` : ""}`).join("   ")}`;
