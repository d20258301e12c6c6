// Cases, one after the other on one page: plots, the claim, a verdict, and on to the next, which was
// fetched while this one was looked at.

import { $, $$, asking, call, drawn, every, newId, onKeys, plural, readData, showCounts, showKeys, showRange, showTimes, takeToast, toast, undrawn, pageData } from "./shell.js";
import { PlotStack, readout } from "./plots.js";


// Pages that were fetched before they were asked for, for a minute.
const pages = new Map();
const FRESH_MS = 60000;
function fetchPage(id, query) {
  const known = pages.get(id);
  if (known && Date.now() - known.at < FRESH_MS) return known.text;
  const text = fetch(`/episode/${id}${query}`).then((response) => {
    if (!response.ok) throw new Error(`status ${response.status}`);
    return response.text();
  });
  pages.set(id, { at: Date.now(), text });
  return text;
}
let current = null;
async function turnTo(id, query, fresh = false) {
  undrawn();
  if (fresh) pages.delete(id);
  const address = `/episode/${id}${query}`;
  let text;
  try { text = await fetchPage(id, query); } catch { location.href = address; return; }
  pages.clear();
  const found = new DOMParser().parseFromString(text, "text/html");
  if (!found.getElementById("episode-data")) { location.href = address; return; }
  current.end();
  $("#main").replaceWith(document.adoptNode(found.getElementById("main")));
  $("#episode-data").textContent = found.getElementById("episode-data").textContent;
  document.title = found.title;
  history.pushState({}, "", address);
  scrollTo(0, 0);
  showTimes();
  current = begin();
}
addEventListener("popstate", () => location.reload());
addEventListener("pagehide", () => current.release());
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

function begin() {
const data = readData("episode-data");
const base = `/api/episodes/${encodeURIComponent(data.id)}`;
const viewQuery = (() => {
  const parts = new URLSearchParams({ tab: data.view.tab });
  if (data.view.q) parts.set("q", data.view.q);
  if (data.view.sort) parts.set("sort", data.view.sort);
  return `?${parts}`;
})();
const workable = ["open", "needs_second", "disputed"].includes(data.status);
let decided = false;
let ended = false;

// ---------------------------------------------------------------------------------------- plots
const full = { from: data.from_ms, to: data.to_ms };
let view = { ...full };
let moved = false;
let latest = null;
let brush = null;
let asked = 0;

// With many channels those that speak are shown; a pinned one comes first, for this sensor.
const MOST_CHANNELS = 6;
const pinsKey = `rejex.pins.${data.sensor}`;
const pinned = new Set(JSON.parse(localStorage.getItem(pinsKey) || "[]"));
let everyChannel = false;
function pin(name) {
  if (!pinned.delete(name)) pinned.add(name);
  localStorage.setItem(pinsKey, JSON.stringify([...pinned]));
  paint();
  for (const chart of stack.charts) if (chart.line.name === name) chart.element.querySelector("button")?.focus();
}

const stack = new PlotStack($("#plots"), {
  episode: data,
  onPin: pin,
  onBrush: (range) => markRange(range),
  onMove: (t, values) => { $("#readout").textContent = t === null ? "" : readout(t, values); },
});

async function load() {
  if (ended) return;
  const parts = `from=${Math.round(view.from)}&to=${Math.round(view.to)}&px=${stack.width}`;
  const turn = (asked += 1);
  try {
    const own = await call(`${base}/series?${parts}`);
    if (turn !== asked || ended) return; // a later question is on its way
    latest = own;
    paint();
  } catch (error) {
    if (!latest) {
      const failed = document.createElement("p");
      failed.className = "problem";
      failed.textContent = `The series cannot be shown: ${error.message}`;
      $("#plots").replaceChildren(failed);
    }
  }
}

function paint() {
  if (!latest) return;
  const lines = [];
  for (const kind of ["unknown", "silent"]) $(`#legend-${kind}`).hidden = !latest.holes.some((hole) => hole[2] === kind);
  $("#legend-missing").hidden = !latest.channels.some((line) => line.missing.length);
  stack.holes = latest.holes;
  const channels = latest.channels.map((line, i) => ({ ...line, index: i })).filter((line) => line.t.length || line.missing.length);
  const place = (line) => (pinned.has(line.name) ? -1 : data.ranked.indexOf(line.index));
  channels.sort((a, b) => place(a) - place(b));
  const many = channels.length > MOST_CHANNELS;
  const first = many && !everyChannel ? channels.slice(0, Math.max(MOST_CHANNELS, pinned.size)) : channels;
  const rest = $("#rest");
  rest.hidden = !many;
  rest.setAttribute("aria-expanded", String(everyChannel));
  rest.textContent = everyChannel ? `Only the ${MOST_CHANNELS} channels it is based on most` : `Show the other ${channels.length - first.length} channels`;
  $("#plots").classList.toggle("many", many);
  const narrow = stack.width < 520;
  first.forEach((line, i) => {
    const told = data.shown[line.name] || {};
    lines.push({ ...line, title: told.label || line.name, unit: told.unit || "", limits: [told.low, told.high], band: line.usual, bandColor: "--usual", height: i === 0 ? (narrow ? 120 : 150) : channels.length > 3 ? 58 : 78,
      pinned: many ? pinned.has(line.name) : undefined });
  });
  if (latest.score && latest.score.t.length) {
    const band = [data.score_lower, data.score_upper];
    lines.push({ ...latest.score, name: "score", title: "score", height: narrow ? 96 : 120, color: "--plot-2", marked: latest.marked,
      threshold: data.threshold, band: band.every((v) => v !== null) ? band : null, note: "◆ rejected  ▲ anomaly" });
  }
  if (!lines.length) {
    const nothing = document.createElement("p");
    nothing.className = "soft";
    nothing.textContent = "No readings around this event are known: the pipeline sends them along as context_events.";
    $("#plots").replaceChildren(nothing);
  } else {
    stack.draw(lines, view.from, view.to);
  }
  if ($("#plots").dataset.loading !== undefined) { delete $("#plots").dataset.loading; drawn(); ahead(data.following); }
}

function ahead(id) { if (id) fetchPage(id, viewQuery).catch(() => {}); }

let timer = 0;
function look(from, to) {
  const least = 2000;
  if (to - from < least) [from, to] = [(from + to - least) / 2, (from + to + least) / 2];
  view = { from, to };
  moved = true;
  for (const chart of stack.charts) stack.rescale(chart, from, to);
  clearTimeout(timer);
  timer = setTimeout(load, 80);
}
const pan = (share) => look(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));
function zoom(factor) {
  const middle = (view.from + view.to) / 2;
  const half = ((view.to - view.from) / 2) * factor;
  look(middle - half, middle + half);
}
function reset() { view = { ...full }; moved = false; load(); }

