// What is wrong now, the list of incidents, and one of them: kept up to date in place.

import { $, $$, Refused, ask, asking, call, drawn, every, newId, onKeys, pageData, plural, poll, readData, showCounts, showKeys, showTime, showTimes, takeToast, toast, toastNext } from "./shell.js";
import { PlotStack, readout } from "./plots.js";

const data = readData("incident-data");
const kinds = { anomaly: "fault", known: "known_fault", normal: "new_normal" };
let seen = null;
let given = null; // the request that is under way: repeated, it answers nothing again

// What was typed and what was refused stays; all else is as the store has it now.
async function refresh() {
  const response = await fetch(location.href).catch(() => null);
  if (!response || !response.ok) return;
  const found = new DOMParser().parseFromString(await response.text(), "text/html");
  const focused = document.activeElement?.getAttribute("href");
  const left = new Set($$("[data-member]:not(:checked)").map((box) => box.dataset.member));
  for (const box of $$("[data-member]", found)) box.toggleAttribute("checked", !left.has(box.dataset.member));
  for (const id of ["head", "pending", "together", "fresh", "timeline"]) {
    const here = document.getElementById(id), there = found.getElementById(id);
    if (here && there && here.innerHTML !== there.innerHTML) here.replaceWith(document.adoptNode(there));
  }
  const now = JSON.parse(found.getElementById("incident-data")?.textContent || "{}");
  if (focused && document.activeElement === document.body) $(`a[href="${CSS.escape(focused)}"]`)?.focus();
  const asks = $("#actions"), still = found.getElementById("actions");
  if (!asks && still) location.reload();
  if (asks && !still) asks.remove();
  for (const choice of still ? $$("[data-choice]", asks || document) : []) {
    if (!$(`[data-choice=${choice.dataset.choice}]`, still)) choice.remove();
  }
  if (now.version !== data.version) given = null;
  const grew = now.end_ms !== data.end_ms;
  Object.assign(data, now);
  showTimes();
  if (grew) paint();
}

async function answer(action) {
  const button = $(`[data-act=${action}][data-kind]`), refused = $("#refused"), note = $("#note");
  if (data.id && !button) toast("It takes no such answer here.", { bad: true });
  if (!button || button.disabled) return;
  const kind = kinds[action], others = {};
  for (const box of $$("[data-member]:checked")) others[box.dataset.member] = Number(box.dataset.version);
  if (kind === "new_normal" && !(await ask("Is this the new normal?",
    `${Object.keys(others).length ? `For ${plural(Object.keys(others).length + 1, "stream")}. ` : ""}${data.held ? `The reference is made of ${plural(data.events, "reading")} measured since ${showTime(data.start_ms, "day")}, of which ${data.anomalies.toLocaleString("en")} were called anomalies.` : "The reference is made again of what is measured from now on."} ${data.passed_limit ? "The limit stays: values beyond it go on raising incidents." : "Values like these raise nothing any more."} Once the pipeline has read the answer it cannot be taken back.`,
    "Yes, the new normal"))) return;
  if (!given || given.kind !== kind || given.note !== note.value || JSON.stringify(given.others) !== JSON.stringify(others)) {
    given = { request_id: newId(), incident: data.id, version: data.version, kind, note: note.value, others };
  }
  const buttons = $$("[data-kind]:enabled");
  for (const one of buttons) one.disabled = true;
  refused.hidden = true;
  try {
    toast((await call("/api/incidents/answer", given)).message, { undo: withdraw });
    note.value = "";
    given = null;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (error.status) given = null;
    refused.textContent = error.message;
    refused.hidden = false;
  } finally {
    for (const one of buttons) one.disabled = false;
  }
  await refresh();
}
async function withdraw() {
  if (!$("#withdraw")) await refresh();
  const command = $("#withdraw")?.dataset.command;
  if (!command) { toast("No answer can be taken back any more.", { bad: true }); return; }
  const done = await asking("/api/incidents/withdraw", { command });
  if (!done) { await refresh(); return; }
  toastNext(done.message); // the question is asked again, by the page again
  location.reload();
}

