// The token view: every token of a trajectory, painted by one of its numbers, which all show on hover and by arrow keys.

import { h, replace, segmented } from "./dom.js";
import { num, signed, spaced } from "./format.js";

export const MODES = [
  ["role", "role", "blue: sampled by the agent; plain: read"],
  ["advantage", "advantage", "green: made likelier; red: made less likely"],
  ["logprob", "logprob", "stronger: the sampler thought it less likely"],
  ["gap", "gap", "stronger: sampler and learner disagree more about its probability (logarithmic)"],
  ["entropy", "entropy", "stronger: the learner was less certain what comes here"],
  ["version", "version", "a colour for each version of the weights that sampled"],
];
const ID = 0, TEXT = 1, LOGPROB = 2, ADVANTAGE = 3, LEARNER = 4, ENTROPY = 5;
const FAINT = 1e-7, STRONG = 1e-1;
const VERSIONS = 8;

const known = (values) => values.filter((value) => value !== null && value !== undefined);
export const gapOf = (token) => (token[LEARNER] === null ? null : token[LEARNER] - token[LOGPROB]);

// The modes that a trajectory has numbers for.
export function modesOf(trajectory) {
  const actions = trajectory.turns.flatMap((turn) => turn.action);
  const has = { role: true, advantage: known(actions.map((one) => one[ADVANTAGE])).length, logprob: actions.length,
    gap: known(actions.map((one) => one[LEARNER])).length, entropy: known(actions.map((one) => one[ENTROPY])).length, version: actions.length };
  return MODES.filter(([name]) => has[name]);
}

function scalesOf(trajectories) {
  const turns = trajectories.flatMap((one) => one.turns);
  const actions = turns.flatMap((turn) => turn.action);
  const top = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return { advantage: top(known(actions.map((one) => one[ADVANTAGE]))), entropy: top(known(actions.map((one) => one[ENTROPY]))),
    gap: top(known(actions.map(gapOf))), logprob: Math.min(0, ...actions.map((one) => one[LOGPROB])),
    versions: [...new Set(turns.filter((turn) => turn.action.length).map((turn) => turn.version))].sort((a, b) => a - b) };
}

const logShare = (gap) => Math.min(1, Math.max(0, Math.log(Math.max(gap, FAINT) / FAINT) / Math.log(STRONG / FAINT)));

function shares(token, scales) {
  const vars = { "--l": (1 - Math.exp(Math.min(token[LOGPROB], 0))).toFixed(3) };
  if (token[ADVANTAGE] !== null) vars["--a"] = (scales.advantage ? Math.abs(token[ADVANTAGE]) / scales.advantage : 0).toFixed(3);
  if (token[LEARNER] !== null) vars["--g"] = logShare(Math.abs(gapOf(token))).toFixed(3);
  if (token[ENTROPY] !== null) vars["--e"] = (scales.entropy ? token[ENTROPY] / scales.entropy : 0).toFixed(3);
  return vars;
}

const shown = (text) => text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t") || "∅";

// mark: {turn, part, place}, the first token that differs from another trajectory.
export function tokenFlow(trajectory, { scales = scalesOf([trajectory]), mark = null, find = "" } = {}) {
  const spots = [];
  const flow = h("div", { class: "tokens", role: "group", "aria-label": "Tokens; arrow keys move, numbers are beside" });
  const words = find.toLowerCase();
  trajectory.turns.forEach((turn, number) => {
    if (number > 0 && turn.opens_row) flow.append(h("div", { class: "row-break" }, "⟲ a new row begins: the conversation was rewritten"));
    flow.append(h("div", { class: "turn-mark", id: `turn-${number + 1}` }, h("b", null, `turn ${number + 1}`),
      h("span", null, `read ${turn.context.length}, sampled ${turn.action.length}`), h("span", null, `weights of step ${turn.version}`),
      turn.finish !== "stop" && h("span", { class: "warn" }, turn.finish === "length" ? "cut off by the turn's limit" : spaced(turn.finish)),
      Object.entries(turn.rewards).map(([name, value]) => h("span", { class: `pill ${value > 0 ? "plus" : value < 0 ? "minus" : ""}` }, spaced(name), " ", h("b", null, signed(value))))));
    const stretch = h("p");
    for (const [part, word] of [["context", "read"], ["action", "sampled"]]) {
      turn[part].forEach((token, place) => {
        const sampled = part === "action";
        const version = sampled ? ` v${scales.versions.indexOf(turn.version) % VERSIONS}` : "";
        const sign = sampled && token[ADVANTAGE] ? (token[ADVANTAGE] > 0 ? " plus" : " minus") : "";
        const here = mark && mark.turn === number && mark.part === word && mark.place === place;
        const hit = words && token[TEXT].trim() && words.includes(token[TEXT].trim().toLowerCase()) ? " hit" : "";
        const spot = h("span", { class: `tok ${sampled ? "act" : "ctx"}${sign}${version}${here ? " differs" : ""}${hit}`, tabindex: -1, style: sampled ? shares(token, scales) : null }, shown(token[TEXT]));
        spot.about = { token, sampled, turn: number, place, version: turn.version, role: sampled ? "sampled" : "read" };
        spots.push(spot);
        stretch.append(spot);
      });
      if (mark && mark.turn === number && mark.part === word && mark.place >= turn[part].length) stretch.append(h("span", { class: "tok differs gone", title: "it ends here; the other goes on" }, "▮"));
    }
    flow.append(stretch);
  });
  if (trajectory.tail.length) flow.append(h("div", { class: "turn-mark" }, h("b", null, "tail"), h("span", null, "would have been read next")),
    h("p", null, trajectory.tail.map(([token, text]) => { const spot = h("span", { class: "tok ctx tail", tabindex: -1 }, shown(text)); spot.about = { token: [token, text], sampled: false, role: "tail" }; spots.push(spot); return spot; })));
  if (spots.length) spots[0].tabIndex = 0;
  flow.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 12, ArrowUp: -12 }[event.key];
    const at = spots.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    event.stopPropagation();
    const next = spots[Math.max(0, Math.min(spots.length - 1, at + step))];
    spots[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  return flow;
}

