// Routes, the bar on top, themes and keys. A page is a function (main, params, query) that returns what ends it.

import { h, replace } from "./dom.js";
import { link } from "./api.js";
import { runsPage } from "./runs.js";
import { runPage } from "./run.js";
import { trajectoryPage } from "./trajectory.js";
import { comparePage } from "./compare.js";
import { branchPage } from "./branch.js";
import { keys } from "./keys.js";

const bare = (id) => id.replace(/-[0-9a-f]{6}$/, "");
const ROUTES = [
  [/^\/?$/, runsPage, () => []],
  [/^\/run\/([^/]+)(?:\/(curves|trajectories|ledger|health|config))?$/, runPage, (id) => [[bare(id), `/run/${id}`]]],
  [/^\/run\/([^/]+)\/step\/([0-9]+)$/, stepPage, (id) => [[bare(id), `/run/${id}`]]],
  [/^\/run\/([^/]+)\/t\/([a-z_]+-[0-9]+\/[0-9]+\/[0-9]+)$/, trajectoryPage,
    (id, name) => [[bare(id), `/run/${id}`], ["trajectories", `/run/${id}/trajectories`], [name, `/run/${id}/t/${name}`]]],
  [/^\/run\/([^/]+)\/compare$/, comparePage,
    (id) => [[bare(id), `/run/${id}`], ["trajectories", `/run/${id}/trajectories`], ["side by side", null]]],
  [/^\/run\/([^/]+)\/branch\/([0-9a-f]+)$/, branchPage,
    (id) => [[bare(id), `/run/${id}`], ["trajectories", `/run/${id}/trajectories`], ["branch", null]]],
];

let end = null;
let shown = null;
let latest = 0;

function stepPage(main, [id, step]) {
  location.replace(link(`/run/${encodeURIComponent(id)}/trajectories`, { step }));
}

async function route() {
  const [path, text] = location.hash.slice(1).split("?");
  const query = new URLSearchParams(text || "");
  const main = document.getElementById("main");
  document.getElementById("help").close();
  for (const [pattern, page, trail] of ROUTES) {
    const match = pattern.exec(path);
    if (!match) continue;
    const params = match.slice(1).map((part) => (part === undefined ? part : decodeURIComponent(part)));
    const same = shown === page && end && end.update;
    drawBar(trail(...match.slice(1).map((part) => part && decodeURIComponent(part))));
    if (same && (await end.update(params, query))) return;
    if (end && end.stop) end.stop();
    keys.clear();
    end = null;
    shown = page;
    const turn = ++latest;
    const holder = h("div", null, h("p", { class: "soft loading" }, "Loading…"));  // a page that comes late draws into one that is gone
    replace(main, holder);
    try {
      const made = (await page(holder, params, query)) || null;
      if (turn === latest) end = made;
      else if (made && made.stop) made.stop();
    } catch (error) {
      replace(holder, h("section", { class: "card empty" }, h("h1", null, "This cannot be shown"), h("p", null, error.message),
        h("p", null, h("a", { href: "#/" }, "All runs"))));
    }
    return;
  }
  replace(main, h("section", { class: "card empty" }, h("h1", null, "There is no such page"), h("a", { href: "#/" }, "All runs")));
}

function drawBar(trail) {
  document.title = [...trail.map(([name]) => name).reverse(), "turnwise studio"].join(" · ");
  replace(document.getElementById("bar"),
    h("nav", { class: "trail", "aria-label": "Breadcrumb" },
      h("a", { class: "brand", href: "#/" }, h("img", { src: "/static/icon.svg", alt: "", width: 22, height: 22 }), "turnwise studio"),
      trail.map(([name, path]) => [h("span", { class: "slash", "aria-hidden": "true" }, "/"),
        path ? h("a", { href: link(path) }, name) : h("span", null, name)])),
    h("div", { class: "tools" },
      h("span", { class: "pulse", title: "Live: the page follows the run as it writes" }, "live"),
      h("button", { class: "plain", id: "theme", type: "button", title: "Theme: light, dark or your system's (t)", onclick: nextTheme }, themeName()),
      h("button", { class: "plain", type: "button", title: "Keys (?)", "aria-label": "Keyboard help", onclick: () => keys.help() }, "?")));
}

const THEMES = ["auto", "light", "dark"];
const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
const themeName = () => document.documentElement.dataset.theme || "auto";

function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  try { localStorage.setItem("theme", name); } catch { /* private windows keep nothing */ }
  const button = document.getElementById("theme");
  if (button) button.textContent = name;
}

function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(themeName()) + 1) % THEMES.length]);
}

setTheme(stored() || "auto");
keys.always("t", "change the theme", nextTheme);
keys.always("u", "up: to what this belongs to", () => {
  const trail = [...document.querySelectorAll(".trail a")];
  const here = location.hash || "#/";
  const up = trail.reverse().find((one) => one.getAttribute("href") !== here.split("?")[0]);
  if (up) location.hash = up.getAttribute("href");
});
window.addEventListener("hashchange", route);
route();
