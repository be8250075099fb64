// `samepath turing`: one cube at a time, three slices through it, and a vote.

import { el, find, say } from "./dom.js";
import { isDark } from "./palette.js";

const PLANES = [ // the voxel at row v, column u of slice w of a cube, z slowest
  { name: "Axial", at: (side, w, v, u) => (w * side + v) * side + u },
  { name: "Coronal", at: (side, w, v, u) => ((side - 1 - v) * side + w) * side + u },
  { name: "Sagittal", at: (side, w, v, u) => ((side - 1 - v) * side + u) * side + w },
];
const DEFAULT = { level: 128, width: 255 };
const WHEEL = 30; // pixels of a wheel or a drag that are a slice

const test = { number: 0, side: 0, votes: [], ended: false, file: "" };
const view = { cube: null, shown: -1, slices: [0, 0, 0], active: 0, ...DEFAULT };
const kept = new Map();
let turn = 0;

/** The answer of the server; an error with its words. */
async function ask(address, body) {
  const how = body === undefined ? {} : {
    method: "POST", body: JSON.stringify(body), headers: { "x-samepath": "1", "content-type": "application/json" },
  };
  const response = await fetch(address, how).catch(() => {
    throw new Error("The server does not answer. Start samepath turing again; your votes are kept.");
  });
  if (!response.ok) throw new Error((await response.json()).error);
  return response;
}

const asking = async (address, body) => (await ask(address, body)).json();

async function cubeOf(number) {
  if (!kept.has(number)) {
    const bytes = await (await ask(`/api/cube/${number}`)).arrayBuffer();
    if (kept.size > 20) kept.delete(kept.keys().next().value);
    kept.set(number, new Uint8Array(bytes));
  }
  return kept.get(number);
}

/** Draw a slice of a cube, through the window. */
function draw(canvas, cube, plane, slice, { level, width }) {
  const side = test.side;
  canvas.width = canvas.height = side;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(side, side);
  const low = level - width / 2;
  for (let v = 0; v < side; v++) {
    for (let u = 0; u < side; u++) {
      const value = (255 * (cube[plane.at(side, slice, v, u)] - low)) / width;
      const at = 4 * (v * side + u);
      picture.data[at] = picture.data[at + 1] = picture.data[at + 2] = value;
      picture.data[at + 3] = 255;
    }
  }
  context.putImageData(picture, 0, 0);
}

const tiles = PLANES.map((plane, place) => {
  const canvas = el("canvas", { role: "img" });
  const slider = el("input", { type: "range", min: "0", step: "1", "aria-label": `${plane.name} slice` });
  const said = el("output");
  slider.addEventListener("input", () => scrollTo(place, Number(slider.value)));
  let rest = 0;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    rest += event.deltaMode ? event.deltaY * WHEEL : event.deltaY;
    const steps = Math.trunc(rest / WHEEL);
    rest -= steps * WHEEL;
    if (steps) scrollTo(place, view.slices[place] + steps);
  }, { passive: false });
  let from = null;
  canvas.addEventListener("pointerdown", (event) => {
    from = { y: event.clientY, slice: view.slices[place] };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (from) scrollTo(place, from.slice + Math.round((event.clientY - from.y) / (WHEEL / 3)));
  });
  for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, () => { from = null; });
  find("planes").append(el("figure", { class: "plane" }, canvas,
    el("label", {}, plane.name, slider, said)));
  return { canvas, slider, said };
});

function scrollTo(place, slice) {
  view.slices[place] = Math.min(test.side - 1, Math.max(0, slice));
  view.active = place;
  render();
}

function render() {
  tiles.forEach(({ canvas, slider, said }, place) => {
    const slice = view.slices[place];
    slider.max = String(test.side - 1);
    slider.value = String(slice);
    said.value = String(slice + 1);
    canvas.setAttribute("aria-label", `${PLANES[place].name} slice ${slice + 1} of ${test.side}`);
    if (view.cube) draw(canvas, view.cube, PLANES[place], slice, view);
  });
  for (const name of ["level", "width"]) {
    find(name).value = String(view[name]);
    find(`${name}-said`).value = String(view[name]);
  }
  const done = test.votes.filter(Boolean).length;
  find("number").textContent = `Cube ${view.shown + 1} of ${test.number}`;
  find("status").textContent = `${done} of ${test.number} votes`;
  find("bar").style.width = `${(100 * done) / test.number}%`;
  for (const word of ["real", "generated"]) {
    find(word).setAttribute("aria-pressed", String(test.votes[view.shown] === word));
  }
  find("back").disabled = view.shown <= 0;
  find("next").disabled = view.shown >= test.number - 1;
  find("end").disabled = !done;
}

