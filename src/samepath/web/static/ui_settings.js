// What runs were told, how to repeat them, and which others they can be compared with.

import { el } from "./dom.js";
import { command } from "./ui_parts.js";
import { joined, known } from "./ui_words.js";

const MOST_COMPARED = 12;

/** Commands, digests and configuration of runs. */
export function settings(runs) {
  const isMany = runs.length > 1;
  const parts = [];
  for (const run of runs) {
    const name = isMany ? `${run.name}: ` : "";
    if (run.resume) parts.push(el("h2", {}, `${name}To resume`), command(run.resume));
    if (run.command) parts.push(el("h2", {}, `${name}Command`), command(run.command));
  }
  const ended = runs.filter((run) => run.whole_digest);
  if (ended.length) parts.push(el("h2", {}, "Digest of the final state"));
  for (const run of ended) {
    parts.push(el("p", { class: "digest" }, isMany ? `${run.name} ` : "",
                  el("code", {}, run.whole_digest)));
  }
  if (!runs.length) return parts;
  return [...parts, el("h2", {}, "Configuration"), el("div", { class: "scroll" }, configuration(runs))];
}

/** A table; where runs differ comes first. */
function configuration(runs) {
  const all = runs.map(({ config, versions }) => {
    const named = Object.entries(versions).map(([name, value]) => [`${name} version`, value]);
    return { ...config, ...Object.fromEntries(named) };
  });
  const words = (value) => (!known(value) ? "\u2013"
    : typeof value === "object" ? JSON.stringify(value) : String(value));
  const row = (name) => all.map((config) => words(config[name]));
  const differs = (name) => new Set(row(name)).size > 1;
  const isSaid = (name) => !name.includes("identity") && all.some((config) => known(config[name]));
  const names = [...new Set(all.flatMap((config) => Object.keys(config)))].filter(isSaid);
  names.sort((a, b) => differs(b) - differs(a));
  const head = el("tr", {}, el("td", {}), runs.map((run) => el("th", { scope: "col" }, run.name)));
  return el("table", {}, runs.length > 1 ? head : null,
    names.map((name) => el("tr", { class: differs(name) ? "differs" : "" },
      el("th", { scope: "row" }, name.replaceAll("_", " ")),
      row(name).map((value) => el("td", {}, value)))));
}

/** A list of runs to tick; `change` is told the ids that are then to be shown. */
export function otherRuns(runs, ids, change) {
  const list = el("ul", { class: "ticks" }, runs.map((run) => {
    const isShown = ids.includes(run.id);
    const toggle = () => change(isShown ? ids.filter((id) => id !== run.id) : [...ids, run.id]);
    const workers = known(run.workers) ? `${run.workers} workers` : "";
    return el("li", {}, el("label", { class: "check" },
      el("input", { type: "checkbox", checked: isShown, onchange: toggle,
                    disabled: !isShown && ids.length >= MOST_COMPARED }),
      el("span", {}, run.name, " ",
         el("span", { class: "quiet" }, joined(run.recipe, workers, run.digest.slice(0, 8))))));
  }));
  const choose = () => {
    const wanted = filter.value.toLowerCase();
    for (const item of list.children) item.hidden = !item.textContent.toLowerCase().includes(wanted);
  };
  const filter = el("input", { type: "search", placeholder: "Filter", "aria-label": "Filter runs",
                               autocomplete: "off", oninput: choose });
  return [filter, list];
}
