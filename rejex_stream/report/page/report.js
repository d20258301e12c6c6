"use strict";
// The plots of the report, by uPlot. All data stands in the page; nothing is ever fetched.
const DATA = JSON.parse(document.getElementById("data").textContent);
const WORDS = {
  n: "normal", a: "anomaly", r: "rejected: ambiguous", u: "rejected: unscorable",
  c: "rejected: constant window", w: "rejected: warm-up",
};
const OUTCOMES = { caught: "✓", review: "◐", missed: "✕" };
const COLOURS = { a: "anomaly", r: "rejected", u: "unscored", c: "unscored" };
const LINES = ["lambda", "lower", "upper", "n", "epoch", "expected", "exact", "paper"];

// ------------------------------------------------------------------------------------ texts
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const utc = (options) => { const format = new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", ...options }); return (s) => format.format(new Date(s * 1000)); };
const date = utc({ day: "numeric", month: "short" });
const hour = utc({ hour: "2-digit", minute: "2-digit" });
const second = utc({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
const short = (value) => (value === null || value === undefined ? "–"
  : Math.abs(value) >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : String(Number(value.toPrecision(4))));
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const element = (tag, className, ...children) => { const made = document.createElement(tag); made.className = className; made.append(...children); return made; };

// ------------------------------------------------------------------------------------- data
function prepare(series) {
  if (series.x) return;
  const length = series.code.length;
  let at = 0;
  series.x = series.time_ms.map((step) => (at += step) / 1000);
  for (const name of LINES) { // runs of [first index, value]
    const values = new Array(length);
    series[name].forEach(([from, value], k, runs) => values.fill(value, from, k + 1 < runs.length ? runs[k + 1][0] : length));
    series[name] = values;
  }
  // The score axis is stretched around λ as it is in calm times, so that the band can be seen
  // beside the outliers; after a fault both are far up.
  const quarter = (values) => { const known = values.filter((v) => v !== null).sort((a, b) => a - b); return known.length ? known[known.length >> 2] : 0; };
  const whole = (i) => series.lower[i] !== null && series.upper[i] !== null;
  const centre = quarter(series.lambda);
  const spread = quarter(series.upper.map((upper, i) => (whole(i) ? upper - series.lower[i] : null)))
    || (series.score.reduce((most, score) => Math.max(most, score), centre) - centre) / 20 || 1;
  const warp = (score) => (score === null ? null : Math.asinh((score - centre) / spread));
  series.warp = warp;
  series.unwarp = (y) => centre + spread * Math.sinh(y);
  series.warped = {
    score: series.score.map(warp), lambda: series.lambda.map(warp),
    lower: series.lower.map((v, i) => (whole(i) ? warp(v) : null)), upper: series.upper.map((v, i) => (whole(i) ? warp(v) : null)),
  };
}

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const mid = (low + high) >> 1; if (xs[mid] < x) low = mid; else high = mid; }
  return x - xs[low] < xs[high] - x ? low : high;
}

// ------------------------------------------------------------------------------------ parts
const stepped = uPlot.paths.stepped({ align: 1 });
const line = (name, width, more = {}) => ({ stroke: () => colour(name), width, points: { show: false }, ...more });

// A line that breaks where events are missing, and shows an event between two gaps as a dot.
function measured(series, name, width) {
  const apart = (xs, i) => xs[i] - xs[i - 1] > 3.5 * series.step_s;
  return line(name, width, {
    gaps: (u, k, from, to, gaps) => {
      const xs = u.data[0], wide = [];
      for (let i = from + 1; i <= to; i++) if (apart(xs, i)) wide.push([u.valToPos(xs[i - 1], "x", true), u.valToPos(xs[i], "x", true)]);
      return [...gaps, ...wide].sort((a, b) => a[0] - b[0]);
    },
    points: {
      show: true, size: 3, width: 0, fill: () => colour(name),
      filter: (u, k) => {
        const xs = u.data[0], ys = u.data[k], alone = [], [from, to] = u.series[0].idxs;
        const broken = (i) => i === 0 || i === xs.length || ys[i - 1] === null || ys[i] === null || apart(xs, i);
        for (let i = from; i <= to; i++) if (ys[i] !== null && broken(i) && broken(i + 1)) alone.push(i);
        return alone;
      },
    },
  });
}

function clipped(u, paint) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.setLineDash([]);
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  paint(ctx, bbox, (x) => u.valToPos(x, "x", true), (y) => u.valToPos(y, "y", true));
  ctx.restore();
}

