// The queue: a cursor, a selection, verdicts that take effect at once and are sent behind.

import { $, $$, ask, asking, call, drawn, every, newId, onKeys, pageData, plural, poll, readData, shortAge, showCounts, showKeys, showTimes, takeToast, toast, Refused } from "./shell.js";

const data = readData("queue-data");
const body = $("#rows");
const query = () => {
  const parts = new URLSearchParams({ tab: data.view.tab });
  if (data.view.q) parts.set("q", data.view.q);
  if (data.view.sort) parts.set("sort", data.view.sort);
  if (data.view.since) parts.set("since", data.view.since);
  if (data.first) parts.set("from", data.first);
  return `?${parts}`;
};
let version = data.version;
let cursor = null;
let anchor = null;
let sending = Promise.resolve();
let pending = 0;
let answers = 0; // how many verdicts have been answered: a list from before an answer is out of date
const away = new Set(); // episodes whose verdict is on its way
let more = data.total > data.most_rows; // the list goes on beyond the rows shown
let whole = null; // every episode of the list, beyond the rows shown

const rows = () => (body ? [...body.rows].filter((row) => row.dataset.id) : []);
// A verdict on a row is for all cases of its question.
const targets = (row) => [
  { id: row.dataset.id, n_events: +row.dataset.n, status: row.dataset.status },
  ...JSON.parse(row.dataset.others).map(([id, n_events, status]) => ({ id, n_events, status })),
];
const eventsOf = (cases) => cases.reduce((sum, one) => sum + one.n_events, 0);
const tickOf = (row) => $("input[type=checkbox]", row);
const selected = () => rows().filter((row) => row.classList.contains("selected"));

// --------------------------------------------------------------------------------------- cursor
function moveTo(row, { focus = true } = {}) {
  if (cursor) cursor.removeAttribute("aria-current");
  if (row !== cursor) drawn();
  cursor = row || null;
  if (cursor) {
    cursor.setAttribute("aria-current", "true");
    if (focus) cursor.focus({ preventScroll: true });
    cursor.scrollIntoView({ block: "nearest" });
  }
  say();
}
const step = (by) => {
  const all = rows();
  const at = all.indexOf(cursor);
  const row = all[Math.max(0, Math.min(all.length - 1, at + by))];
  if (row) moveTo(row);
};
function say() {
  const what = $("#what");
  if (!what) return;
  const chosen = selected();
  const of = chosen.length ? chosen : cursor ? [cursor] : [];
  const cases = of.flatMap(targets);
  const events = eventsOf(cases);
  what.textContent = whole
    ? `All ${plural(whole.targets.length, "case")} of this list, ${plural(whole.events, "event")}`
    : chosen.length
    ? `${plural(cases.length, "case")} selected, ${plural(events, "event")}`
    : cursor ? `${$(".c-sensor bdi", cursor).textContent.trim()}: ${plural(events, "event")}` : "";
  for (const button of $$("#actions [data-act]")) {
    if (!/^(undo|help)$/.test(button.dataset.act)) button.disabled = !of.length;
  }
  const all = $("#select-all");
  if (all) {
    all.checked = chosen.length > 0 && chosen.length === rows().length;
    all.indeterminate = chosen.length > 0 && !all.checked;
  }
}

// ------------------------------------------------------------------------------------ selection
function select(row, on = !row.classList.contains("selected")) {
  whole = null;
  row.classList.toggle("selected", on);
  tickOf(row).checked = on;
  anchor = row;
}
function selectRange(to) {
  const all = rows();
  const [a, b] = [all.indexOf(anchor || to), all.indexOf(to)].sort((x, y) => x - y);
  const on = anchor ? anchor.classList.contains("selected") : true;
  for (const row of all.slice(Math.max(a, 0), b + 1)) {
    row.classList.toggle("selected", on);
    tickOf(row).checked = on;
  }
}
function clearSelection() {
  whole = null;
  for (const row of selected()) select(row, false);
  anchor = null;
  say();
}

// ------------------------------------------------------------------------------------- verdicts
const extras = () => ({
  tags: $$("#actions input[name=tag]:checked").map((input) => input.value),
  note: $("#note") ? $("#note").value.trim() : "",
});
function putExtras({ tags, note }) {
  for (const input of $$("#actions input[name=tag]")) input.checked = tags.includes(input.value);
  if ($("#note")) $("#note").value = note;
}
// Taken at once: what is typed meanwhile belongs to the next verdict.
function takeExtras() {
  const taken = extras();
  putExtras({ tags: [], note: "" });
  return taken;
}
const untouched = () => !extras().note && !extras().tags.length;

