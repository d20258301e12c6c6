// What every screen shares: requests, toasts, keys, dialogs, the clock, and the line of numbers.

export const readData = (id) => {
  const element = document.getElementById(id);
  return element ? JSON.parse(element.textContent) : {};
};
export const pageData = readData("page-data");
// One's own settings are kept in the browser. Single keys can be switched off (WCAG 2.1.4).
pageData.clock = localStorage.getItem("rejex.clock") || "utc";
if (localStorage.getItem("rejex.keys") === "off") {
  pageData.keys = {};
  document.body.classList.add("no-keys");
}
export const $ = (selector, within = document) => within.querySelector(selector);
export const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
export const newId = () =>
  crypto.randomUUID ? crypto.randomUUID() : [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
export const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

// ------------------------------------------------------------------------------------- requests
export class Refused extends Error {
  constructor(status, body) {
    super(body.message || "The console does not answer as expected.");
    Object.assign(this, { status, code: body.code || "error", episode: body.episode });
  }
}

// Said on the page for as long as it is so; a browser that shows what is hidden finds nothing there.
const AWAY = "The console cannot be reached. What you see may be out of date. It goes on by itself as soon as the console answers.";
const reached = (yes) => { const line = $("#offline"); if (line) { line.hidden = yes; line.textContent = yes ? "" : AWAY; } };

export async function call(path, body, method = body === undefined ? "GET" : "POST", extra = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      ...extra,
    });
  } catch {
    reached(false);
    throw new Refused(0, { code: "offline", message: "The console cannot be reached. Nothing was lost: try again." });
  }
  reached(true);
  if (response.status === 304) return null;
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) location.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
  if (!response.ok) throw new Refused(response.status, answer);
  return answer;
}

// Like `call`, but says what went wrong by itself and returns null.
export async function asking(path, body) {
  try { return await call(path, body); } catch (error) { toast(error.message, { bad: true }); return null; }
}

// --------------------------------------------------------------------------------------- toasts
const toasts = $("#toasts");
export function toast(message, { bad = false, undo = null, keep = 6000 } = {}) {
  if (!toasts) return;
  while (toasts.childElementCount > 1) toasts.firstElementChild.remove();
  const box = document.createElement("div");
  box.className = bad ? "toast bad" : "toast";
  const text = document.createElement("span");
  text.textContent = message;
  box.append(text);
  if (undo) {
    const button = document.createElement("button");
    button.textContent = "Undo ";
    const key = pageData.keys && pageData.keys.undo && pageData.keys.undo[0];
    if (key) {
      const cap = document.createElement("kbd");
      cap.textContent = key;
      button.append(cap);
    }
    button.addEventListener("click", () => { box.remove(); undo(); });
    box.append(button);
  }
  toasts.append(box);
  setTimeout(() => box.remove(), bad ? 9000 : keep);
}
// A toast that is to be seen on the page after this one.
export const toastNext = (message, undo) => sessionStorage.setItem("rejex.toast", JSON.stringify({ message, undo }));
export function takeToast(undo) {
  const kept = sessionStorage.getItem("rejex.toast");
  if (!kept) return;
  sessionStorage.removeItem("rejex.toast");
  const { message, undo: canUndo } = JSON.parse(kept);
  toast(message, canUndo ? { undo } : {});
}

// -------------------------------------------------------------------------------------- dialogs
const dialog = $("#ask");
let answerAsked = null;
export function ask(heading, text, yes) {
  answerAsked?.(false); // closed already; its event is still on the way
  $("#ask-heading").textContent = heading;
  $("#ask-text").textContent = text;
  $("#ask-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  $("#ask-yes").focus();
  return new Promise((resolve) => { answerAsked = (said) => { answerAsked = null; resolve(said); }; });
}
// The event comes a moment after the dialog has closed: a new question may stand by then.
dialog?.addEventListener("close", () => { if (!dialog.open) answerAsked?.(dialog.returnValue === "yes"); });

// ----------------------------------------------------------------------------------------- keys
const actionOf = {};
for (const [action, keys] of Object.entries(pageData.keys || {})) for (const key of keys) actionOf[key] = action;

const typing = (target) =>
  target.isContentEditable || /^(TEXTAREA|SELECT)$/.test(target.tagName) ||
  (target.tagName === "INPUT" && !/^(checkbox|radio|button|submit|range)$/.test(target.type));

// A verdict by key counts only for what has been in sight for a moment (body[data-keys=on]): the
// second press of an impatient finger belongs to what was there before.
const PATIENCE_MS = 450;
const VERDICTS = new Set(["anomaly", "normal", "unsure"]);
let seeing = 0;
export const undrawn = () => { clearTimeout(seeing); document.body.dataset.keys = "off"; };
export const drawn = () => { undrawn(); seeing = setTimeout(() => { document.body.dataset.keys = "on"; }, PATIENCE_MS); };

let actions = {};
export function onKeys(wanted) {
  const first = !Object.keys(actions).length;
  actions = wanted;
  if (!first) return;
  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.defaultPrevented || $("dialog[open]")) return;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    let action = null;
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key === "z") {
      action = pageData.keys && Object.keys(pageData.keys).length ? "undo" : null;
    } else if (!event.ctrlKey && !event.metaKey && !event.altKey) {
      action = actionOf[event.key] || (event.shiftKey ? actionOf[event.key.toLowerCase()] : null);
    }
    // A focused button or link keeps its own Enter; arrows keep scrolling what can be scrolled.
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    if (event.key.startsWith("Arrow") && event.target.closest(".scroll, pre")) return;
    if (!action || !actions[action]) return;
    event.preventDefault();
    if (VERDICTS.has(action) && (event.repeat || document.body.dataset.keys !== "on")) return;
    if (VERDICTS.has(action) && pageData.role === "viewer") toast("You may look but not decide: ask for the role reviewer.", { bad: true });
    else actions[action](event);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-act]");
    if (button && !button.disabled && actions[button.dataset.act]) actions[button.dataset.act](event);
  });
}
export const showKeys = () => $("#keys").showModal();

