// One trajectory: the conversation, its tokens, its siblings, the same task at other times, and branches from any turn.

import { h, replace, segmented } from "./dom.js";
import { get, link, runApi, runPath } from "./api.js";
import { conversation } from "./conversation.js";
import { tokenTab } from "./tokens.js";
import { branchForm } from "./branch.js";
import { drawRow, outcome } from "./browse.js";
import { duration, num, plural, signed, spaced } from "./format.js";
import { keys } from "./keys.js";

export async function trajectoryPage(main, [id, name], query) {
  const data = await get(runApi(id, `/trajectory/${name}`));
  const state = { view: query.get("view") || "conversation", paint: query.get("paint") || "", turn: query.get("turn") || "", find: query.get("find") || "" };
  const body = h("div", { class: "tab-body" });
  let shown = null;
  const keep = (part) => {
    Object.assign(state, part);
    history.replaceState(null, "", link(runPath(id, `/t/${name}`), { ...state, view: state.view === "conversation" ? "" : state.view }));
  };
  const branchFrom = (turn) => { keep({ view: "branch", turn: String(turn) }); views.pick("branch"); };

  function draw() {
    shown = null;
    if (state.view === "tokens") shown = tokenTab(body, data, new URLSearchParams(state), keep);
    else if (state.view === "siblings") relatives(body, id, data, data.siblings, "The other episodes of its group: the same task, another chance.");
    else if (state.view === "task") relatives(body, id, data, data.same_task, "The same task at other steps and checkpoints.");
    else if (state.view === "branch") branchForm(body, id, data, Number(state.turn || 1));
    else replace(body, conversation(data, { branchFrom, find: state.find }));
    if (state.turn && state.view !== "branch") goTo(state.turn);
  }
  function goTo(turn) {
    const place = body.querySelector(`#turn-${CSS.escape(turn)}`);
    if (place) { place.scrollIntoView({ block: "center" }); place.classList.add("aimed"); }
  }

  const views = segmented("View", [["conversation", "Conversation"], ["tokens", "Tokens"], ["siblings", `Siblings ${data.siblings.length - 1}`],
    ["task", `Same task ${data.same_task.length}`], ["branch", "Branch"]], state.view, (view) => { keep({ view }); draw(); });
  replace(main, head(id, data), h("div", { class: "controls" }, views), body);
  draw();

  const at = data.siblings.findIndex((one) => one.name === name);
  const go = (step) => { const next = data.siblings[at + step]; if (next) location.hash = link(runPath(id, `/t/${next.name}`), { view: state.view === "conversation" ? "" : state.view, paint: state.paint }); };
  keys.on("j", "next member of the group", () => go(1));
  keys.on("k", "previous member of the group", () => go(-1));
  keys.on("c", "conversation", () => views.pick("conversation"));
  keys.on("x", "tokens", () => views.pick("tokens"));
  keys.on("s", "siblings", () => views.pick("siblings"));
  keys.on("b", "branch", () => views.pick("branch"));
  for (let i = 1; i <= 6; i++) keys.on(String(i), `paint by the ${["first", "second", "third", "fourth", "fifth", "sixth"][i - 1]} number`, () => shown && shown.pick && shown.pick(i - 1));
  return null;
}

function head(id, data) {
  const [cls, words] = outcome({ ...data, success: data.metrics.success });
  const asked = data.task.data.question || data.task.data.instruction || "";
  const tokens = data.turns.reduce((sum, turn) => sum + turn.action.length, 0);
  const facts = Object.entries(data.task.data).filter(([key]) => key !== "question");
  return h("div", { class: "trajectory-head" },
    h("div", { class: "title-row" }, h("h1", null, asked || `Task ${data.task.id}`), h("span", { class: `outcome ${cls}` }, words)),
    h("div", { class: "meta" }, h("span", { class: "pill strong" }, "reward ", h("b", null, data.reward === null ? "–" : signed(data.reward))),
      Object.entries(data.rewards).map(([name, value]) => h("span", { class: `pill ${value > 0 ? "plus" : value < 0 ? "minus" : ""}` }, spaced(name), " ", h("b", null, signed(value)))),
      h("span", null, `ended by ${spaced(data.stop)}`), h("span", null, plural(data.turns.length, "turn")), h("span", null, `${plural(tokens, "token")} sampled`), h("span", null, duration(data.seconds)),
      h("a", { href: link(runPath(id, "/trajectories"), { step: data.step, stage: data.stage }) }, `${data.stage}, step ${data.step}`), h("span", { class: "mono" }, `task ${data.task.id}`)),
    data.failure && h("p", { class: "bad" }, data.failure),
    facts.length > 0 && h("details", { class: "task-data" }, h("summary", null, "Task and measurements"), h("dl", { class: "facts" },
      facts.map(([key, value]) => [h("dt", null, key), h("dd", null, typeof value === "string" ? value : JSON.stringify(value))]),
      Object.entries(data.metrics).map(([key, value]) => [h("dt", null, key), h("dd", null, num(value))]), h("dt", null, "episode seed"), h("dd", { class: "mono" }, data.episode_seed))));
}

function relatives(body, id, data, rows, words) {
  const chosen = new Set([data.name]);
  const button = h("a", { class: "button" });
  const label = () => {
    const names = [...chosen];
    button.textContent = names.length > 1 ? `Put ${names.length} side by side` : "Choose some to put side by side";
    if (names.length > 1) button.setAttribute("href", link(runPath(id, "/compare"), { name: names })); else button.removeAttribute("href");
    button.setAttribute("aria-disabled", String(names.length < 2));
  };
  const others = rows.filter((row) => row.name !== data.name);
  const ranked = [...others].sort((a, b) => (b.reward ?? 0) - (a.reward ?? 0));
  for (const row of ranked.length > 1 ? [ranked[0], ranked[ranked.length - 1]] : ranked) chosen.add(row.name);
  label();
  replace(body, h("div", { class: "controls" }, h("p", { class: "soft" }, words), h("span", { class: "grow" }), others.length > 0 && button),
    others.length ? h("div", { class: "rows" }, rows.map((row) => h("div", { class: `picked${row.name === data.name ? " current" : ""}` },
      h("input", { type: "checkbox", "aria-label": `Choose ${row.name}`, ...(chosen.has(row.name) ? { checked: true } : {}),
        onchange: (event) => { event.target.checked ? chosen.add(row.name) : chosen.delete(row.name); label(); } }), drawRow(id, row))))
      : h("p", { class: "soft empty" }, "There are none."));
}
