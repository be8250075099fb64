// Elements made of plain values: text is text, never markup.

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name === "style") Object.assign(made.style, value);
    else if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export const find = (id) => document.getElementById(id);

export const whole = (number) => number.toLocaleString("en-US");

export const percent = (part, all) => {
  if (!all) return "0%";
  const share = (100 * part) / all;
  if (part && share < 0.1) return "<0.1%";
  return `${share >= 10 || share === 0 ? Math.round(share) : share.toFixed(1)}%`;
};

export const short = (number) =>
  number === 0 ? "0" : Math.abs(number) < 0.001 || Math.abs(number) >= 1e5
    ? number.toExponential(1) : String(Number(number.toPrecision(3)));

let hiding = 0;

/** One line at the foot of the page, read out by screen readers. */
export function say(text, kind = "") {
  const toast = find("toast");
  toast.textContent = text;
  toast.className = `toast shown ${kind}`;
  clearTimeout(hiding);
  hiding = setTimeout(() => { toast.className = "toast"; }, kind === "error" ? 8000 : 3500);
}
