// Trajectories side by side: siblings of a group, one task at several checkpoints, a branch beside its origin.

import { h, replace, segmented } from "./dom.js";
import { get, link, runApi, runPath } from "./api.js";
import { conversation } from "./conversation.js";
import { inspector, legendOf, modesOf, scalesOf, tokenFlow } from "./tokens.js";
import { outcome } from "./browse.js";
import { plural, signed } from "./format.js";

export async function comparePage(main, [id], query) {
  const data = await get(runApi(id, "/compare"), { name: query.getAll("name") });
  const body = h("div");
  replace(main, h("div", { class: "title-row" }, h("h1", null, "Side by side"), h("span", { class: "soft" }, `task ${data.trajectories[0].task.id}`)), body);
  sideBySide(body, id, data);
  return null;
}

export function sideBySide(body, id, { trajectories, differs }) {
  const scales = scalesOf(trajectories);
  const modes = modesOf(trajectories[0]);
  let kind = "tokens", mode = "role";
  const columns = h("div", { class: "columns", style: { "--many": String(trajectories.length) } });
  const legend = h("div"), side = inspector();

  function draw() {
    columns.className = `columns paint-${mode}`;
    replace(columns, trajectories.map((one, place) => {
      const flow = kind === "tokens" ? tokenFlow(one, { scales, mark: differs[place] }) : conversation(one, { compact: true });
      if (kind === "tokens") side.watch(flow);
      return h("section", { class: "card column" }, title(id, one, place, differs[place]), flow);
    }));
    replace(legend, kind === "tokens" && legendOf(mode, scales));
    side.el.hidden = kind !== "tokens";
  }

  const paint = segmented("Paint by", modes.map(([name, text, about]) => [name, text, about]), mode, (next) => { mode = next; draw(); });
  const jump = h("button", { type: "button", onclick: () => { const spot = columns.querySelector(".differs"); if (spot) { spot.scrollIntoView({ block: "center" }); spot.focus(); } } }, "First difference");
  replace(body, h("div", { class: "controls" }, segmented("Show", [["tokens", "Tokens"], ["conversation", "Conversation"]], kind, (next) => { kind = next; draw(); }), paint, differs.some(Boolean) && jump), legend, columns, side.el);
  draw();
}

function title(id, one, place, differs) {
  const [cls, words] = outcome({ ...one, success: one.metrics.success });
  const where = !differs ? (place ? "nothing differs as far as both go" : "") : `differs from the first in turn ${differs.turn + 1}, ${differs.part} token ${differs.place + 1}`;
  return h("header", null, one.name ? h("a", { class: "mono", href: link(runPath(id, `/t/${one.name}`)) }, one.label || one.name) : h("b", null, one.label),
    h("span", { class: `outcome ${cls}` }, words), h("span", { class: "n" }, one.reward === null ? "–" : signed(one.reward)), h("span", { class: "soft small" }, plural(one.turns.length, "turn")), where && h("p", { class: "soft small" }, where));
}
