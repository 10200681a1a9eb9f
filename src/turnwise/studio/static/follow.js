// The curves of one run that a page has: asked for once, then only what the run has written since.

import { get, runApi } from "./api.js";

// More than twice what the server sends of a long curve: then it is asked for anew, thinned.
const MOST_POINTS = 5000;

export function follow(id) {
  const own = { series: {}, choose, update };
  let names = [], mark = "";

  // Other curves than before, from their start.
  function choose(wanted) {
    [names, mark] = [wanted, ""];
    return update();
  }

  // What is new: the run's line, and its findings and metrics where they changed.
  async function update() {
    const asked = names;
    const news = await get(runApi(id, "/series"), { name: asked, since: mark });
    if (asked !== names) return news; // other curves were chosen meanwhile
    if (news.whole) own.series = {};
    for (const tail of news.series) own.series[tail.name] = extend(own.series[tail.name], tail);
    mark = Object.values(own.series).some((one) => one.step.length > MOST_POINTS) ? "" : news.mark;
    return news;
  }
  return own;
}

// A curve and what was added to it; in another stage it begins anew, and before that it has nothing.
export function extend(had, tail) {
  if (!had || had.stage !== tail.stage) return tail;
  for (const part of ["low", "high"]) if (tail[part] && !had[part]) had[part] = had.step.map(() => null);
  for (const part of ["step", "time", "value", "low", "high"]) if (tail[part]) had[part].push(...tail[part]);
  return had;
}
