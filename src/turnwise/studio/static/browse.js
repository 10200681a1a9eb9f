// The trajectory browser: filters, full-text search, orders; rows that keys move through.

import { h, replace, problemsBox } from "./dom.js";
import { get, link, runApi, runPath } from "./api.js";
import { duration, num, plural, signed, spaced } from "./format.js";
import { keys, rowKeys } from "./keys.js";

const FIELDS = ["stage", "step", "environment", "task", "stop", "success", "channel", "least", "most", "errors", "shortest", "longest", "text", "sort", "descending"];
const PAGE = 100;
const SORTS = [["order", "as written"], ["spread", "reward spread in group"], ["reward", "reward"], ["turns", "turns"], ["tokens", "sampled tokens"], ["seconds", "seconds"], ["tool_errors", "tool errors"]];

export async function browseTab(body, id, query) {
  let state = read(query);
  let offset = 0, latest = 0, rows = [], again = null, stopped = false;
  const inputs = {};
  const list = h("div", { class: "rows", role: "list" });
  const count = h("p", { class: "soft count", role: "status" });
  const notes = h("div");
  const more = h("button", { type: "button", hidden: true, onclick: () => { offset += PAGE; load(true); } }, "Show more");

  function read(from) {
    return Object.fromEntries(FIELDS.map((name) => [name, from.get(name) || ""]));
  }

  async function load(append = false) {
    if (!append) offset = 0;
    const turn = ++latest;
    if (!rows.length) replace(list, h("p", { class: "soft empty" }, "Reading trajectories…"));
    clearTimeout(again);
    let data;
    try {
      data = await get(runApi(id, "/trajectories"), { ...state, offset, limit: PAGE });
    } catch (error) {
      if (turn === latest) { replace(list, h("p", { class: "bad empty" }, error.message)); replace(count); }
      return;
    }
    if (turn !== latest || stopped) return;
    rows = append ? [...rows, ...data.rows] : data.rows;
    fillFacets(data.facets);
    replace(notes, problemsBox(data.problems));
    replace(count, `${data.found.toLocaleString("en")} of ${plural(data.total, "trajectory").replace("trajectorys", "trajectories")}`,
      data.pending ? `; ${plural(data.pending, "file")} still to be read` : "");
    if (data.pending) again = setTimeout(() => load(), 200);
    const most = Math.max(...rows.map((row) => row.spread), 1e-9);
    replace(list, rows.map((row) => drawRow(id, row, state, most)));
    if (!rows.length) replace(list, h("p", { class: "soft empty" }, data.total ? "No trajectory matches these filters." : "No trajectories are stored yet."));
    more.hidden = rows.length >= data.found;
  }

  function change() {
    for (const name of FIELDS) {
      const input = inputs[name];
      if (input) state[name] = input.type === "checkbox" ? (input.checked ? "1" : "") : input.value;
    }
    history.replaceState(null, "", link(runPath(id, "/trajectories"), state));
    load();
  }

  let wait = null;
  const slowly = () => { clearTimeout(wait); wait = setTimeout(change, 180); };
  const select = (name, label, options) => {
    inputs[name] = h("select", { onchange: change }, options.map(([value, text]) => h("option", { value, ...(value === state[name] ? { selected: true } : {}) }, text)));
    if (state[name]) choose(name, state[name]);
    return h("label", null, label, inputs[name]);
  };
  // Also before the first answer has said what there is to choose from.
  const choose = (name, value) => {
    if (![...inputs[name].options].some((one) => one.value === value)) inputs[name].append(h("option", { value }, value));
    inputs[name].value = value;
  };
  const box = (name, label, type, extra) => {
    inputs[name] = h("input", { type, value: state[name], oninput: slowly, ...extra });
    return h("label", null, label, inputs[name]);
  };

  function fillFacets(facets) {
    if (!facets.stages) return;
    options("stage", [["", "all"], ...facets.stages.map(([name, some]) => [name, `${name} (${some.toLocaleString("en")})`])]);
    options("stop", [["", "all"], ...facets.stops.map(([name, some]) => [name, `${spaced(name)} (${some.toLocaleString("en")})`])]);
    options("environment", [["", "all"], ...facets.environments.map(([name, some]) => [name, `${name || "–"} (${some.toLocaleString("en")})`])]);
    options("channel", [["", "sum of all"], ...facets.channels.map((name) => [name, spaced(name)])]);
    options("step", [["", "all"], ...facets.steps.map((step) => [String(step), String(step)])]);
  }

  function options(name, wanted) {
    const input = inputs[name];
    if (input.dataset.shown === JSON.stringify(wanted)) return;
    input.dataset.shown = JSON.stringify(wanted);
    replace(input, wanted.map(([value, text]) => h("option", { value }, text)));
    input.value = state[name];
  }

  const search = box("text", "", "search", { placeholder: "Search inside messages", "aria-label": "Search inside messages" });
  search.className = "search";
  const sort = select("sort", "Sort by", SORTS);
  inputs.descending = h("input", { type: "checkbox", onchange: change, ...(state.descending ? { checked: true } : {}) });
  inputs.errors = h("input", { type: "checkbox", onchange: change, ...(state.errors ? { checked: true } : {}) });
  const filters = h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
    select("stage", "Stage", [["", "all"]]), select("step", "Step", [["", "all"]]), select("success", "Outcome", [["", "all"], ["yes", "success"], ["no", "no success"], ["failed", "failed to run"]]),
    select("stop", "Ended by", [["", "all"]]), select("environment", "Environment", [["", "all"]]), box("task", "Task", "text", { placeholder: "id", size: 10 }),
    select("channel", "Reward", [["", "sum of all"]]), box("least", "at least", "number", { step: "any" }), box("most", "at most", "number", { step: "any" }),
    box("shortest", "Tokens from", "number", { min: 0 }), box("longest", "to", "number", { min: 0 }),
    h("label", { class: "check" }, inputs.errors, "tool errors"));
  const folded = h("details", { class: "filter-box", open: !matchMedia("(max-width: 700px)").matches }, h("summary", null, "Filters"), filters);
  const teaching = h("button", { type: "button", title: "Groups whose rewards differ most come first: they teach most", onclick: () => { inputs.sort.value = "spread"; inputs.descending.checked = true; choose("stage", "train"); change(); } }, "What teaches most");
  const clear = h("button", { type: "button", class: "plain", onclick: () => { location.hash = link(runPath(id, "/trajectories")); } }, "Clear");

  replace(body, h("div", { class: "controls" }, search, teaching, h("span", { class: "grow" }), sort, h("label", { class: "check" }, inputs.descending, "descending"), clear),
    folded, notes, count, list, more);
  keys.on("/", "search inside messages", () => inputs.text.focus());
  rowKeys(() => [...list.querySelectorAll(".row")]);
  await load();
  return {
    refresh: () => (offset === 0 && !list.contains(document.activeElement) ? load() : null),
    stop: () => { stopped = true; clearTimeout(again); clearTimeout(wait); },
    query(next) {
      state = read(next);
      for (const [name, input] of Object.entries(inputs)) {
        if (input.type === "checkbox") input.checked = Boolean(state[name]);
        else input.value = state[name] || (name === "sort" ? "order" : "");
      }
      load();
      return true;
    },
  };
}

