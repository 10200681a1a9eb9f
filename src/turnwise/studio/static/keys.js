// Keys that work on every page, and those of the page that is shown; `?` lists them.

import { h, replace } from "./dom.js";

const always = new Map();
let here = new Map();

function typing(target) {
  return target instanceof HTMLElement && (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName));
}

function help() {
  const dialog = document.getElementById("help");
  const rows = [["?", "these keys"], ...[...here, ...always].map(([key, one]) => [key, one.about])];
  replace(dialog, h("h2", null, "Keys"),
    h("dl", { class: "keys" }, rows.map(([key, about]) => [h("dt", null, h("kbd", null, key)), h("dd", null, about)])),
    h("form", { method: "dialog" }, h("button", null, "Close")));
  dialog.querySelector("form").addEventListener("submit", (event) => { event.preventDefault(); dialog.close(); });
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && typing(event.target)) event.target.blur();
  if (typing(event.target) || document.getElementById("help").open) return;
  if (event.key === "?") return help();
  const found = here.get(event.key) || always.get(event.key);
  if (!found) return;
  event.preventDefault();
  found.call();
});

export const keys = {
  help,
  always: (key, about, call) => always.set(key, { about, call }),
  on: (key, about, call) => here.set(key, { about, call }),
  clear: () => { here = new Map(); },
};

// Rows that j and k move through and Enter opens.
export function rowKeys(rows) {
  const move = (step) => {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.contains(document.activeElement));
    const next = all[Math.max(0, Math.min(all.length - 1, at + step))];
    (next.querySelector("a") || next).focus();
    next.scrollIntoView({ block: "nearest" });
  };
  keys.on("j", "next row", () => move(1));
  keys.on("k", "previous row", () => move(-1));
}
