// Branches: go on from a turn with another checkpoint, temperature, tool result, or a move of your own.

import { h, replace } from "./dom.js";
import { get, link, post, runApi, runPath } from "./api.js";
import { sideBySide } from "./compare.js";

export function branchForm(body, id, data, turn) {
  replace(body, h("p", { class: "soft" }, "Branches are not there yet."));
}

export async function branchPage(main, [id, branch]) {
  replace(main, h("p", null, branch));
  return null;
}