export function outcome(row) {
  if (row.stop === "env_failed") return ["failed", "failed"];
  if (row.success === null || row.success === undefined) return ["none", spaced(row.stop)];
  return row.success > 0 ? ["won", "success"] : ["lost", row.stop === "done" ? "not solved" : spaced(row.stop)];
}

export function drawRow(id, row, state = {}, most = 1) {
  const [cls, words] = outcome(row);
  const query = state.text ? { find: state.text } : null;
  return h("div", { class: "row", role: "listitem", "data-name": row.name },
    h("span", { class: `outcome ${cls}` }, words),
    h("div", { class: "what" }, h("a", { class: "name", href: link(runPath(id, `/t/${row.name}`), query) }, row.question || row.task),
      h("div", { class: "about" }, h("span", { class: "mono" }, row.name), row.question ? ` · task ${row.task}` : "", row.failure ? ` · ${row.failure}` : "")),
    h("span", { class: "paid" }, Object.entries(row.rewards).filter(([, value]) => value !== 0).slice(0, 3).map(([name, value]) => h("span", { class: `pill ${value > 0 ? "plus" : "minus"}` }, spaced(name), " ", h("b", null, signed(value))))),
    h("span", { class: "n strong right", title: "reward" }, row.reward === null ? "–" : signed(row.reward)),
    h("span", { class: "spread", title: `reward spread in the group: ${num(row.spread, 3)}` }, h("span", { style: { width: `${(100 * row.spread) / most}%` } })),
    h("span", { class: "n soft right" }, plural(row.turns, "turn")), h("span", { class: "n soft right" }, `${row.tokens.toLocaleString("en")} tok`), h("span", { class: "n soft right" }, duration(row.seconds)));
}
