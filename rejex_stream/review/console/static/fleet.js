// One stop per sensor for the Tab key; arrows go from cell to cell, and every cell says its numbers.

import { $, $$ } from "./shell.js";

const fleet = $("#fleet");
const told = $("#readout");
const lines = fleet ? $$(".fleet-row:not(.fleet-axis)", fleet).map((row) => [...$(".cells", row).children]) : [];
const isLink = (cell) => cell && cell.tagName === "A";
const say = (cell) => {
  const name = $(".fleet-name", cell.closest(".fleet-row")).textContent;
  told.textContent = `${name}   ${cell.title}`;
};
function go(to) {
  for (const cell of to.parentElement.children) if (isLink(cell)) cell.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}
const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

for (const line of lines) { const last = line.filter(isLink).pop(); if (last) last.tabIndex = 0; }
fleet?.addEventListener("keydown", (event) => {
  const step = steps[event.key];
  if (!step || !isLink(event.target) || !event.target.classList.contains("cell") || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  let row = lines.findIndex((line) => line.includes(event.target));
  let column = lines[row].indexOf(event.target);
  do { row += step[0]; column += step[1]; } while (lines[row] && lines[row][column] && !isLink(lines[row][column]));
  if (lines[row] && isLink(lines[row][column])) go(lines[row][column]);
});
for (const kind of ["focusin", "mouseover"]) {
  fleet?.addEventListener(kind, (event) => { const cell = event.target.closest(".cells > .cell"); if (cell) say(cell); });
}