// ---------------------------------------------------------------------------------------- plots
const box = $("#plots");
const stack = box && new PlotStack(box, {
  episode: data, onBrush: () => {}, onPin: () => {},
  onMove: (t, values) => { $("#readout").textContent = t === null ? "" : readout(t, values); },
});
const MOST_CHANNELS = 6;
let everyChannel = false;
$("#rest")?.addEventListener("click", () => { everyChannel = !everyChannel; paint(); });
async function paint() {
  if (!stack) return;
  const id = encodeURIComponent(data.id);
  const found = await call(`/api/incident-readings/${id}?from=${data.from_ms}&to=${data.to_ms}&px=${stack.width}`).catch(() => null);
  if (!found) return;
  const lines = [], scores = [];
  stack.holes = found.length === 1 ? found[0].holes : [];
  for (const one of found) {
    const many = found.length > 1 ? `${one.sensor}: ` : "";
    one.channels.forEach((line) => {
      const told = data.shown[line.name] || {};
      lines.push({ ...line, sensor: one.sensor, channel: line.name, name: many + line.name, title: many + (told.label || line.name), unit: told.unit || "", limits: [told.low, told.high], height: 96,
        band: line.usual, bandColor: "--usual", holes: one.holes });
    });
    if (one.score && one.score.t.length) scores.push({ ...one.score, sensor: one.sensor, name: `${many}score`, title: `${many}score`, height: 80, color: "--plot-2", marked: one.marked, holes: [], note: "◆ rejected  ▲ anomaly" });
  }
  // Those that speak come first, then those that are far from what they read before.
  const place = ({ sensor, channel }) => data.ranked.findIndex(([of, name]) => of === sensor && name === channel) + 1 || Infinity;
  lines.sort((a, b) => place(a) - place(b) || 0);
  const rest = $("#rest"), many = lines.length - MOST_CHANNELS;
  rest.hidden = many <= 0;
  rest.setAttribute("aria-expanded", String(everyChannel));
  rest.textContent = everyChannel ? "Only the channels it is based on most" : `Show the other ${many} channels`;
  if (!everyChannel) lines.splice(MOST_CHANNELS);
  const shown = new Set(lines.map((line) => line.sensor));
  lines.push(...scores.filter((line) => everyChannel || !lines.length || shown.has(line.sensor)));
  if (lines.length) stack.draw(lines, data.from_ms, data.to_ms);
  delete box.dataset.loading;
}
// A clear fault rejects nothing: its readings are read from the input, step by step.
async function load() {
  const line = $("#loading");
  if (!line) return;
  const missing = () => (data.known < data.events ? `The readings of ${data.known.toLocaleString("en")} of ${plural(data.events, "event")} are known here.` : "");
  for (let turn = 0; turn < 12 && data.can_load && data.known < data.events; turn += 1) {
    line.textContent = `${missing()} Reading the input…`;
    const found = await call(`/api/incident-readings/${encodeURIComponent(data.id)}`, {}).catch((error) => ({ cut: error.message, new: 0 }));
    if (found.known !== undefined) Object.assign(data, { known: found.known, events: found.events });
    if (found.new) await paint();
    if (found.cut || !found.new) { line.textContent = `${missing()} ${found.cut ? `${found.cut}.` : ""}`; return; }
  }
  line.textContent = missing();
}

$("#seen")?.addEventListener("click", async (event) => {
  if (await asking("/api/incidents/seen", { request_id: newId(), incident: data.id })) { event.target.disabled = true; await refresh(); }
});
for (const field of $$("[data-care]")) field.addEventListener("change", async () => {
  const name = field.dataset.care, given = name === "to" ? field.value : Number(field.value);
  if (name !== "to" && field.value === "") return;
  const done = await asking("/api/incidents/care", { incident: data.id, [name]: given, why: $("#why").value });
  if (!done && name !== "to") { field.value = ""; $("#why").focus(); }
  if (done) { toast(done.message); await refresh(); }
});
// Times are typed in the clock that the page shows.
const typedMs = (text) => (pageData.clock === "local" ? new Date(text) : new Date(`${text}Z`)).getTime();
$("#plan")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target, { pipeline, stream, why, from, until } = Object.fromEntries(new FormData(form));
  const done = await asking("/api/incidents/plan",
    { request_id: newId(), pipeline, stream: stream.trim(), why, from_ms: typedMs(from), until_ms: typedMs(until) });
  if (done) { toast(done.message); form.reset(); await refresh(); }
});
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-cancel]");
  if (!button) return;
  const done = await asking("/api/incidents/cancel", { request_id: newId(), command: button.dataset.cancel });
  if (done) { toast(done.message); await refresh(); }
});
let commentId = newId();
$("#comment")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = $("#comment-text");
  const done = await asking("/api/incidents/seen", { request_id: commentId, incident: data.id, text: field.value });
  if (!done) return;
  commentId = newId();
  field.value = "";
  const item = document.createElement("li"), who = document.createElement("bdi"), quote = document.createElement("q");
  who.textContent = done.by;
  quote.textContent = done.text;
  item.append("just now ", who, " wrote ", quote);
  $("#comments").prepend(item);
});

const rows = () => $$("a[data-row]");
function step(by) {
  const all = rows();
  const at = all.indexOf(document.activeElement);
  all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
}

onKeys({
  help: showKeys,
  anomaly: () => answer("anomaly"),
  known: () => answer("known"),
  normal: () => answer("normal"),
  undo: withdraw,
  note: () => $("#note")?.focus(),
  filter: () => $("#q")?.focus(),
  next: () => step(1),
  previous: () => step(-1),
  back: () => { if (data.id) location.href = "/incidents"; },
  refresh,
});
drawn();
takeToast();
paint().then(load);
every(3000, async () => {
  const found = await poll();
  if (!found) return;
  showCounts(found.counts);
  if (found.version !== seen) await refresh();
  seen = found.version;
});
