// Pieces that several pages share: badges, facts, commands to copy, rows of runs, cards.

import { el, say, short, whole } from "./dom.js";
import { STATUS, ago, duration, figure, joined, known } from "./ui_words.js";

function shape(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** A curve without axes, to be seen at a glance: lighter than a chart for each of many rows. */
export function sparkline(values) {
  const svg = shape("svg", { class: "spark", viewBox: "0 0 100 28", preserveAspectRatio: "none",
                             "aria-hidden": "true" });
  if (values.length < 2) return svg;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const points = values.map((value, i) => {
    const [x, y] = [(100 * i) / (values.length - 1), (value - low) / (high - low || 1)];
    return `${x.toFixed(1)},${(26 - 24 * y).toFixed(1)}`;
  });
  svg.append(shape("polyline", { points: points.join(" ") }));
  return svg;
}

export const linkOf = ({ kind, id }) => (kind === "run" ? `#/run/${id}` : `#/item/${id}`);

export const back = () =>
  el("p", { class: "crumbs" }, el("a", { href: "#/" }, "\u2190 Overview"));

export function badge({ status, is_live: isLive }) {
  if (!status) return null;
  const pulse = isLive ? el("span", { class: "pulse" }) : null;
  return el("span", { class: `badge ${status}` }, pulse, STATUS[status] || status);
}

export const kindBadge = ({ kind }) => el("span", { class: "badge kind" }, kind);

/** A command line with a button that copies it. */
export function command(text) {
  const code = el("code", {}, text);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied.");
    } catch {
      getSelection().selectAllChildren(code); // not allowed: make it easy by hand
      say("Press Ctrl+C to copy.");
    }
  };
  return el("p", { class: "command" }, code,
            el("button", { type: "button", onclick: copy, "aria-label": `Copy: ${text}` }, "Copy"));
}

/** What there is to say of a run in numbers, as pairs of name and words. */
export function numbers(run) {
  const metrics = Object.entries(run.metrics || {}).slice(0, 2);
  const all = [
    ["training loss", figure(run.train_loss)],
    ["validation loss", figure(run.valid_loss)],
    ...metrics.map(([name, value]) => [name.replaceAll("_", " "), figure(value)]),
    ["noise scale", known(run.noise_scale) ? short(run.noise_scale) : ""],
    ["steps", known(run.steps) ? whole(run.steps) : ""],
    ["epochs", known(run.epochs) ? short(run.epochs) : ""],
    ["workers", known(run.workers) ? String(run.workers) : ""],
    ["digest", (run.digest || "").slice(0, 8)],
  ];
  return all.filter(([, words]) => words !== "");
}

export const facts = (pairs, kind = "numbers-list") => el("dl", { class: kind },
  pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

/** How far a run under way has come. */
export function progress(run) {
  if (!run.is_live || !run.steps_to_do || !known(run.steps)) return null;
  const share = Math.min(100, (100 * run.steps) / run.steps_to_do);
  return el("div", { class: "progress", role: "progressbar", "aria-label": `${run.name}: progress`,
                     "aria-valuenow": Math.round(share), "aria-valuemin": 0, "aria-valuemax": 100 },
            el("span", { style: { width: `${share}%` } }));
}

/** What a study, finding or curation is about. */
export const about = (item) =>
  joined(item.recipe, item.title === item.kind ? "" : item.title, ...item.facts);

/** A study, finding or curation in a list. */
export function card(item) {
  return el("li", { class: "card", "data-id": item.id },
    el("p", { class: "card-head" }, kindBadge(item), badge(item),
       el("span", { class: "quiet" }, ago(item.time))),
    el("p", { class: "card-title" }, el("a", { href: linkOf(item) }, item.name)),
    item.verdict ? el("p", { class: "card-verdict" }, item.verdict) : null,
    el("p", { class: "quiet" }, item.error || about(item)));
}

/** Choices of which one is made. */
export function segments(label, choices, chosen, choose) {
  const name = `choice-${label}`;
  return el("div", { class: "segments", role: "radiogroup", "aria-label": label },
    choices.map(([value, words]) => el("label", {},
      el("input", { type: "radio", name, value, checked: value === chosen,
                    onchange: () => choose(value) }),
      el("span", {}, words))));
}

/** Replace a list's items where they have changed, so that what is in use stays. */
export function keep(list, items, make) {
  const old = list.kept || new Map();
  list.kept = new Map(items.map((item) => {
    const text = JSON.stringify(item) + ago(item.time);
    const same = old.get(item.id);
    return [item.id, same?.text === text ? same : { text, node: make(item) }];
  }));
  const nodes = [...list.kept.values()].map(({ node }) => node);
  const isSame = (node, i) => node === list.children[i];
  if (nodes.length === list.children.length && nodes.every(isSame)) return;
  const active = document.activeElement;
  const id = list.contains(active) ? active.closest("[data-id]")?.dataset.id : null;
  list.replaceChildren(...nodes);
  if (id) list.kept.get(id)?.node.querySelector(active.tagName)?.focus();
}