const shaded = (series, u) => clipped(u, (ctx, box, X) => { // known faults, and what came before the first model
  const half = series.step_s / 2;
  ctx.fillStyle = colour("fault-soft");
  for (const fault of series.faults) { const left = X(fault.from - half); ctx.fillRect(left, box.top, Math.max(X(fault.to + half) - left, 3 * uPlot.pxRatio), box.height); }
  const learned = series.code.search(/[^w]/);
  if (learned === 0 || u.data[0] !== series.x) return;
  const left = X(series.x[0]);
  ctx.fillStyle = colour("grid");
  ctx.fillRect(left, box.top, X(series.x[learned < 0 ? series.x.length - 1 : learned]) - left, box.height);
});

const swaps = (series, u) => clipped(u, (ctx, box, X) => { // another model speaks from here on
  ctx.strokeStyle = colour("faint");
  ctx.lineWidth = uPlot.pxRatio;
  ctx.setLineDash([uPlot.pxRatio, 3 * uPlot.pxRatio]);
  series.epoch.forEach((epoch, i) => {
    if (i === 0 || epoch === series.epoch[i - 1] || epoch === null || series.epoch[i - 1] === null) return;
    const x = X(series.x[i]);
    ctx.beginPath(); ctx.moveTo(x, box.top); ctx.lineTo(x, box.top + box.height); ctx.stroke();
  });
});

// A shape for each kind, not only a colour: triangle, ring, cross.
const marks = (series, values, u) => clipped(u, (ctx, box, X, Y) => {
  const [from, to] = u.series[0].idxs, room = box.width / uPlot.pxRatio / Math.max(1, to - from);
  const size = uPlot.pxRatio * Math.min(5, Math.max(2.1, room * 0.7));
  for (const kind of ["r", "u", "c", "a"]) {
    ctx.strokeStyle = ctx.fillStyle = colour(COLOURS[kind]);
    ctx.lineWidth = 1.4 * uPlot.pxRatio;
    for (let i = from; i <= to; i++) {
      if (series.code[i] !== kind) continue;
      const x = X(series.x[i]), y = values[i] === null ? box.top + box.height - 5 * uPlot.pxRatio : Y(values[i]);
      ctx.beginPath();
      if (kind === "a") { ctx.moveTo(x, y - size * 1.15); ctx.lineTo(x + size * 1.1, y + size * 0.8); ctx.lineTo(x - size * 1.1, y + size * 0.8); ctx.fill(); }
      else if (kind === "r") { ctx.arc(x, y, size, 0, 2 * Math.PI); ctx.stroke(); }
      else { ctx.moveTo(x - size, y - size); ctx.lineTo(x + size, y + size); ctx.moveTo(x + size, y - size); ctx.lineTo(x - size, y + size); ctx.stroke(); }
    }
  }
});

