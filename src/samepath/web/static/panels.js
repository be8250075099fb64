// The left panel: running counts, colours, and what is shown of classes and reasons; and the key on
// the map.

import { el, find, percent, short, whole } from "./dom.js";
import { classColour, keptColour, neutral, rampStops } from "./palette.js";

const NUM_PAIRS = 5;
const WAYS = [["class", "Class"], ["cluster", "Cluster"], ["kept", "Kept"], ["loss", "Loss"],
              ["doubt", "Doubt"]];

export function countsPanel(model) {
  const draw = () => {
    const { kept, all } = model.counts();
    find("num-kept").textContent = whole(kept);
    find("num-all").textContent = `of ${whole(all)} kept`;
    find("num-dropped").textContent = `${whole(all - kept)} dropped (${percent(all - kept, all)})`;
    find("share-kept").style.width = `${(100 * kept) / all}%`;
  };
  model.on("data", draw);
  draw();
}

/** How many labels are wrong, and which are written for which; a pair filters by it. */
export function noisePanel(model) {
  const noise = model.about.label_noise;
  find("noise").hidden = !noise;
  if (!noise) return;
  const share = (rate) => (100 * rate).toFixed(1);
  const none = model.about.none_seen;
  find("noise-words").textContent = none ? `${none[0].toUpperCase()}${none.slice(1)}.`
    : `${share(noise.rate)}% of all (${share(noise.rate_low)} to ${share(noise.rate_high)}%)`;
  find("noise").title = `95% intervals, of chance alone. The judge: ${noise.judge}`;
  const quoted = (name) => (/\s/.test(name) ? `"${name}"` : name);
  find("noise-pairs").append(...noise.confusions.slice(0, NUM_PAIRS).map((pair) => {
    const show = () => {
      const box = find("find");
      box.value = `class=${quoted(pair.written)} suggested=${quoted(pair.right)}`;
      box.dispatchEvent(new Event("input"));
    };
    const words = `${pair.written} → ${pair.right}`;
    return el("li", {},
      el("button", { type: "button", class: "link", title: `Show ${words}`, onclick: show }, words),
      el("span", { class: "numbers" }, `${whole(Math.round(pair.number))} ` +
        `(${whole(Math.round(pair.low))} to ${whole(Math.round(pair.high))})`));
  }));
}

export function coloursPanel(model) {
  const box = find("colour-by");
  for (const [way, name] of WAYS) {
    const needs = { class: "has_labels", loss: "has_losses", doubt: "has_doubts" }[way];
    if (needs && !model.about[needs]) continue;
    const choose = () => {
      model.colourBy = way;
      model.tell("look");
    };
    const input = el("input", { type: "radio", name: "colour", value: way, onchange: choose });
    box.append(el("label", {}, input, el("span", {}, name)));
  }
  if (!model.about.has_labels) model.colourBy = "cluster";
  const draw = () => { box.querySelector(`[value=${model.colourBy}]`).checked = true; };
  model.on("look", draw);
  draw();
}

/** A list of things that can be hidden: swatch, name, bar and numbers, "only". */
function filterRow(name, swatch, isShown, toggle, only) {
  const input = el("input", { type: "checkbox", checked: isShown, onchange: toggle });
  const numbers = el("span", { class: "numbers" });
  const bar = el("span", { class: "bar" }, el("span", {}));
  const row = el("li", { class: "filter" },
    el("label", {}, input, swatch, el("span", { class: "name", title: name }, name), numbers, bar),
    el("button", { class: "only", type: "button", title: `Show ${name} only`, onclick: only }, "only"));
  return { row, input, numbers, bar: bar.firstChild };
}