async function show(number) {
  const mine = ++turn;
  const cube = await cubeOf(number);
  if (mine !== turn) return;
  const middle = Math.floor(test.side / 2);
  Object.assign(view, { cube, shown: number, slices: [middle, middle, middle], active: 0 });
  render();
  if (number + 1 < test.number) cubeOf(number + 1).catch(() => {});
}

let isVoting = false;

async function vote(said) {
  if (isVoting || view.shown < 0 || find("test").hidden) return;
  isVoting = true;
  try {
    Object.assign(test, await asking("/api/vote", { number: view.shown, said }));
    const after = test.votes.findIndex((one, number) => !one && number > view.shown);
    const open = after >= 0 ? after : test.votes.findIndex((one) => !one);
    if (open >= 0) await show(open);
    else {
      render();
      askWhether();
    }
  } finally {
    isVoting = false;
  }
}

function askWhether() {
  const done = test.votes.filter(Boolean).length;
  find("sure-words").textContent = done === test.number
    ? `All ${done} cubes have a vote. After the end, votes stay as they are.`
    : `${done} of ${test.number} cubes have a vote. After the end, votes stay as they are.`;
  find("test").hidden = true;
  find("sure").hidden = false;
  find("really").focus();
}

async function tell() {
  const { scores, truth } = await asking("/api/result");
  find("test").hidden = find("sure").hidden = true;
  find("result").hidden = false;
  find("file").textContent = test.file;
  const [all] = scores;
  const percent = (share) => `${Math.round(100 * share)}%`;
  const isSure = all.p < 0.05;
  find("verdict").textContent = `Right in ${all.num_right} of ${all.num_votes} cases, `
    + `${percent(all.share)} (95%: ${percent(all.low)} to ${percent(all.high)}). `
    + (isSure ? (all.share > 0.5 ? "The reader tells them apart." : "The reader was wrong more often than by chance.")
      : "Not clearly different from guessing, 50%.");
  find("status").textContent = "the test has ended";
  find("scores").replaceChildren(...scores.map((score) => el("tr", {},
    el("td", {}, score.what), el("td", {}, String(score.num_right)), el("td", {}, String(score.num_votes)),
    el("td", {}, score.share.toFixed(3)), el("td", {}, `${score.low.toFixed(3)} to ${score.high.toFixed(3)}`),
    el("td", {}, score.p < 0.001 ? "<0.001" : score.p.toFixed(3)))));
  find("result").focus();
  const items = [];
  for (const [number, what] of truth.entries()) {
    if (!what) continue;
    const canvas = el("canvas", { role: "img", "aria-label": `Cube ${number + 1}, ${what}` });
    const isRight = test.votes[number] === what;
    items.push([number, canvas, el("li", {}, canvas, `${number + 1}: ${what}`,
      el("div", { class: isRight ? "quiet" : "wrong" }, isRight ? "right" : `said ${test.votes[number]}`))]);
  }
  find("each").replaceChildren(...items.map(([, , item]) => item));
  for (const [number, canvas] of items) {
    draw(canvas, await cubeOf(number), PLANES[0], Math.floor(test.side / 2), DEFAULT);
  }
}

/** Do what a person asked for, and say what went wrong. */
const attempt = (what) => async (...given) => {
  try {
    await what(...given);
  } catch (error) {
    say(error.message, "error");
  }
};

for (const word of ["real", "generated"]) find(word).addEventListener("click", attempt(() => vote(word)));
find("back").addEventListener("click", attempt(() => show(view.shown - 1)));
find("next").addEventListener("click", attempt(() => show(view.shown + 1)));
find("end").addEventListener("click", askWhether);
find("stay").addEventListener("click", () => {
  find("sure").hidden = true;
  find("test").hidden = false;
});
find("really").addEventListener("click", attempt(async () => {
  await asking("/api/end", {});
  test.ended = true;
  await tell();
}));
for (const name of ["level", "width"]) {
  find(name).addEventListener("input", () => {
    view[name] = Number(find(name).value);
    render();
  });
}
find("reset").addEventListener("click", () => {
  Object.assign(view, DEFAULT);
  render();
});
find("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || find("test").hidden) return;
  if (event.target.matches?.("input") && event.key.startsWith("Arrow")) return;
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  const to = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const said = { r: "real", g: "generated" }[event.key.toLowerCase()];
  if (!step && !to && !said) return;
  event.preventDefault();
  if (step) scrollTo(view.active, view.slices[view.active] + step);
  else if (said && !event.repeat) attempt(vote)(said);
  else if (to) {
    const number = view.shown + to;
    if (number >= 0 && number < test.number) attempt(show)(number);
  }
});

await attempt(async () => {
  Object.assign(test, await asking("/api/test"));
  if (test.ended) await tell();
  else {
    find("test").hidden = false;
    const open = test.votes.findIndex((one) => !one);
    await show(Math.max(open, 0));
    if (open < 0) askWhether();
  }
})();
document.body.classList.add("ready");
