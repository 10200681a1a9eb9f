// Branches: go on from a turn with another checkpoint, temperature, tool result, or a move of your own.

import { h, replace } from "./dom.js";
import { get, link, post, runApi, runPath } from "./api.js";
import { sideBySide } from "./compare.js";
import { plural } from "./format.js";

// What the agent read last before a turn, counted from 1: the message that an edit replaces.
function lastRead(data, turn) {
  const at = data.blocks.findIndex((block) => block.turn === turn - 1);
  const before = data.blocks.slice(0, at < 0 ? data.blocks.length : at);
  const from = before.map((block) => block.turn).lastIndexOf(turn - 2) + 1;
  const read = before.slice(turn > 1 ? from : 0).filter((block) => block.turn === null);
  const block = [...read].reverse().find((one) => one.role === "tool") || read[read.length - 1];
  if (!block) return null;
  const text = block.parts.map((part) => part.text ?? part.board.map((row) => row.join(" ")).join("\n")).join("\n");
  return { role: block.role, text };
}

// parent: the id of a branch, to go on from it in place of the stored trajectory.
export function branchForm(body, id, data, from, parent = null, origin = data.name) {
  const most = data.turns.length + (["done", "agent_quit", "env_failed"].includes(data.stop) ? 0 : 1);
  if (!data.turns.some((turn) => turn.action.length)) return replace(body, h("p", { class: "soft empty" }, "The agent of this trajectory gave no tokens, so the policy cannot go on from it."));
  const turn = h("input", { type: "number", min: 1, max: most, value: Math.min(Math.max(1, from), most), onchange: refill });
  const checkpoint = h("select", null, h("option", { value: "" }, "newest"));
  const temperature = h("input", { type: "number", min: 0, step: "any", placeholder: "as it was" });
  const seed = h("input", { type: "number", step: 1, placeholder: "the same draw" });
  const editing = h("input", { type: "checkbox", onchange: refill });
  const edit = h("textarea", { spellcheck: "false", "aria-label": "What it reads instead", hidden: true });
  const acting = h("input", { type: "checkbox", onchange: refill });
  const action = h("textarea", { spellcheck: "false", hidden: true, "aria-label": "Your move", placeholder: "What the assistant writes, tags included" });
  const alone = h("input", { type: "checkbox" });
  const aloneLabel = h("label", { class: "check", hidden: true }, alone, "stop after my move, and show what the environment answers");
  const reads = h("span");
  const told = h("p", { class: "bad", role: "alert" });
  const go = h("button", { class: "main", type: "submit" }, "Play the branch");

  function refill() {
    const read = lastRead(data, Number(turn.value));
    reads.textContent = `edit what it reads before turn ${turn.value}${read ? ` (${read.role})` : ""}`;
    if (edit.hidden !== !editing.checked || edit.dataset.turn !== turn.value) edit.value = read ? read.text : "";
    edit.dataset.turn = turn.value;
    edit.hidden = !editing.checked;
    action.hidden = aloneLabel.hidden = !acting.checked;
  }

  async function submit(event) {
    event.preventDefault();
    go.disabled = true;
    replace(told);
    const whole = (input) => (input.value === "" ? null : Number(input.value));
    try {
      const { branch } = await post(runApi(id, "/branch"), { trajectory: origin, parent, from_turn: whole(turn), checkpoint: whole(checkpoint), temperature: whole(temperature), seed: whole(seed),
        edit_result: editing.checked ? edit.value : null, action: acting.checked ? action.value : null, turns: acting.checked && alone.checked ? 1 : null });
      location.hash = link(runPath(id, `/branch/${branch}`));
    } catch (error) {
      replace(told, error.message);
      go.disabled = false;
    }
  }

  get(runApi(id)).then((about) => about.checkpoints.forEach((step) => checkpoint.append(h("option", { value: step }, `step ${step}`))));
  refill();
  replace(body, h("form", { class: "card branch-form", onsubmit: submit },
    h("p", { class: "soft" }, "The turns before are played again as stored; from this turn on the policy plays. With the weights that sampled it and nothing changed, it repeats itself."),
    h("div", { class: "pair" }, h("label", null, `From turn (1 to ${most})`, turn), h("label", null, "Checkpoint", checkpoint), h("label", null, "Temperature", temperature), h("label", null, "Seed", seed)),
    h("label", { class: "check" }, editing, reads), edit,
    h("label", { class: "check" }, acting, "make this move myself"), action, aloneLabel, h("div", { class: "pair" }, go, told)));
  return null;
}

export async function branchPage(main, [id, branch]) {
  const body = h("div");
  let stopped = false;
  replace(main, body);
  async function look() {
    const data = await get(`/api/branches/${branch}`);
    if (stopped) return;
    if (data.state === "done") return show(body, id, branch, data);
    if (data.state === "failed") return replace(body, h("section", { class: "card empty" }, h("h1", null, "The branch failed"), h("p", { class: "bad" }, data.line), back(id, data)));
    replace(body, h("section", { class: "card empty", role: "status" }, h("h1", null, data.state === "queued" ? "Waiting for another branch to end" : "Playing"), h("p", { class: "soft" }, "A process of its own loads the checkpoint and the environment, which takes a few seconds."), back(id, data)));
    setTimeout(() => look().catch((error) => replace(body, h("p", { class: "bad" }, error.message))), 700);
  }
  await look();
  return { stop: () => { stopped = true; } };
}

const back = (id, data) => h("p", null, h("a", { href: link(runPath(id, `/t/${data.asked.trajectory}`)) }, data.asked.trajectory));

function show(body, id, branch, data) {
  const [origin, made] = data.trajectories;
  const asked = data.asked;
  const changes = [[asked.checkpoint !== null, `checkpoint of step ${asked.checkpoint}`], [asked.temperature !== null, `temperature ${asked.temperature}`], [asked.seed !== null, `seed ${asked.seed}`],
    [asked.edit_result !== null, "an edited result"], [asked.action !== null, "a move of your own"], [asked.turns !== null, plural(asked.turns || 0, "turn")]].filter(([on]) => on).map(([, words]) => words);
  const columns = h("div"), form = h("div");
  replace(body, h("div", { class: "title-row" }, h("h1", null, `Branch from turn ${asked.from_turn}`), h("span", { class: "soft" }, changes.join(", ") || "nothing changed")),
    h("p", { class: "branch-result" }, data.line), columns, h("h2", null, "Go on from this branch"), form);
  sideBySide(columns, id, { trajectories: [origin, made], differs: data.differs });
  branchForm(form, id, made, asked.from_turn + 1, branch, asked.trajectory);
}