export function classesPanel(model) {
  const list = find("classes");
  const hidden = model.hiddenClasses;
  const { classes } = model.about;
  const draw = () => {
    rows.forEach((row, label) => { row.input.checked = !hidden.has(label); });
    find("all-classes").hidden = !hidden.size;
  };
  const show = (test) => {
    classes.forEach((_, label) => (test(label) ? hidden.delete(label) : hidden.add(label)));
    draw();
    model.tell("filters");
  };
  const rows = classes.map(({ name }, label) => {
    const swatch = el("span", { class: "swatch" });
    const made = filterRow(name, swatch, true, () => {
      if (hidden.has(label)) hidden.delete(label);
      else hidden.add(label);
      draw();
      model.tell("filters");
    }, () => show((k) => k === label));
    const light = (on) => {
      model.lit = on ? label : null;
      model.tell("look");
    };
    made.row.addEventListener("pointerenter", () => light(true));
    made.row.addEventListener("pointerleave", () => light(false));
    return { ...made, swatch };
  });
  list.append(...rows.map(({ row }) => row));
  find("all-classes").addEventListener("click", () => show(() => true));
  find("classes-box").hidden = !model.about.has_labels;

  const count = () => {
    const counted = model.counts().classes;
    rows.forEach(({ numbers, bar, row }, label) => {
      const { all, kept } = counted[label];
      numbers.textContent = `${whole(kept)} / ${whole(all)}`;
      row.title = `${classes[label].name}: ${whole(all - kept)} of ${whole(all)} dropped ` +
                  `(${percent(all - kept, all)})`;
      bar.style.width = `${all ? (100 * kept) / all : 0}%`;
    });
  };
  const colour = () => rows.forEach(({ swatch, bar }, label) => {
    const shown = model.colourBy === "class" ? classColour(label) : neutral();
    swatch.style.background = shown;
    bar.style.background = shown;
  });
  model.on("data", count);
  model.on("look theme", colour);
  count();
  colour();
  draw();
}

export function reasonsPanel(model) {
  const list = find("reasons");
  const hidden = model.hiddenGroups;
  const show = () => {
    draw();
    model.tell("filters");
  };
  const draw = () => {
    const groups = new Map(model.counts().groups);
    for (const group of hidden) if (!groups.has(group)) groups.set(group, 0);
    const order = [...groups].sort(([a], [b]) => (b & 1) - (a & 1) || a - b);
    list.replaceChildren(...order.map(([group, number]) => {
      const name = model.groupName(group);
      const kind = group & 1 ? "swatch" : "swatch ring";
      const made = filterRow(name, el("span", { class: kind }), !hidden.has(group), () => {
        if (hidden.has(group)) hidden.delete(group);
        else hidden.add(group);
        show();
      }, () => {
        for (const [other] of order) hidden.add(other);
        hidden.delete(group);
        show();
      });
      made.numbers.textContent = whole(number);
      made.bar.style.width = `${(100 * number) / model.num}%`;
      return made.row;
    }));
    find("all-reasons").hidden = !hidden.size;
  };
  find("all-reasons").addEventListener("click", () => {
    hidden.clear();
    show();
  });
  model.on("data", draw);
  draw();
}

/** What colours and forms on the map mean. */
export function keyPanel(model) {
  const box = find("key");
  const entry = (colour, name, ring) => el("span", { class: "entry" },
    el("span", { class: ring ? "swatch ring" : "swatch",
                 style: ring ? { borderColor: colour } : { background: colour } }), name);
  const draw = () => {
    const forms = [entry("currentColor", "kept"), entry("currentColor", "dropped", true)];
    if (model.colourBy === "kept") {
      box.replaceChildren(entry(keptColour(1), "kept"), entry(keptColour(0), "dropped", true));
    } else if (model.colourBy === "cluster") {
      box.replaceChildren(...forms, entry(neutral(), "noise", true), "coloured by cluster");
    } else if (model.colourBy === "loss" || model.colourBy === "doubt") {
      const values = model.colourBy === "loss" ? model.losses : model.doubts;
      const middle = values[values.length >> 1];
      const ramp = el("span", { class: "ramp" });
      ramp.style.background = `linear-gradient(90deg, ${rampStops().join(",")})`;
      box.replaceChildren(...forms, el("span", { class: "scale" },
        el("span", {}, model.colourBy === "doubt" ? "least doubtful" : `loss ${short(values[0])}`), ramp,
        el("span", {}, model.colourBy === "doubt" ? "most"
          : `${short(values.at(-1))} (middle ${short(middle)})`)));
    } else {
      box.replaceChildren(...forms, "coloured by class");
    }
  };
  model.on("look theme", draw);
  draw();
}