// --------------------------------------------------------------------------------- marked range
const inside = () => data.event_times.filter((t) => !brush || (t >= brush[0] && t <= brush[1]));
function markRange(range) {
  brush = range && [Math.ceil(range[0]), Math.floor(range[1])];
  if (brush && inside().length === data.n_events) brush = null;
  stack.mark(brush);
  const scope = $("#scope");
  if (!scope) return;
  const count = inside().length;
  scope.classList.toggle("part", Boolean(brush));
  scope.textContent = !brush
    ? `Whole case: ${plural(data.n_events, "event")}`
    : count ? `Marked part: ${count} of ${plural(data.n_events, "event")}, ${showRange(inside()[0], inside()[count - 1])}`
      : "Marked part: it holds no event of the case";
}
function shrink(fromStart) {
  const kept = inside();
  if (kept.length < 2) return;
  const part = fromStart ? kept.slice(1) : kept.slice(0, -1);
  markRange([part[0], part[part.length - 1]]);
}

// ---------------------------------------------------------------------------------------- claim
let lease = null;
let claiming = false; // a claim is on its way: the console may hold it for us already
const say = (text) => { const held = $("#held"); held.textContent = text; held.hidden = !text; };
const enable = (on) => { for (const button of $$("#actions [data-act]")) if (!/^(undo|help|claim)$/.test(button.dataset.act)) button.disabled = !on; };
async function claim() {
  if (claiming || !workable || pageData.role === "viewer" || decided) return;
  claiming = true;
  try {
    lease = await call(`${base}/claim`, {});
    say("");
    enable(true);
  } catch (error) {
    lease = null;
    say(`${error.message} You can look, but not decide.`);
    enable(false);
  }
  claiming = false;
  showLease();
}
const renew = async () => { if (lease && !document.hidden) await claim(); };
function release() {
  if (!(lease || claiming) || decided) return;
  lease = null;
  claiming = false;
  fetch(`${base}/release`, { method: "POST", keepalive: true, headers: { "content-type": "application/json" }, body: "{}" }).catch(() => {});
}
function showLease() {
  const text = $("#lease");
  const button = $("#claim");
  if (button) button.firstChild.textContent = lease ? "Release " : "Claim ";
  if (!lease) { text.textContent = ""; return; }
  const left = lease.until_ms - Date.now() - skew;
  text.classList.toggle("soon", left < 60000);
  text.textContent = left > 0 ? `yours for ${Math.floor(left / 60000)}:${String(Math.floor((left % 60000) / 1000)).padStart(2, "0")}` : "your claim has run out";
  if (left <= 0) { lease = null; enable(false); say("Your claim has run out. Claim it again to decide."); }
}
const skew = pageData.now_ms - Date.now();
async function toggleClaim() {
  if (lease) { release(); enable(false); say("You released this case. Claim it again to decide."); showLease(); } else await claim();
}