// ---------------------------------------------------------------------------------------- clock
const two = (n) => String(n).padStart(2, "0");
export function showTime(ms, form = "clock") {
  const at = new Date(ms);
  const local = pageData.clock === "local";
  const [y, mo, d, h, mi, s] = local
    ? [at.getFullYear(), at.getMonth() + 1, at.getDate(), at.getHours(), at.getMinutes(), at.getSeconds()]
    : [at.getUTCFullYear(), at.getUTCMonth() + 1, at.getUTCDate(), at.getUTCHours(), at.getUTCMinutes(), at.getUTCSeconds()];
  const time = `${two(h)}:${two(mi)}:${two(s)}`;
  if (form === "day") return `${y}-${two(mo)}-${two(d)} ${time}`;
  if (form === "short") return `${two(mo)}-${two(d)}`;
  return form === "minute" ? time.slice(0, 5) : time;
}
// A stretch of time: the date of its end too, where that is another one.
export function showRange(from, to, dated = false) {
  const [a, b] = [showTime(from, "day"), showTime(to, "day")];
  return a.slice(0, 10) === b.slice(0, 10) && !dated ? `${a.slice(11)} – ${b.slice(11)}` : `${a} – ${b}`;
}
const sameDay = (from, to) => showTime(from, "day").slice(0, 10) === showTime(to, "day").slice(0, 10);
const zone = () => `local time, ${Intl.DateTimeFormat().resolvedOptions().timeZone}`;
export function showTimes(within = document) {
  if (pageData.clock !== "local") return;
  for (const element of $$("time[data-ms]", within)) {
    const { ms, form, since } = element.dataset;
    element.textContent = showTime(+ms, since === undefined ? form : sameDay(+since, +ms) ? "clock" : "day");
  }
  for (const element of $$("[data-clock-name]", within)) element.textContent = zone();
}
export const shortAge = (ms) => {
  const minutes = ms / 60000;
  if (minutes < 1) return "<1 min";
  if (minutes < 100) return `${Math.round(minutes)} min`;
  return minutes < 2880 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} d`;
};

// -------------------------------------------------------------------------------- numbers on top
export function showCounts(counts) {
  for (const element of $$("[data-count]")) {
    const count = counts[element.dataset.count];
    if (count === undefined) continue;
    element.textContent = count.toLocaleString("en");
    if (element.dataset.count === "incidents") element.hidden = !count;
  }
}
let etag = null;
export async function poll(query = "") {
  const headers = etag ? { "if-none-match": etag } : {};
  const response = await fetch(`/api/summary${query}`, { headers }).catch(() => null);
  reached(Boolean(response));
  if (response && response.status === 401) location.reload();
  if (!response || !response.ok) return null;
  etag = response.headers.get("etag");
  return response.json();
}
// Calls `work` now and then while the page can be seen, and never twice at once.
export function every(ms, work) {
  let running = false;
  const turn = async () => {
    if (running || document.hidden) return;
    running = true;
    try { await work(); } finally { running = false; }
  };
  const timer = setInterval(turn, ms);
  document.addEventListener("visibilitychange", turn);
  return () => { clearInterval(timer); document.removeEventListener("visibilitychange", turn); };
}

showTimes();
for (const select of $$("form.filter select")) select.addEventListener("change", () => select.form.submit());
if (["audit", "help", "error"].includes(document.body.dataset.screen)) {
  onKeys({ help: showKeys, filter: () => $("input[type=search]")?.focus() });
  every(10000, async () => { const found = await poll(); if (found) showCounts(found.counts); });
}
