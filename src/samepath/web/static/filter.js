// What is typed into "Find": an index, or conditions that all must hold.
//
//   1234                 example 1234
//   doubt>95 loss>=2     numbers: doubt (percent), loss, confidence, sure, training_margin,
//                        index, cluster
//   class=cat suggested=dog reason=noise decision=relabel reviewed=no
//   patient=17           a fact of the recipe
//   #blurry              a tag: a word of the note that begins with #
//   blurry               in the note, the class or the reason

import { find, whole } from "./dom.js";

const OPERATORS = {
  ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b,
  "=": (a, b) => a === b, "!=": (a, b) => a !== b,
};
const lower = (value) => String(value).toLowerCase();

/** Functions from an example to what a name stands for. */
function names(model) {
  const { about } = model;
  const known = {
    index: (i) => i,
    cluster: (i) => model.cluster[i],
    reason: (i) => about.reasons[model.reason[i]],
    decision: (i) => (model.target[i] >= 0 ? "relabel" : model.kept[i] ? "keep" : "drop"),
    reviewed: (i) => (model.seen[i] ? "yes" : "no"),
    note: (i) => model.notes.get(i) || "",
  };
  if (about.has_losses) known.loss = (i) => model.loss[i];
  if (about.has_doubts) known.doubt = (i) => model.doubt[i];
  if (about.has_guesses) known.sure = (i) => 100 * model.sure[i];
  if (model.confidence.some(Number.isFinite)) known.confidence = (i) => 100 * model.confidence[i];
  if (model.trainingMargin.some(Number.isFinite)) known.training_margin = (i) => model.trainingMargin[i];
  if (about.has_labels) {
    known.class = (i) => model.className(model.label[i]);
    known.suggested = (i) => (model.suggested[i] < 0 ? "" : model.className(model.suggested[i]));
  }
  for (const [name, values] of Object.entries(about.facts)) known[lower(name)] = (i) => values[i];
  return known;
}

export const tagsOf = (note) => (note || "").toLowerCase().match(/(?<=^|\s)#\S+/g) || [];

function condition(text, model, known) {
  const found = /^([^<>=!"]+)(>=|<=|!=|>|<|=)(.*)$/.exec(text);
  if (!found) {
    const word = lower(text).replaceAll('"', "");
    if (word.startsWith("#")) return (i) => tagsOf(model.notes.get(i)).includes(word);
    return (i) => lower(model.notes.get(i) || "").includes(word) ||
      lower(model.about.reasons[model.reason[i]]).includes(word) ||
      (model.about.has_labels && lower(model.className(model.label[i])).includes(word));
  }
  const [, name, operator, typed] = found;
  const value = known[lower(name)];
  if (!value) throw new Error(`There is no ${name}; choose from ${Object.keys(known).join(", ")}.`);
  const wanted = typed.replaceAll('"', "").replace(/%$/, "");
  const number = Number(wanted);
  const isNumber = wanted !== "" && Number.isFinite(number);
  if (!isNumber && !["=", "!="].includes(operator)) {
    throw new Error(`${text}: give a number after ${operator}`);
  }
  const test = OPERATORS[operator];
  return (i) => {
    const has = value(i);
    return typeof has === "number" && isNumber ? test(has, number) : test(lower(has), lower(wanted));
  };
}

/** {row} for an index, {test, words} for conditions, null for nothing; an Error says what is wrong. */
export function parseQuery(text, model) {
  const parts = text.trim().match(/(?:[^\s"]|"[^"]*")+/g) || [];
  if (!parts.length) return null;
  if (parts.length === 1 && /^\d+$/.test(parts[0])) {
    const row = Number(parts[0]);
    if (row >= model.num) throw new Error(`There are ${model.num} examples, counted from 0.`);
    return { row };
  }
  const known = names(model);
  const tests = parts.map((part) => condition(part, model, known));
  return { test: (i) => tests.every((test) => test(i)) };
}

/** "Find": an index shows that example; anything else filters all that is shown. */
export function findBox(model, act) {
  const [box, said] = [find("find"), find("find-words")];
  let waiting = 0;
  const follow = () => {
    try {
      const query = parseQuery(box.value, model);
      box.setCustomValidity("");
      model.test = query?.test || null;
      model.tell("filters");
      const shown = model.test ? model.label.reduce((sum, _, i) => sum + model.isVisible(i), 0) : 0;
      said.textContent = model.test ? `${whole(shown)} shown` : query ? "Enter shows it" : "";
      return query;
    } catch (error) {
      box.setCustomValidity(error.message);
      said.textContent = error.message;
      return null;
    }
  };
  box.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(follow, 150);
  });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    clearTimeout(waiting);
    const query = follow();
    if (query?.row !== undefined) act.show(query.row);
  });
  model.on("data review", () => { if (model.test) follow(); });
}