export function inspector() {
  const panel = h("aside", { class: "inspector", "aria-live": "polite" });
  const idle = () => replace(panel, h("p", { class: "soft" }, "Point at a token, or move through them with the arrow keys."));
  const fact = (name, value, exact) => value !== null && value !== undefined &&
    h("div", null, h("dt", null, name), h("dd", { "data-fact": name.replaceAll(" ", "-"), "data-exact": exact === undefined ? null : String(exact) }, value));
  function show({ token, sampled, turn, place, version, role }) {
    replace(panel, h("p", { class: "token-text" }, shown(token[TEXT])), h("dl", null, fact("id", String(token[ID]), token[ID]), fact("role", role), turn !== undefined && fact("turn", `${turn + 1}, token ${place + 1}`),
      sampled && [fact("advantage", token[ADVANTAGE] === null ? "not trained on" : signed(token[ADVANTAGE], 7), token[ADVANTAGE] ?? undefined),
        fact("logprob", num(token[LOGPROB], 7), token[LOGPROB]), fact("probability", num(Math.exp(token[LOGPROB]), 4)),
        token[LEARNER] !== null && [fact("learner logprob", num(token[LEARNER], 7), token[LEARNER]), fact("gap", num(gapOf(token), 4), gapOf(token))],
        token[ENTROPY] !== null && fact("entropy", num(token[ENTROPY], 7), token[ENTROPY]), fact("version", `step ${version}`, version)]));
  }
  idle();
  return { el: panel, watch(flow) {
    for (const kind of ["mouseover", "focusin", "click"]) flow.addEventListener(kind, (event) => { if (event.target.about) show(event.target.about); });
  } };
}

export function legendOf(mode, scales) {
  const ends = { advantage: [signed(-scales.advantage), "0", signed(scales.advantage)], logprob: ["certain", num(scales.logprob, 3)], gap: [num(FAINT, 1), `≥ ${num(STRONG, 1)}; largest here ${num(scales.gap, 2)}`], entropy: ["0", `${num(scales.entropy, 3)} nats`] }[mode];
  const meaning = MODES.find(([name]) => name === mode)[2];
  const strip = mode === "version" ? h("span", { class: "swatches" }, scales.versions.map((version, i) => h("span", null, h("i", { class: `swatch v${i % VERSIONS}` }), `step ${version}`)))
    : ends && h("span", { class: `strip paint-${mode}` }, h("span", null, ends[0]), h("i"), h("span", null, ends[ends.length - 1]));
  return h("p", { class: "legend" }, strip, h("span", { class: "soft" }, meaning));
}

export function tokenTab(body, trajectory, query, keep) {
  if (!trajectory.turns.some((turn) => turn.action.length)) return replace(body, h("p", { class: "soft empty" }, "The agent of this trajectory gave no tokens: a model behind an API, a person or a script."));
  const modes = modesOf(trajectory), scales = scalesOf([trajectory]);
  let mode = query.get("paint") || (modes.some(([name]) => name === "advantage") ? "advantage" : "role");
  if (!modes.some(([name]) => name === mode)) mode = "role";
  const flow = tokenFlow(trajectory, { scales, find: query.get("find") || "" });
  const legend = h("div"), side = inspector(), holder = h("div", { class: "token-view" }, flow, side.el);
  const paint = (name) => { mode = name; holder.className = `token-view paint-${name}`; replace(legend, legendOf(name, scales)); keep({ paint: name }); };
  side.watch(flow);
  const choice = segmented("Paint by", modes.map(([name, text, title]) => [name, text, title]), mode, paint);
  replace(body, h("div", { class: "controls" }, h("span", { class: "soft" }, "Paint by"), choice), legend,
    !trajectory.pieces && h("p", { class: "soft" }, "This run has no checkpoint with a tokenizer yet: tokens are shown as ids."), holder);
  paint(mode);
  return { pick: (place) => modes[place] && choice.pick(modes[place][0]) };
}

export { scalesOf };
