// One's own settings.

import { $, $$, call, readData } from "./shell.js";

const { defaults } = readData("help-data");
const form = $("#preferences");
const fields = $$("[data-action]", form);
const keysOf = (field) => field.value.trim().split(/\s+/).filter(Boolean);

$("#defaults").addEventListener("click", () => {
  for (const field of fields) field.value = defaults[field.dataset.action].join(" ");
  form.elements.keys_on.checked = true;
});
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const keys = {};
  for (const field of fields) {
    const action = field.dataset.action;
    if (keysOf(field).join(" ") !== defaults[action].join(" ")) keys[action] = keysOf(field);
  }
  const said = $("#saved");
  try {
    await call("/api/preferences", {
      keys_on: form.elements.keys_on.checked, keys, theme: form.elements.theme.value, clock: form.elements.clock.value,
    }, "PUT");
    document.documentElement.dataset.theme = form.elements.theme.value;
    said.className = "";
    said.textContent = "Saved.";
    setTimeout(() => location.reload(), 400);
  } catch (error) {
    said.className = "bad";
    said.textContent = error.message;
  }
});