// -------------------------------------------------------------------------------------- verdict
const extras = () => ({
  tags: $$("input[name=tag]:checked").map((input) => input.value),
  note: $("#note")?.value.trim() ?? "",
  fault_code: $("#fault")?.value.trim() ?? "",
});
let busy = false;
async function send(path, body) {
  if (busy || $("#actions [data-act=normal]")?.disabled !== false) return;
  busy = true;
  enable(false);
  undrawn();
  const part = brush;
  try {
    const done = await call(path, { request_id: newId(), ...body, view: data.view });
    decided = true;
    showCounts(done.counts);
    toast(done.message, { undo });
    if (part) await turnTo(data.id, viewQuery, true);
    else if (done.next) await turnTo(done.next, viewQuery);
    else location.href = `/queue${viewQuery}`;
  } catch (error) {
    busy = false;
    enable(true);
    drawn();
    toast(error.message, { bad: true });
    if (error.code === "leased") await claim();
  }
}
const together = () => $$("[data-case]:checked").map(({ dataset }) => ({ id: dataset.case, n_events: +dataset.n, status: dataset.status }));
const decide = (verdict) => send("/api/labels", {
  verdict, targets: [{ id: data.id, n_events: data.n_events, status: data.status }, ...(brush ? [] : together())], span_ms: brush || null, ...extras(),
});
async function undo() {
  try {
    const done = await call("/api/undo", { request_id: newId() });
    decided = true;
    showCounts(done.counts);
    toast(done.message);
    await turnTo(done.episodes[0], viewQuery, true);
  } catch (error) {
    toast(error.message, { bad: error.code !== "nothing" });
  }
}
const go = async (id) => { if (id && !busy) { release(); await turnTo(id, viewQuery); } };

// --------------------------------------------------------------------------------------- wiring
onKeys({
  anomaly: () => decide("anomaly"), normal: () => decide("normal"), unsure: () => decide("unsure"),
  undo, claim: toggleClaim, help: showKeys,
  next: () => go(data.following), previous: () => go(data.previous),
  back: () => { if (brush) markRange(null); else { release(); location.href = `/queue${viewQuery}`; } },
  pan_left: () => pan(-0.25), pan_right: () => pan(0.25), zoom_in: () => zoom(0.5), zoom_out: () => zoom(2), reset,
  mark_start: () => shrink(true), mark_end: () => shrink(false), whole: () => markRange(null),
  tags: () => $("input[name=tag]")?.focus(),
  note: () => $("#note")?.focus(),
});
$("#rest").addEventListener("click", () => { everyChannel = !everyChannel; paint(); });
$("#assigned")?.addEventListener("change", async (event) => {
  const done = await asking("/api/assign", { episodes: [data.id, ...together().map(({ id }) => id)], to: event.target.value });
  if (done) toast(`${done.message}.`);
});
let commentId = newId(); // of what is being written: a second try adds nothing
$("#comment")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = $("#comment-text");
  const said = await asking(`${base}/comment`, { request_id: commentId, text: field.value });
  if (!said) return;
  commentId = newId();
  field.value = "";
  const line = document.createElement("li");
  const who = document.createElement("bdi");
  const quote = document.createElement("q");
  who.textContent = said.by;
  quote.textContent = said.text;
  line.append("just now ", who, " wrote ", quote);
  $("#history").prepend(line);
  $("#nobody")?.remove();
});
$("#copy-link")?.addEventListener("click", async () => {
  const link = `${location.origin}/episode/${data.id}`;
  try { await navigator.clipboard.writeText(link); toast("Link copied."); } catch { toast(link); }
});
// The plots: a wheel with Ctrl zooms, two fingers pan by drag marking instead.
$("#plots").addEventListener("wheel", (event) => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8);
}, { passive: false });

load();
claim();
const ticking = setInterval(showLease, 1000);
const stops = [every(45000, renew)];
// What arrives later shows up by itself; a view that was moved stays where it is.
async function follow() {
  if (ended) return;
  if (!latest) return load();
  const found = await call(`${base}/series?from=${full.from}&to=${full.from}&px=10`).catch(() => null);
  if (!found) return;
  [full.from, full.to] = found.around;
  if (!moved) view = { ...full };
  await load();
}
stops.push(every(4000, follow));
takeToast(undo);
return { release, end() { ended = true; clearInterval(ticking); clearTimeout(timer); for (const stop of stops) stop(); stack.destroy(); } };
}

current = begin();
