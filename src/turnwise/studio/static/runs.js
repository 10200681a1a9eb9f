// The list of runs: status, score, age, and what differs between their configs.

import { h, replace } from "./dom.js";
import { get, link, onChange, runPath } from "./api.js";
import { sparkline } from "./chart.js";
import { age, num, dash, plural } from "./format.js";
import { keys, rowKeys } from "./keys.js";

const CHIPS = 3;
const ORDERS = {
  name: (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }),
  status: (a, b) => a.status.localeCompare(b.status),
  steps: (a, b) => b.step - a.step,
  best: (a, b) => (b.best ?? -1) - (a.best ?? -1),
  last: (a, b) => (b.last ?? -1) - (a.last ?? -1),
  age: (a, b) => a.age - b.age,
};

export async function runsPage(main) {
  let data = await get("/api/runs");
  let order = "age", wanted = "";
  const chosen = new Set();
  const find = h("input", { type: "search", placeholder: "Find a run or setting", "aria-label": "Find a run or setting",
    oninput: () => { wanted = find.value.toLowerCase(); draw(); } });
  const overlay = h("a", { class: "button", "aria-disabled": "true" }, "Overlay curves");
  const table = h("div", { class: "run-list" });
  const differences = h("details", { class: "differences" });

  function draw() {
    const runs = data.runs.filter((run) => !wanted || JSON.stringify([run.name, run.environment, run.estimator, run.differs]).toLowerCase().includes(wanted));
    runs.sort(ORDERS[order]);
    const head = (key, text, cls) => h("button", { type: "button", class: `head ${cls || ""}`, "aria-pressed": String(order === key),
      onclick: () => { order = key; draw(); } }, text);
    replace(table,
      h("div", { class: "run-head" }, h("span"), head("name", "Run"), head("status", "Status"), head("steps", "Steps"),
        head("best", "Best", "right"), head("last", "Newest", "right"), h("span", null, "Learning"), head("age", "Age", "right")),
      runs.map(row));
    if (!runs.length) table.append(h("p", { class: "soft empty" }, data.runs.length ? "No run matches." : "There are no runs in these folders yet: `turnwise train` makes one."));
    const ids = [...chosen];
    overlay.setAttribute("aria-disabled", String(ids.length < 2));
    overlay.textContent = ids.length > 1 ? `Overlay ${ids.length} runs` : "Overlay curves";
    if (ids.length > 1) overlay.setAttribute("href", link(runPath(ids[0], "/curves"), { with: ids.slice(1) }));
    else overlay.removeAttribute("href");
    drawDifferences(runs);
  }

  function row(run) {
    const differs = Object.entries(run.differs).filter(([key]) => !["env.name", "credit.estimator"].includes(key));
    const done = run.steps ? Math.min(1, run.step / run.steps) : 0;
    return h("div", { class: "run-row", "data-run": run.id },
      h("input", { type: "checkbox", "aria-label": `Choose ${run.name} to overlay`, ...(chosen.has(run.id) ? { checked: true } : {}),
        onchange: (event) => { event.target.checked ? chosen.add(run.id) : chosen.delete(run.id); draw(); } }),
      h("div", { class: "what" },
        h("a", { class: "name", href: link(runPath(run.id)) }, run.name),
        h("div", { class: "about" }, [run.environment, run.estimator].filter(Boolean).join(" · ")),
        run.problem && h("div", { class: "bad small" }, run.problem),
        differs.length > 0 && h("div", { class: "chips" },
          differs.slice(0, CHIPS).map(([key, value]) => h("span", { class: "chip", title: `${key}: ${value}` }, key.split(".").slice(-2).join("."), " ", h("b", null, value))),
          differs.length > CHIPS && h("span", { class: "chip more" }, `+${differs.length - CHIPS}`))),
      h("span", { class: `status ${run.status}` }, run.status),
      h("span", { class: "progress", title: `step ${run.step} of ${run.steps ?? "?"}` },
        h("span", { class: "track" }, h("span", { style: { width: `${100 * done}%` } })), h("span", { class: "n" }, run.steps === 0 ? dash : `${run.step}/${run.steps ?? "?"}`)),
      h("span", { class: "n strong right", "data-label": "best" }, run.best === null ? dash : num(run.best, 3)),
      h("span", { class: "n right", "data-label": "newest" }, run.last === null ? dash : num(run.last, 3)),
      h("span", { class: "learning" }, sparkline(run.spark)),
      h("span", { class: "n soft right", "data-label": "age" }, age(run.age)));
  }

  function drawDifferences(runs) {
    const rows = data.differing.filter((key) => runs.some((run) => key in run.differs));
    differences.hidden = runs.length < 2 || !rows.length;
    const most = runs.slice(0, 12);
    replace(differences, h("summary", null, `${plural(rows.length, "setting")} differ between these runs`),
      h("div", { class: "wide" }, h("table", null,
        h("thead", null, h("tr", null, h("th", null, "setting"), most.map((run) => h("th", null, run.name)))),
        h("tbody", null, rows.map((key) => h("tr", null, h("td", { class: "mono" }, key),
          most.map((run) => h("td", { class: "mono" }, run.differs[key] ?? dash))))))));
  }

  draw();
  replace(main, h("div", { class: "title-row" }, h("h1", null, "Runs"), h("span", { class: "soft" }, plural(data.runs.length, "run")),
    h("span", { class: "grow" }), find, overlay), table, differences);
  keys.on("/", "find", () => find.focus());
  rowKeys(() => [...table.querySelectorAll(".run-row")]);
  const refresh = async () => { data = await get("/api/runs"); if (!table.contains(document.activeElement)) draw(); };
  const stop = onChange([], refresh);
  const tick = setInterval(refresh, 30000);
  return { stop() { stop(); clearInterval(tick); } };
}
