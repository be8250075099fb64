// The review queue: all examples, most doubtful first, kept ones too, one after the other; and how
// far the review has come, which the server remembers.

import { decideButtons, factsOf, verdict } from "./decide.js";
import { el, find, percent, whole } from "./dom.js";
import { altOf, labelWords, thumbItem } from "./thumb.js";

const NUM_AHEAD = 12;

export function reviewPanel(model, source, act) {
  const box = find("review");
  let order = [];
  let current = -1;
  let onlyNew = false;
  let isStale = true;

  const sort = () => {
    order = [];
    for (let i = 0; i < model.num; i++) {
      if (model.isVisible(i) && (!onlyNew || !model.seen[i] || i === current)) order.push(i);
    }
    order.sort((a, b) => model.worst[b] - model.worst[a] || a - b);
    isStale = false;
  };
  const numSeen = () => model.seen.reduce((sum, seen) => sum + seen, 0);

  const show = (row) => {
    current = row;
    if (row >= 0) act.ring(row);
    draw();
  };
  /** Where an example is in the queue, or would be. */
  const placeOf = (row) => {
    const { worst } = model;
    const at = order.findIndex((i) => worst[i] < worst[row] || (worst[i] === worst[row] && i >= row));
    return at < 0 ? order.length : at;
  };
  const step = (by) => {
    const at = placeOf(current) + by;
    if (at >= 0 && at < order.length) show(order[at]);
    else draw();
  };
  /** Go on from an example, which counts as reviewed. */
  const next = (row = current) => {
    if (row < 0) return;
    if (current === row) step(1);
    if (!source.isCopy && !model.seen[row]) act.seen([row]);
  };
  const previous = () => step(-1);

  const draw = () => {
    if (box.hidden) return;
    if (isStale) sort();
    if (current < 0) current = order[0] ?? -1;
    else if (order[placeOf(current)] !== current) current = order[placeOf(current)] ?? order.at(-1) ?? -1;
    const seen = numSeen();
    const filter = el("label", { class: "check" },
      el("input", { type: "checkbox", id: "review-new", checked: onlyNew, onchange: (event) => {
        onlyNew = event.target.checked;
        isStale = true;
        show(-1);
      } }), "not reviewed only");
    const again = !source.isCopy && seen > 0 && el("button", { class: "link", type: "button",
      title: "Forget which were reviewed; decisions stay", onclick: act.reviewAgain }, "begin again");
    const progress = el("div", { class: "progress" },
      el("p", {}, el("strong", { id: "num-seen" }, whole(seen)),
         ` of ${whole(model.num)} reviewed (${percent(seen, model.num)})`),
      el("div", { class: "share plain" }, el("span", { style: { width: `${(100 * seen) / model.num}%` } })),
      el("p", { class: "quiet row" }, filter, again || ""));
    if (current < 0) {
      box.replaceChildren(progress, el("p", { class: "empty" },
        onlyNew && seen ? "All that is shown has been reviewed." : "The filters hide all examples."));
      return;
    }
    const row = current;
    const at = placeOf(row);
    const moves = el("div", { class: "moves" },
      el("button", { type: "button", id: "review-previous", disabled: at === 0, title: "Previous (←)",
                     onclick: previous }, "‹ Previous"),
      el("span", { class: "quiet" }, `${whole(at + 1)} of ${whole(order.length)}`),
      el("button", { type: "button", id: "review-next", title: "Next (→)", onclick: () => next() }, "Next ›"));
    const ahead = order.slice(at + 1, at + 1 + NUM_AHEAD);
    box.replaceChildren(...[progress,
      model.about.picture && el("div", { class: "frame large" }, source.picture(row, altOf(model, row))),
      el("div", { class: "head" }, el("strong", { class: "pair" }, labelWords(model, row) || `#${row}`),
         verdict(model, row)),
      source.isCopy ? null : decideButtons(model, act, () => [row], () => next(row)), moves,
      factsOf(model, row),
      ahead.length && el("section", { class: "ahead" }, el("h3", {}, "Next in the queue"),
        el("ul", { class: "thumbs" }, ahead.map((other) => thumbItem(model, source, act, other, show)))),
    ].filter(Boolean));
  };

  const follow = () => {
    isStale = true;
    draw();
  };
  model.on("filters load", follow);
  model.on("theme review data", draw);
  return {
    open: () => {
      const first = current < 0;
      if (isStale) sort();
      // go on where the review ended
      if (first) current = order.find((row) => !model.seen[row]) ?? order[0] ?? -1;
      show(current);
    },
    isOpen: () => !box.hidden,
    current: () => current,
    next,
    previous,
  };
}

/** A grid of what the lasso holds, so many at a time. */
export function selectedPanel(model, source, act) {
  const box = find("selected");
  const AT_ONCE = 240;
  let most = AT_ONCE;
  const draw = () => {
    const tab = find("tab-selected");
    tab.hidden = !model.selected.size;
    tab.textContent = `Selected (${whole(model.selected.size)})`;
    if (box.hidden) return;
    if (!model.selected.size) {
      act.showTab("point");
      return;
    }
    const rows = [...model.selected].sort((a, b) => model.worst[b] - model.worst[a] || a - b);
    const rest = rows.length - most;
    const more = () => {
      most += AT_ONCE;
      draw();
    };
    const order = model.about.has_doubts ? "Most doubtful first" : "In order of loss";
    box.replaceChildren(
      el("p", { class: "quiet", id: "selected-words" }, order +
        (rest > 0 ? `; ${whole(most)} of ${whole(rows.length)} are shown.` : ".")),
      el("ul", { class: "thumbs" }, rows.slice(0, most).map((row) => thumbItem(model, source, act, row))),
      rest > 0 ? el("button", { type: "button", id: "selected-more", onclick: more },
                    `Show ${whole(Math.min(rest, AT_ONCE))} more`) : "");
  };
  model.on("selection", () => {
    most = AT_ONCE;
    draw();
  });
  model.on("data theme", draw);
  draw();
  return { open: draw };
}