function named(series, u) { // the faults, above the first plot
  const { ctx, bbox } = u, ratio = uPlot.pxRatio, rows = [-1e9, -1e9, -1e9];
  ctx.save();
  ctx.fillStyle = colour("fault");
  ctx.font = `${12 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  for (const fault of series.faults) {
    const at = u.valToPos((fault.from + fault.to) / 2, "x", true), text = `${OUTCOMES[fault.outcome]} ${fault.title}`;
    if (at < bbox.left || at > bbox.left + bbox.width) continue;
    const wide = ctx.measureText(text).width;
    const x = Math.min(Math.max(at - wide / 2, bbox.left), bbox.left + bbox.width - wide);
    const row = rows.findIndex((taken) => x > taken + 12 * ratio);
    if (row < 0) continue;
    rows[row] = x + wide;
    ctx.fillText(text, x, bbox.top - (7 + 14 * row) * ratio);
  }
  ctx.restore();
}

function extent(u, arrays) {
  const [from, to] = u.series[0].idxs;
  let low = Infinity, high = -Infinity;
  for (const values of arrays) for (let i = from; i <= to; i++) {
    const v = values[i];
    if (v !== null && v !== undefined) { if (v < low) low = v; if (v > high) high = v; }
  }
  if (low > high) return [0, 1];
  const pad = (high - low) * 0.08 || Math.abs(high) * 0.08 || 1;
  return [low - pad, high + pad];
}

// ------------------------------------------------------------------------------------ plots
// Each: what it is called, what explains its lines, and what uPlot is told.
function plotsOf(data, series) {
  const single = data.channels.length === 1, { x, warped } = series;
  const rows = Math.min(3, series.faults.length);
  const channels = data.channels.map(({ title, unit }, k) => ({
    name: `channel-${k}`, title: unit ? `${title}, ${unit}` : title, height: single ? 190 : 92, above: k || !rows ? 6 : 14 * rows + 8,
    data: [x, series.values[k]], series: [measured(series, "normal", 1.3)],
    range: (u) => extent(u, [series.values[k]]), ticks: (u, splits) => splits.map(short),
    draw: (u) => { marks(series, series.values[k], u); if (k === 0) named(series, u); },
  }));
  const last = (values) => values.findLast((v) => v !== null) ?? null;
  const share = (text, values) => (last(values) === null ? text : `${text} ${percent(last(values))}`);
  return [
    ...channels,
    {
      name: "score", title: "Score, high is unusual", height: 190,
      keys: [["dash", "ink", "threshold λ"], ["box", "rejected-soft", "rejection band"], ["dot", "faint", "new model"]],
      data: [x, warped.upper, warped.lower, warped.score, warped.lambda],
      series: [line("rejected-soft", 0, { paths: stepped }), line("rejected-soft", 0, { paths: stepped }), measured(series, "normal", 1.1), line("ink", 1.3, { dash: [6, 4], paths: stepped })],
      bands: [{ series: [1, 2], fill: () => colour("rejected-soft") }],
      range: (u) => extent(u, [warped.score, warped.lower, warped.upper]),
      splits: (u, axis, low, high) => [...new Set([0, 1, 2, 3, 4].map((k) => series.warp(Number(series.unwarp(low + (high - low) * (k + 0.3) / 4.6).toPrecision(2)))))],
      ticks: (u, splits) => splits.map((y) => short(Number(series.unwarp(y).toPrecision(3)))),
      under: (u) => swaps(series, u), draw: (u) => marks(series, warped.score, u),
    },
    {
      name: "rate", title: `Rejected, rolling over ${data.window.toLocaleString("en")} events`, height: 170,
      keys: [["line", "rejected", "rolling"], ["line", "ink", share("expected R", series.expected)], ["dash", "anomaly", share("frozen-window bound", series.exact)], ["dot", "faint", share("paper’s bound", series.paper)]],
      data: [x, series.paper, series.exact, series.expected, series.rate],
      series: [line("faint", 1.4, { dash: [2, 4], paths: stepped }), line("anomaly", 1.4, { dash: [7, 4], paths: stepped }), line("ink", 1.4, { paths: stepped }), line("rejected", 2.2)],
      // The paper's bound starts far up while the window is short: there it may leave the plot.
      range: (u) => [0, 1.12 * Math.max(0.01, series.paper[u.series[0].idxs[1]] ?? 0, extent(u, [series.exact, series.rate])[1] / 1.08)],
      ticks: (u, splits) => splits.map((v) => `${Number((100 * v).toPrecision(3))} %`),
    },
  ];
}

const SWATCHES = {
  box: (c) => `<svg class="mark" viewBox="0 0 12 12" aria-hidden="true"><rect width="12" height="12" rx="2" fill="var(--${c})"/></svg>`,
  line: (c) => `<svg width="22" height="8" viewBox="0 0 22 8" aria-hidden="true"><path d="M0 4H22" stroke="var(--${c})" stroke-width="2.4"/></svg>`,
  dash: (c) => `<svg width="22" height="8" viewBox="0 0 22 8" aria-hidden="true"><path d="M0 4H22" stroke="var(--${c})" stroke-width="2" stroke-dasharray="6 4"/></svg>`,
  dot: (c) => `<svg width="22" height="8" viewBox="0 0 22 8" aria-hidden="true"><path d="M0 4H22" stroke="var(--${c})" stroke-width="2" stroke-dasharray="2 4"/></svg>`,
};
function keyOf([kind, name, text]) {
  const key = element("span", "key");
  key.innerHTML = SWATCHES[kind](name); // ours alone; what the data says is added as text
  key.append(text);
  return key;
}

const clock = (u, splits, axis, space, step) => splits.map((t) => (step >= 86400 || t % 86400 === 0 ? date(t) : step < 60 ? second(t) : hour(t)));

// --------------------------------------------------------------------------------- sections
// One run: its plots on one clock and one cursor, and what the pointer and the keys do to them.
function show(root, data) {
  const charts = root.querySelector(".charts"), tip = root.querySelector(".tip"), tabs = root.querySelector(".sensors");
  let series = null, plots = [], strip = null, full = [0, 1], shown = [0, 1];
  const sync = { key: `cursor-${data.name}`, scales: ["x", null], setSeries: false };
  const width = () => Math.max(240, Math.floor(charts.clientWidth));

  function zoom(from, to) {
    const least = 12 * series.step_s, middle = (from + to) / 2;
    if (to - from < least) [from, to] = [middle - least / 2, middle + least / 2];
    const span = Math.min(to - from, full[1] - full[0]);
    from = Math.min(Math.max(from, full[0]), full[1] - span);
    shown = [from, from + span];
    tip.hidden = true;
    for (const plot of plots) plot.setScale("x", { min: shown[0], max: shown[1] });
    markStrip();
  }
  const zoomBy = (factor) => { const middle = (shown[0] + shown[1]) / 2, half = (shown[1] - shown[0]) / 2 * factor; zoom(middle - half, middle + half); };
  const pan = (share) => { const by = (shown[1] - shown[0]) * share; zoom(shown[0] + by, shown[1] + by); };
  const all = () => zoom(...full);

  function dragged(u) {
    const { left, width: wide } = u.select;
    if (wide < 4) return;
    const range = [u.posToVal(left, "x"), u.posToVal(left + wide, "x")];
    if (u !== strip) u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    zoom(...range);
  }
  function markStrip() {
    const [left, right] = shown.map((x) => strip.valToPos(x, "x")), whole = shown[0] <= full[0] && shown[1] >= full[1];
    strip.setSelect({ left: whole ? -9 : left, width: whole ? 0 : right - left, top: 0, height: strip.over.clientHeight }, false);
  }

  function plot(box, made) {
    const axis = { stroke: () => colour("muted"), grid: { stroke: () => colour("grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const last = made.name === "rate";
    const u = new uPlot({
      width: width(), height: made.height + (made.above ?? 6) + (last ? 26 : 0), legend: { show: false }, padding: [made.above ?? 6, 4, last ? 0 : 6, 0],
      tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "Etc/UTC"),
      cursor: { sync, y: false, points: { show: false }, drag: { x: true, y: false, setScale: false, dist: 6 }, bind: { dblclick: () => () => all() } },
      scales: { x: { range: (_u, min, max) => [min, max] }, y: { range: made.range } },
      axes: [{ ...axis, size: last ? 26 : 0, space: 84, values: last ? clock : (_u, splits) => splits.map(() => "") }, { ...axis, size: 50, space: 34, splits: made.splits, values: made.ticks }],
      series: [{}, ...made.series], bands: made.bands,
      hooks: {
        drawClear: [(self) => { shaded(series, self); made.under?.(self); }], draw: [(self) => made.draw?.(self)],
        setSelect: [dragged], setCursor: [(self) => { if (self.cursor.event) tell(self); }],
      },
    }, made.data, box);
    describe(u, made);
    return u;
  }
  function describe(u, made) {
    u.ctx.canvas.dataset.plot = made.name;
    u.ctx.canvas.setAttribute("role", "img");
    u.ctx.canvas.setAttribute("aria-label", `${made.title}: ${series.sensor} over time`);
  }
  function overview(box) {
    const made = { name: "strip", title: "All of the run" };
    const bottom = (u) => clipped(u, (ctx, area, X) => {
      for (const [kind, up] of [["r", 6], ["a", 3]]) {
        ctx.fillStyle = colour(COLOURS[kind]);
        series.x.forEach((x, i) => { if (series.code[i] === kind) ctx.fillRect(X(x) - 0.7, area.top + area.height - up * uPlot.pxRatio, 1.6 * uPlot.pxRatio, 3 * uPlot.pxRatio); });
      }
    });
    const u = new uPlot({
      width: width(), height: 44, legend: { show: false }, padding: [4, 0, 0, 0], cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: false, setScale: false, dist: 6 }, bind: { dblclick: () => () => all() } },
      scales: { x: { range: () => full }, y: { range: (self) => extent(self, [series.values[0]]) } }, axes: [{ show: false }, { show: false }],
      series: [{}, measured(series, "faint", 1)], hooks: { drawClear: [(self) => shaded(series, self)], draw: [bottom], setSelect: [dragged] },
    }, [series.x, series.values[0]], box);
    describe(u, made);
    return u;
  }

  function select(sensor) {
    series = data.series.find((one) => one.sensor === sensor);
    prepare(series);
    for (const old of charts.querySelectorAll("figure")) old.remove();
    for (const old of [...plots, strip]) old?.destroy();
    full = [series.x[0], series.x[series.x.length - 1] + series.step_s];
    const box = element("figure", "strip");
    charts.append(box);
    strip = overview(box);
    plots = plotsOf(data, series).map((made) => {
      const figure = element("figure", "", element("figcaption", "", element("b", "", made.title), element("span", "note", ...(made.keys ?? []).map(keyOf))));
      charts.append(figure);
      return plot(figure, made);
    });
    for (const tab of tabs.querySelectorAll("button")) tab.setAttribute("aria-pressed", String(tab.dataset.sensor === sensor));
    const list = tabs.querySelector("select");
    if (list) list.value = sensor;
    all();
  }

  function tell(u) {
    const { left, top } = u.cursor;
    if (left < 0) { tip.hidden = true; return; }
    const i = nearest(series.x, u.posToVal(left, "x")), code = series.code[i];
    const row = (name, value) => element("div", "row", element("span", "", name), value);
    const word = element("b", "", WORDS[code]);
    word.style.color = colour(COLOURS[code] || "normal");
    const why = series.why[i] ? `. ${series.why[i][0].toUpperCase()}${series.why[i].slice(1)}.` : "";
    tip.replaceChildren(
      element("b", "", `${date(series.x[i])} ${series.step_s < 60 ? second(series.x[i]) : hour(series.x[i])} UTC`),
      ...data.channels.map(({ title, unit }, k) => row(title, series.values[k][i] === null ? "missing" : `${short(series.values[k][i])} ${unit}`)),
      ...(series.score[i] === null ? [] : [row("score", `${short(series.score[i])} (λ ${short(series.lambda[i])})`)]),
      ...(series.rank[i] === null ? [] : [row("rank", `${series.rank[i]} of ${series.n[i]}`)]),
      ...(series.rate[i] === null ? [] : [row("rolling rate", percent(series.rate[i]))]),
      element("p", "", word, why),
    );
    tip.hidden = false;
    const area = charts.getBoundingClientRect(), over = u.over.getBoundingClientRect();
    const x = over.left - area.left + left, y = over.top - area.top + top;
    const beside = x + 18 + tip.offsetWidth > area.width ? x - 18 - tip.offsetWidth : x + 18;
    tip.style.transform = `translate(${Math.max(0, Math.min(beside, area.width - tip.offsetWidth))}px, ${Math.max(0, y - tip.offsetHeight / 2)}px)`;
  }

  if (data.series.length > 6) { // too many for a row of buttons
    const list = element("select", "", ...data.series.map(({ sensor }) => new Option(sensor, sensor)));
    list.setAttribute("aria-label", "Sensor");
    list.addEventListener("change", () => select(list.value));
    tabs.append(list);
  } else if (data.series.length > 1) {
    for (const { sensor } of data.series) { const tab = element("button", "", sensor); tab.dataset.sensor = sensor; tabs.append(tab); }
    tabs.classList.add("tabs");
  }
  charts.addEventListener("mouseleave", () => { tip.hidden = true; });
  charts.addEventListener("keydown", (event) => {
    const act = { ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25), "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), 0: all, Escape: () => { tip.hidden = true; } }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  root.addEventListener("click", (event) => {
    const { dataset } = event.target.closest("button") ?? { dataset: {} };
    if (dataset.sensor !== undefined && dataset.sensor !== series.sensor && data.series.some(({ sensor }) => sensor === dataset.sensor)) select(dataset.sensor);
    if (dataset.zoom !== undefined) { if (Number(dataset.zoom)) zoomBy(Number(dataset.zoom)); else all(); }
    if (dataset.pan !== undefined) pan(Number(dataset.pan));
    if (dataset.from !== undefined) {
      const from = Number(dataset.from) / 1000, to = Number(dataset.to) / 1000, margin = Math.max((to - from) * 0.6, 40 * series.step_s);
      zoom(from - margin, to + margin);
      charts.scrollIntoView({ block: "start" });
    }
  });
  new ResizeObserver(() => {
    for (const u of [...plots, strip]) if (u.width !== width()) u.setSize({ width: width(), height: u.height });
    markStrip();
  }).observe(charts);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const u of [...plots, strip]) u.redraw(false); });
  select(data.series[data.first].sensor);
}

for (const data of DATA) show(document.getElementById(data.name), data);