// Rows leave at once; should the console refuse, they come back where they were.
function takeOut(leaving) {
  const all = rows();
  const places = leaving.map((row) => [row, all[all.indexOf(row) + 1] || null]);
  const last = leaving.reduce((most, row) => Math.max(most, all.indexOf(row)), -1);
  const staying = new Set(all.filter((row) => !leaving.includes(row)));
  const next = leaving.includes(cursor)
    ? all.slice(last + 1).find((row) => staying.has(row)) || all.slice(0, last).reverse().find((row) => staying.has(row))
    : cursor;
  for (const row of leaving) { row.classList.remove("selected"); tickOf(row).checked = false; row.remove(); }
  moveTo(next || null);
  showEmpty();
  return () => {
    for (const [row, before] of places.reverse()) body.insertBefore(row, before && before.isConnected ? before : null);
    showEmpty();
  };
}
function showEmpty() {
  const none = !rows().length;
  $("#empty").hidden = !none || more;
  if ($("#beyond")) $("#beyond").hidden = !more;
  const box = $(".table-box");
  if (box) box.hidden = none;
}

async function act(path, leaving, body_) {
  const said = body_.verdict && { tags: body_.tags, note: body_.note };
  const putBack = takeOut(leaving);
  const chosen = leaving.length > 1;
  for (const row of leaving) away.add(row.dataset.id);
  const answered = () => { answers += 1; for (const row of leaving) away.delete(row.dataset.id); };
  pending += 1;
  sending = sending.then(async () => {
    try {
      const done = await call(path, body_);
      answered();
      toast(done.message, { undo });
      arrived(done);
    } catch (error) {
      answered();
      putBack();
      if (said && untouched()) putExtras(said);
      if (chosen) for (const row of leaving) select(row, true);
      moveTo(leaving[0]);
      toast(error.message, { bad: true });
      if (error instanceof Refused && error.status === 409) await refresh(false);
    } finally {
      pending -= 1;
    }
  });
  return sending;
}
function arrived(done) {
  showCounts(done.counts);
  version = done.version;
  if (more && rows().length < data.most_rows / 2) refresh(false);
  if (done.undoable) $("#intro")?.remove();
  const button = $("#undo");
  if (button) { button.disabled = !done.undoable; button.title = done.undoable; }
}

async function decide(verdict) {
  const chosen = selected();
  const leaving = chosen.length ? chosen : cursor ? [cursor] : [];
  if (!leaving.length || !data.can_decide) return;
  if (whole) return decideWhole(verdict);
  const cases = leaving.flatMap(targets);
  if (cases.length > 20 && !(await ask(`Mark ${plural(cases.length, "case")} ${verdict}?`,
    `That is ${plural(eventsOf(cases), "event")}. It can be undone in one step.`, `Mark ${cases.length} ${verdict}`))) return;
  await act("/api/labels", leaving, { request_id: newId(), verdict, targets: cases, ...takeExtras() });
}
async function decideWhole(verdict) {
  const { targets, events } = whole;
  if (!(await ask(`Mark ${plural(targets.length, "case")} ${verdict}?`,
    `That is ${plural(events, "event")}, more than is shown. It can be undone in one step.`, `Mark all ${targets.length} ${verdict}`))) return;
  const said = takeExtras();
  sending = sending.then(async () => {
    try {
      const done = await call("/api/labels", { request_id: newId(), verdict, targets, ...said });
      answers += 1;
      clearSelection();
      const decided = new Set(targets.map(({ id }) => id));
      takeOut(rows().filter((row) => decided.has(row.dataset.id)));
      arrived(done);
      await refresh(true);
      toast(done.message, { undo });
    } catch (error) {
      if (untouched()) putExtras(said);
      toast(error.message, { bad: true });
    }
  });
}
function undo() {
  sending = sending.then(async () => {
    try {
      const done = await call("/api/undo", { request_id: newId() });
      arrived(done);
      await refresh(true);
      const row = done.episodes.map((id) => document.getElementById(`row-${id}`)).find(Boolean);
      if (row) moveTo(row);
      toast(done.message);
    } catch (error) {
      toast(error.message, { bad: error.code !== "nothing" });
    }
  });
  return sending;
}

