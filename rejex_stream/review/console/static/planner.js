// Numbers change, the answer follows.

import { $, toast } from "./shell.js";

const form = $("#plan");
let timer = 0;
let asked = 0;
async function work() {
  const parts = new URLSearchParams(new FormData(form));
  const turn = ++asked;
  const response = await fetch(`/planner/answer?${parts}`).catch(() => null);
  if (!response || !response.ok || turn !== asked) return;
  $("#answer").innerHTML = await response.text();
  history.replaceState(null, "", `/planner?${parts}`);
}
form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(work, 150); });
form.addEventListener("submit", (event) => { event.preventDefault(); work(); });
$('select[name="pipeline"]', form)?.addEventListener("change", (event) => { location.href = `/planner?pipeline=${encodeURIComponent(event.target.value)}`; });
document.addEventListener("click", async (event) => {
  const take = event.target.closest("[data-take-window]");
  if (take) {
    form.elements.window.value = take.dataset.takeWindow;
    form.elements.tolerance.value = take.dataset.takeTolerance;
    await work();
  }
  if (event.target.id === "copy-toml") {
    try { await navigator.clipboard.writeText($("#toml").textContent); toast("Copied."); } catch { getSelection().selectAllChildren($("#toml")); toast("Selected: copy it with Ctrl+C."); }
  }
});
