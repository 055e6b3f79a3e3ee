"use strict";
// A click on the head of a column sorts the table by it, numbers with their units.
const SCALE = {us: 1e-6, ms: 1e-3, s: 1, K: 1024, M: 1024 ** 2, G: 1024 ** 3, T: 1024 ** 4, "": 1, "%": 1};

function valueOf(cell) {
  const text = cell.textContent.trim();
  const match = /^(?:< )?(-?[0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-zA-Z%]*)/.exec(text);
  return match && match[2] in SCALE ? Number(match[1]) * SCALE[match[2]] : text;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a < b ? -1 : a > b ? 1 : 0;
}

function sortBy(head) {
  const body = head.closest("table").tBodies[0];
  const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  const value = (row) => valueOf(row.cells[head.cellIndex]);
  body.append(...[...body.rows].sort((x, y) => sign * compare(value(x), value(y))));
}

for (const head of document.querySelectorAll("th")) {
  head.tabIndex = 0;
  head.addEventListener("click", () => sortBy(head));
  head.addEventListener("keydown", (event) => { if (event.key === "Enter") sortBy(head); });
}
