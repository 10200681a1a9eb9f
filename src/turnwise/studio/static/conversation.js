// A trajectory as a conversation: tools beside their calls, results folded, thoughts apart, rewards where they were earned.

import { h } from "./dom.js";
import { num, signed, spaced } from "./format.js";

const PREVIEW = 140;
const mean = (values) => (values.length ? values.reduce((sum, one) => sum + one, 0) / values.length : null);
const known = (values) => values.filter((value) => value !== null && value !== undefined);

export function conversation(data, { branchFrom = null, find = "", compact = false } = {}) {
  return h("div", { class: compact ? "conversation compact" : "conversation" }, data.blocks.map((block) => [
    block.rewritten && h("div", { class: "row-break" }, "⟲ a new row begins: the conversation was rewritten"),
    message(block, data, { branchFrom, find })]));
}

function message(block, data, { branchFrom, find }) {
  const turn = block.turn === null ? null : data.turns[block.turn];
  const folded = ["system", "tool"].includes(block.role);
  const text = written(block.parts, data.legend, find);
  const whole = block.parts.map((part) => part.text || "").join(" ").replace(/\s+/g, " ").trim();
  const found = find && whole.toLowerCase().includes(find.toLowerCase());
  return h("article", { class: `message ${block.role}`, id: block.turn === null ? null : `turn-${block.turn + 1}` },
    h("header", null, h("b", null, block.role), turn && h("span", { class: "soft turn-number" }, `turn ${block.turn + 1}`), turn && figures(turn)),
    h("div", { class: "body" },
      block.thinking && h("details", { class: "thinking", open: true }, h("summary", null, "thinking"), marked(block.thinking, find)),
      block.parts.length > 0 && (folded ? h("details", { class: "fold", open: Boolean(found) }, h("summary", null, whole.slice(0, PREVIEW) + (whole.length > PREVIEW ? "…" : "") || "(empty)"), text) : text),
      block.calls.map((call) => toolCall(call, data.tools)),
      block.cut && h("p", { class: "warn small" }, "cut off by the turn's limit of tokens"),
      turn && (Object.keys(block.rewards).length > 0 || branchFrom) && h("footer", null,
        Object.entries(block.rewards).map(([name, value]) => h("span", { class: `pill ${value > 0 ? "plus" : value < 0 ? "minus" : ""}` }, spaced(name), " ", h("b", null, signed(value)))),
        branchFrom && h("button", { type: "button", class: "plain small branch", onclick: () => branchFrom(block.turn + 1) }, "branch from here"))));
}

function figures(turn) {
  const advantage = known(turn.action.map((one) => one[3]));
  const parts = [`read ${turn.context.length}, sampled ${turn.action.length} tokens`];
  if (turn.action.length) parts.push(`mean logprob ${num(mean(turn.action.map((one) => one[2])), 3)}`);
  if (advantage.length) parts.push(`advantage ${signed(mean(advantage))}`);
  if (turn.seconds || turn.env_seconds) parts.push(`${num(turn.seconds, 2)} s to sample, ${num(turn.env_seconds, 2)} s in the environment`);
  parts.push(`weights of step ${turn.version}`);
  if (!turn.action.length && !turn.seconds) return null;
  return turn ? h("span", { class: "soft small figures" }, parts.join(" · ")) : null;
}

function toolCall(call, tools) {
  let pretty = call.arguments;
  try { pretty = JSON.stringify(JSON.parse(call.arguments), null, 1).replace(/\n\s*/g, " "); } catch { /* shown as the model wrote it */ }
  const about = tools[call.name];
  return h("div", { class: "call" }, h("div", { class: "call-line" }, h("b", null, call.name || "?"), h("code", null, pretty)),
    call.problem && h("p", { class: "bad small" }, call.problem),
    about ? h("details", { class: "definition" }, h("summary", null, "definition"), h("pre", null, about)) : call.name && Object.keys(tools).length > 0 && h("p", { class: "warn small" }, "no tool of this name was offered"));
}

function written(parts, legend, find) {
  return h("div", { class: "written" }, parts.map((part) => (part.board ? board(part.board, legend) : marked(part.text, find))));
}

export function board(cells, legend) {
  const words = cells.map((row) => row.map((mark) => (legend[mark] ? legend[mark].meaning : mark)).join(", ")).join("; ");
  return h("div", { class: "board", role: "img", "aria-label": words, style: { "--columns": String(cells[0].length) } },
    cells.flat().map((mark) => h("span", { class: `cell ${legend[mark] ? legend[mark].kind : "other"}`, title: legend[mark] ? legend[mark].meaning : "" }, mark === "_" ? "" : mark)));
}

function marked(text, find) {
  if (!find) return h("p", null, text);
  const parts = [], low = text.toLowerCase(), words = find.toLowerCase();
  let at = 0;
  for (let next = low.indexOf(words); next >= 0 && low.length === text.length; next = low.indexOf(words, at)) {
    parts.push(text.slice(at, next), h("mark", null, text.slice(next, next + words.length)));
    at = next + words.length;
  }
  return h("p", null, parts, text.slice(at));
}
