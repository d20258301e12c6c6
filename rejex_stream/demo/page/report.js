"use strict";
// One section of the report: its plots, what the pointer and the keys do to them.
function show(root, data) {
  const view = { stream: null, x0: 0, x1: 1, full: [0, 1], hover: null, drag: null };
  const charts = root.querySelector(".charts"), tip = root.querySelector(".tip");
  const canvas = (name) => root.querySelector(`canvas[data-plot="${name}"]`);
  const single = data.channels.length === 1;
  const labels = 14 * Math.min(3, Math.max(1, ...data.streams.map((s) => s.faults.length))) + 4; // above the first plot
  const plots = [
    ...data.channels.map((channel, k) => new Plot(canvas("channel-" + k), (single ? 200 : 92) + (k ? 0 : labels), view, paintSeries(k, k === 0), { top: k ? 6 : 6 + labels })),
    new Plot(canvas("score"), 190, view, paintScore),
    new Plot(canvas("rate"), 170, view, paintRate),
    new Plot(canvas("days"), 106, view, paintDays(data.budget), { axis: true }),
  ];
  const strip = new Plot(canvas("strip"), 44, view, paintStrip, { bare: true });
  let queued = false;
  const redraw = () => {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => { queued = false; for (const plot of [...plots, strip]) plot.draw(); });
  };
  const zoom = (x0, x1) => {
    const [low, high] = view.full, least = 12 * view.stream.step_s;
    if (x1 - x0 < least) { const mid = (x0 + x1) / 2; x0 = mid - least / 2; x1 = mid + least / 2; }
    const span = Math.min(x1 - x0, high - low);
    view.x0 = Math.min(Math.max(x0, low), high - span); view.x1 = view.x0 + span;
    hide(); redraw();
  };
  const zoomBy = (factor) => { const mid = (view.x0 + view.x1) / 2, half = (view.x1 - view.x0) / 2 * factor; zoom(mid - half, mid + half); };
  const pan = (share) => { const by = (view.x1 - view.x0) * share; zoom(view.x0 + by, view.x1 + by); };
  const hide = () => { view.hover = null; tip.hidden = true; };

  function select(key) {
    const stream = view.stream = data.streams.find((s) => s.key === key);
    if (!stream.x) prepare(stream);
    view.full = [stream.x[0], stream.x[stream.x.length - 1] + stream.step_s];
    zoom(...view.full);
    for (const tab of root.querySelectorAll(".tabs button")) tab.setAttribute("aria-pressed", String(tab.dataset.stream === key));
    for (const plot of plots) plot.canvas.setAttribute("aria-label", `${plot.canvas.dataset.title} of ${key} over time; every verdict is in verdicts.jsonl`);
  }

  function tell(event) {
    const { stream, hover: i } = view;
    const when = new Date(stream.start_ms + stream.x[i] * 1000);
    tip.replaceChildren();
    const line = (tag, ...parts) => { const el = tip.appendChild(document.createElement(tag)); el.append(...parts); return el; };
    const row = (name, value) => { const el = line("div"); el.className = "row"; const a = document.createElement("span"); a.textContent = name; el.append(a, value); };
    line("b", `${date.format(when)} ${hour.format(when)} UTC`);
    data.channels.forEach((channel, k) => row(channel.title, stream.values[k][i] === null ? "missing" : `${short(stream.values[k][i])} ${channel.unit}`));
    if (stream.score[i] !== null) row("score", `${short(stream.score[i])} (λ ${short(stream.lambda[i])})`);
    if (stream.rank[i] >= 0) row("rank", `${stream.rank[i]} of ${stream.n[i]}`);
    if (stream.rate[i] !== null) row("rolling rate", percent(stream.rate[i]));
    const verdict = line("p"), word = document.createElement("b");
    word.textContent = WORDS[stream.code[i]];
    word.style.color = ink[COLOURS[stream.code[i]] || "normal"];
    verdict.append(word, stream.why[i] ? ". " + stream.why[i][0].toUpperCase() + stream.why[i].slice(1) + "." : "");
    tip.hidden = false;
    const box = charts.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const left = x + 18 + tip.offsetWidth > box.width ? x - 18 - tip.offsetWidth : x + 18;
    tip.style.transform = `translate(${Math.max(0, Math.min(left, box.width - tip.offsetWidth))}px, ${Math.max(0, y - tip.offsetHeight / 2)}px)`;
  }

  for (const plot of plots) {
    const { canvas: el } = plot;
    const where = (event) => Math.min(Math.max(plot.at(event.clientX - el.getBoundingClientRect().left), view.x0), view.x1);
    el.addEventListener("pointerdown", (event) => { view.drag = { from: where(event), to: where(event), moved: false, px: event.clientX }; el.setPointerCapture(event.pointerId); });
    el.addEventListener("pointermove", (event) => {
      const x = where(event);
      if (view.drag) {
        view.drag.to = x; view.drag.moved ||= Math.abs(event.clientX - view.drag.px) > 6;
        if (view.drag.moved) { hide(); redraw(); return; }
      }
      const { x: xs } = view.stream, at = firstAtOrAfter(xs, x);
      view.hover = at > 0 && (at === xs.length || x - xs[at - 1] < xs[at] - x) ? at - 1 : at;
      tell(event); redraw();
    });
    const end = () => { const drag = view.drag; view.drag = null; if (drag && drag.moved) zoom(Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)); redraw(); };
    el.addEventListener("pointerup", end);
    el.addEventListener("pointercancel", () => { view.drag = null; redraw(); });
    el.addEventListener("pointerleave", () => { if (!view.drag) { hide(); redraw(); } });
    el.addEventListener("dblclick", () => zoom(...view.full));
  }
  let held = false;
  const move = (event) => { const mid = strip.at(event.clientX - strip.canvas.getBoundingClientRect().left), half = (view.x1 - view.x0) / 2; zoom(mid - half, mid + half); };
  strip.canvas.addEventListener("pointerdown", (event) => { held = true; strip.canvas.setPointerCapture(event.pointerId); move(event); });
  strip.canvas.addEventListener("pointermove", (event) => { if (held) move(event); });
  strip.canvas.addEventListener("pointerup", () => { held = false; });
  strip.canvas.addEventListener("pointercancel", () => { held = false; });
  charts.addEventListener("keydown", (event) => {
    const act = { ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25), "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), 0: () => zoom(...view.full), Escape: hide }[event.key];
    if (act && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); act(); redraw(); }
  });
  root.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.stream && button.dataset.at === undefined) select(button.dataset.stream);
    if (button.dataset.zoom) ({ in: () => zoomBy(0.5), out: () => zoomBy(2), all: () => zoom(...view.full) })[button.dataset.zoom]();
    if (button.dataset.at !== undefined) {
      if (view.stream.key !== button.dataset.stream) select(button.dataset.stream);
      const from = (Number(button.dataset.at) - view.stream.start_ms) / 1000, to = (Number(button.dataset.to) - view.stream.start_ms) / 1000;
      const margin = Math.max((to - from) * 0.6, 40 * view.stream.step_s);
      zoom(from - margin, to + margin);
      charts.scrollIntoView({ block: "start" });
    }
  });
  new ResizeObserver(redraw).observe(charts);
  dark.addEventListener("change", () => { readColours(); redraw(); });
  select(data.streams[Number(root.dataset.first) || 0].key);
}

readColours();
for (const data of DATA) show(document.getElementById(data.name), data);
