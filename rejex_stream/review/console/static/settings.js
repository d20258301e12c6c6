// One's own settings, kept in this browser.

import { $, pageData } from "./shell.js";

const form = $("#preferences");
form.elements.clock.value = pageData.clock;
form.elements.keys_on.checked = localStorage.getItem("rejex.keys") !== "off";
form.addEventListener("change", () => {
  localStorage.setItem("rejex.clock", form.elements.clock.value);
  localStorage.setItem("rejex.keys", form.elements.keys_on.checked ? "on" : "off");
  location.reload();
});
