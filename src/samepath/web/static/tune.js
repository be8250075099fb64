// Sliders for eps and min_samples of a class: the map follows while they move, and a while after
// they rest it becomes an edit, which can be undone.

import { el, find, say, short, whole } from "./dom.js";

const REST_MS = 350;
const STEPS = 240;

export function tunePanel(model, source) {
  const choice = find("tune-class");
  const [eps, samples] = [find("eps"), find("min-samples")];
  let isAsking = false; // one request at a time; the newest setting is asked for next
  let wanted = null;
  let resting = 0;
  let isTouched = false;

  const { classes } = model.about;
  choice.append(...classes.map(({ name }, label) => el("option", { value: label }, name)));
  choice.parentElement.hidden = classes.length < 2;
  eps.max = STEPS;

  const label = () => Number(choice.value);
  const toEps = (step) => {
    const { low, high } = classes[label()];
    return low * (high / low) ** (step / STEPS);
  };
  const toStep = (value) => {
    const { low, high } = classes[label()];
    return Math.round((STEPS * Math.log(value / low)) / Math.log(high / low));
  };
  let exact = null; // an eps that lies between the steps of the slider
  const setting = () => ({
    label: label(),
    eps: exact ?? toEps(Number(eps.value)),
    min_samples: Number(samples.value),
  });

  const result = () => {
    const clusters = new Set();
    const noiseCode = model.about.reasons.indexOf("noise");
    let [noise, others] = [0, 0]; // as the tables count: what is dropped for another reason is not noise
    for (let i = 0; i < model.num; i++) {
      if (model.label[i] !== label()) continue;
      if (model.cluster[i] >= 0) clusters.add(model.cluster[i]);
      else if (model.reason[i] === noiseCode) noise++;
      else others++;
    }
    find("tune-result").textContent =
      `${whole(clusters.size)} cluster${clusters.size === 1 ? "" : "s"}; ` +
      `${whole(noise)} dropped as noise` +
      (others ? `; ${whole(others)} outside too, with another reason` : "");
  };
  const words = () => {
    find("eps-value").textContent = short(setting().eps);
    find("min-samples-value").textContent = samples.value;
    const { eps: first, min_samples: firstSamples } = classes[label()];
    find("tune-back").hidden =
      Math.abs(setting().eps - first) <= 1e-6 * first && Number(samples.value) === firstSamples;
    result();
  };
  const show = (value, number) => {
    eps.value = toStep(value);
    exact = value;
    samples.value = number;
    words();
  };
  const reset = () => {
    const { can_cluster: can, max_min_samples: most } = classes[label()];
    samples.max = most;
    eps.disabled = samples.disabled = !can;
    show(...model.setting(label()));
    if (!can) find("tune-result").textContent = "too few examples to be clustered: all are kept";
  };

  const follow = async () => {
    if (isAsking) return;
    isAsking = true;
    while (wanted) {
      const body = wanted;
      wanted = null;
      try {
        const change = await source.change("cluster", body);
        if (body.use) model.apply(change);
        else if (isTouched) model.preview(change);
      } catch (error) {
        model.endPreview();
        say(error.message, "error");
      }
    }
    isAsking = false;
    if (isTouched) result();
  };
  const use = () => {
    clearTimeout(resting);
    if (!isTouched) return Promise.resolve();
    isTouched = false;
    wanted = { ...setting(), use: true };
    return isAsking ? settled() : follow();
  };
  const settled = () => new Promise((resolve) => {
    const look = () => (isAsking ? setTimeout(look, 10) : resolve());
    look();
  });
  const touch = () => {
    isTouched = true;
    words();
    wanted = { ...setting(), use: false };
    clearTimeout(resting);
    follow();
  };
  const rest = () => {
    clearTimeout(resting);
    resting = setTimeout(use, REST_MS);
  };

  eps.addEventListener("input", () => {
    exact = null;
    touch();
  });
  samples.addEventListener("input", touch);
  // let go of: with the mouse once, with keys after every step, so that it waits for the last one
  for (const slider of [eps, samples]) slider.addEventListener("change", rest);
  choice.addEventListener("change", async () => {
    await use();
    reset();
  });
  find("tune-back").addEventListener("click", () => {
    const { eps: first, min_samples: number } = classes[label()];
    show(first, number);
    touch();
    rest();
  });
  model.on("state", () => { if (!isTouched) reset(); });
  model.on("pin", () => {
    if (model.pinned < 0 || isTouched || model.label[model.pinned] === label()) return;
    choice.value = model.label[model.pinned];
    reset();
  });
  if (classes.length) reset();
  return { finish: use };
}