// -------------------------------------------------------------------------- bringing up to date
// Rows change in place and the cursor stays; new rows wait until they are asked for.
async function refresh(adopt) {
  const holder = document.createElement("template");
  let seen;
  do {
    seen = answers;
    const response = await fetch(`/queue/rows${query()}`).catch(() => null);
    if (!response || !response.ok) return;
    holder.innerHTML = `<table><tbody>${await response.text()}</tbody></table>`;
  } while (seen !== answers);
  const all = [...holder.content.querySelector("tbody").rows];
  const long = more; // was it, so far
  more = all.length >= data.most_rows;
  const found = all.filter((row) => !away.has(row.dataset.id));
  if (!body) { if (found.length) offer(found.length); return; }
  showTimes(holder.content);
  const byId = new Map(rows().map((row) => [row.dataset.id, row]));
  const fresh = found.filter((row) => !byId.has(row.dataset.id));
  for (const row of found) {
    const old = byId.get(row.dataset.id);
    if (!old) continue;
    byId.delete(row.dataset.id);
    old.classList.remove("gone");
    Object.assign(old.dataset, { n: row.dataset.n, status: row.dataset.status, others: row.dataset.others, held: row.dataset.held });
    for (const [i, cell] of [...row.cells].entries()) {
      if (i > 0 && old.cells[i].innerHTML !== cell.innerHTML) old.cells[i].innerHTML = cell.innerHTML;
    }
  }
  if (adopt) {
    for (const row of byId.values()) if (row !== cursor) row.remove(); else row.classList.add("gone");
    const order = found.map((row) => document.getElementById(row.id) || row);
    const focused = document.activeElement;
    body.append(...order);
    if (focused && focused.isConnected) focused.focus({ preventScroll: true });
    if (!cursor || !cursor.isConnected) moveTo(rows()[0], { focus: false });
    $("#news").hidden = true;
    showEmpty();
  } else {
    for (const row of byId.values()) row.classList.add("gone");
    // The rest of a long list follows at its end, where it moves nothing.
    const last = found.findLastIndex((row) => !fresh.includes(row));
    const following = long ? found.slice(last + 1) : [];
    body.append(...following);
    if (following.length && !(cursor && cursor.isConnected)) moveTo(rows()[0], { focus: false });
    const news = fresh.length - following.length;
    if (news) offer(news); else $("#news").hidden = true;
    showEmpty();
  }
  say();
}
function offer(count) {
  const key = pageData.keys.refresh ? ` (${pageData.keys.refresh[0]})` : "";
  $("#show-news").textContent = `${plural(count, "new case")}: show${key}`;
  $("#news").hidden = false;
}
async function look() {
  if (pending) return;
  const found = await poll(data.view.q ? `?q=${encodeURIComponent(data.view.q)}` : "");
  if (!found || pending) return;
  showCounts(found.counts);
  const line = $("#line");
  if (line && found.oldest_ms) {
    line.textContent = `oldest waiting ${shortAge(found.now_ms - found.oldest_ms)}`;
  }
  if (found.version !== version) { version = found.version; await refresh(false); }
}

// --------------------------------------------------------------------------------------- wiring
const open = (row) => { if (row) location.href = $(".c-sensor a", row).href; };
async function claimNext() {
  try {
    const lease = await call("/api/claim-next", { tab: "ready", q: data.view.q, sort: data.view.sort });
    location.href = `/episode/${lease.episode_id}${query()}`;
  } catch (error) {
    toast(error.message, { bad: error.code !== "nothing" });
  }
}
onKeys({
  anomaly: () => decide("anomaly"), normal: () => decide("normal"), unsure: () => decide("unsure"),
  undo, help: showKeys, claim: claimNext,
  next: () => step(1), previous: () => step(-1),
  open: () => open(cursor),
  select: (event) => {
    if (!cursor) return;
    if (event.shiftKey) selectRange(cursor); else select(cursor);
    say();
  },
  back: () => clearSelection(),
  filter: () => $("#q").select(),
  refresh: () => (body ? refresh(true) : location.reload()),
  tags: () => { const more = $("#actions .more"); if (more) { more.open = true; $("input[name=tag]", more).focus(); } },
  note: () => { const more = $("#actions .more"); if (more) { more.open = true; $("#note").focus(); } },
});
$("#claim-next")?.addEventListener("click", claimNext);
$("#show-news")?.addEventListener("click", () => (body ? refresh(true) : location.reload()));
body?.addEventListener("click", (event) => {
  const row = event.target.closest("tr[data-id]");
  if (!row || event.target.closest("a")) return;
  if (event.target.matches("input[type=checkbox]")) {
    if (event.shiftKey && anchor) selectRange(row); else select(row, event.target.checked);
  }
  moveTo(row, { focus: !event.target.matches("input") });
});
body?.addEventListener("dblclick", (event) => open(event.target.closest("tr[data-id]")));
$("#select-all")?.addEventListener("change", async (event) => {
  for (const row of rows()) select(row, event.target.checked);
  say();
  if (event.target.checked && data.total > rows().length) offerAll();
});
// The rest of the filter, beyond the rows shown: by explicit ids, and only after being asked.
async function offerAll() {
  const found = await asking(`/api/queue/ids${query()}`);
  if (!found) return;
  const yes = await ask(`Select all ${plural(found.targets.length, "case")} of this list?`,
    `${rows().length} are shown. The others hold ${plural(found.events, "event")} together with them.`,
    `Select all ${found.targets.length}`);
  if (!yes) return;
  whole = found;
  say();
}
document.addEventListener("click", (event) => {
  for (const more of $$(".more[open]")) if (!more.contains(event.target)) more.open = false;
});
moveTo(rows()[0], { focus: false });
takeToast(undo);
every(4000, look);
// Ages go on by themselves: a list in which nothing changed is not fetched again.
const skew = pageData.now_ms - Date.now();
every(20000, async () => {
  for (const age of $$(".age[data-waiting]")) {
    const text = shortAge(Date.now() + skew - +age.dataset.waiting);
    if (age.lastChild.textContent !== text) age.lastChild.textContent = text;
  }
});
