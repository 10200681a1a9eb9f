// One run: a head with its figures, and tabs for curves, trajectories, ledger, health and config.

import { h, replace, problemsBox } from "./dom.js";
import { get, link, onChange, runApi, runPath } from "./api.js";
import { follow } from "./follow.js";
import { curvesTab } from "./curves.js";
import { browseTab } from "./browse.js";
import { ledgerTab, healthTab } from "./overview.js";
import { age, num, dash, plural } from "./format.js";
import { keys } from "./keys.js";

const TABS = { curves: curvesTab, trajectories: browseTab, ledger: ledgerTab, health: healthTab, config: configTab };

export async function runPage(main, [id, tab = "curves"], query) {
  let about = await get(runApi(id));
  Object.keys(TABS).forEach((name, i) => keys.on(String(i + 1), `tab ${name}`, () => { location.hash = link(runPath(id, `/${name}`)); }));
  const own = follow(id), head = h("div"), body = h("div", { class: "tab-body" });
  const drawHead = () => replace(head, figures(about), problemsBox(about.problems), tabs(id, tab));
  drawHead();
  replace(main, head, body);
  let shown = await TABS[tab](body, id, query, about, own);
  const others = tab === "curves" ? query.getAll("with") : [];
  const stop = onChange([id, ...others], async () => {
    about = { ...about, ...(await own.update()) };
    replace(head.firstElementChild, ...figures(about).childNodes);
    if (shown && shown.refresh) await shown.refresh(about);
  });
  return {
    stop() { stop(); if (shown && shown.stop) shown.stop(); },
    // The same tab of the same run with another query: let it decide, so that a filter does not rebuild the page.
    async update([nextId, nextTab = "curves"], next) {
      return nextId === id && nextTab === tab && shown && shown.query ? shown.query(next) : false;
    },
  };
}

function figures({ run, findings }) {
  const alarms = findings.filter((one) => one.severity === "alarm").length;
  const tile = (value, words, cls) => h("div", { class: `tile ${cls || ""}` }, h("b", null, value), h("span", null, words));
  return h("div", null,
    h("div", { class: "title-row" }, h("h1", null, run.name), h("span", { class: `status ${run.status}` }, run.status),
      h("span", { class: "soft" }, [run.environment, run.estimator].filter(Boolean).join(" · "))),
    h("div", { class: "tiles" },
      tile(run.best === null ? dash : num(run.best, 3), run.best === null ? "no evaluation yet" : `best held-out, at step ${run.best_step.toLocaleString("en")}`),
      tile(run.last === null ? dash : num(run.last, 3), "newest held-out success"),
      tile(`${run.step.toLocaleString("en")}${run.steps ? ` / ${run.steps.toLocaleString("en")}` : ""}`, "training steps"),
      tile(String(findings.length), alarms ? `findings, ${plural(alarms, "alarm")}` : "findings", alarms ? "alarm" : ""),
      tile(run.episodes.toLocaleString("en"), "episodes of training"),
      tile(age(run.age), run.status === "training" ? "since it last wrote" : "old")));
}

function tabs(id, tab) {
  return h("nav", { class: "tabs", "aria-label": "Views of the run" }, Object.keys(TABS).map((name) =>
    h("a", { href: link(runPath(id, `/${name}`)), "aria-current": name === tab ? "page" : null }, name)));
}

async function configTab(body, id, query, about) {
  const find = h("input", { type: "search", placeholder: "Find a setting", "aria-label": "Find a setting", oninput: draw });
  const text = h("pre", { class: "code" });
  function draw() {
    const words = find.value.toLowerCase();
    const lines = about.config.split("\n");
    replace(text, words ? lines.filter((line) => line.toLowerCase().includes(words)).join("\n") : about.config);
  }
  draw();
  replace(body, h("div", { class: "controls" }, find),
    text, h("h2", null, "Versions"),
    h("dl", { class: "facts" }, Object.entries(about.versions).map(([name, version]) => [h("dt", null, name), h("dd", null, version)])),
    h("p", { class: "soft mono small" }, about.run.path));
  keys.on("/", "find a setting", () => find.focus());
}
