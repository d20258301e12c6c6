// Incidents: the list and one of them, kept up to date in place; the one question, and what it did.

import { $, $$, Refused, call, every, newId, onKeys, poll, readData, showCounts, showKeys, showTimes, toast } from "./shell.js";

const data = readData("incident-data");
const kinds = { anomaly: "fault", normal: "new_normal" };
let seen = null;
let given = null; // the request that is under way: said again, it says nothing new

// What was typed and what was refused stays; all else is as the store has it now.
async function refresh() {
  const response = await fetch(location.href).catch(() => null);
  if (!response || !response.ok) return;
  const found = new DOMParser().parseFromString(await response.text(), "text/html");
  const focused = document.activeElement?.getAttribute("href");
  for (const id of ["head", "fresh", "timeline"]) {
    const here = document.getElementById(id), there = found.getElementById(id);
    if (here && there && here.innerHTML !== there.innerHTML) here.replaceWith(document.adoptNode(there));
  }
  const now = JSON.parse(found.getElementById("incident-data")?.textContent || "{}");
  if (focused && document.activeElement === document.body) $(`a[href="${CSS.escape(focused)}"]`)?.focus();
  const asks = $("#actions"), still = found.getElementById("actions");
  if (!asks && still) location.reload();
  if (asks && !still) asks.remove();
  for (const button of still ? $$("[data-kind]", asks || document) : []) {
    if (!$(`[data-kind=${button.dataset.kind}]`, still)) button.closest("div").remove();
  }
  if (now.version !== data.version) given = null;
  data.version = now.version;
  showTimes();
}

async function say(action) {
  const button = $(`[data-act=${action}][data-kind]`), refused = $("#refused"), note = $("#note");
  if (!button || button.disabled) return;
  const kind = kinds[action];
  if (!given || given.kind !== kind || given.note !== note.value) {
    given = { request_id: newId(), incident: data.id, version: data.version, kind, note: note.value };
  }
  const buttons = $$("[data-kind]");
  for (const one of buttons) one.disabled = true;
  refused.hidden = true;
  try {
    toast((await call("/api/incidents/answer", given)).message);
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

const rows = () => $$("a[data-row]");
function step(by) {
  const all = rows();
  const at = all.indexOf(document.activeElement);
  all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
}

onKeys({
  help: showKeys,
  anomaly: () => say("anomaly"),
  normal: () => say("normal"),
  note: () => $("#note")?.focus(),
  next: () => step(1),
  previous: () => step(-1),
  back: () => { if (data.id) location.href = "/incidents"; },
  refresh,
});
every(2000, async () => {
  const found = await poll();
  if (!found) return;
  showCounts(found.counts);
  if (found.version !== seen) await refresh();
  seen = found.version;
});
