// Colours of points, and of runs. Those of classes come with the data, and are those of the figures:
// one for each background; names stand on the map too, so that colour never stands alone.

// Okabe and Ito's and Tol's, which colour-blind people can tell apart: on light, on dark
let palette = [["#0072B2", "#4BA3E3"], ["#E69F00", "#F0B541"], ["#009E73", "#2BC49B"],
               ["#D55E00", "#FF8147"], ["#CC79A7", "#E9A0CB"], ["#56B4E9", "#9ADBFF"],
               ["#882255", "#D9668F"], ["#999933", "#CFCF63"], ["#332288", "#9C8CF2"],
               ["#44AA99", "#7FD8C4"], ["#AA4499", "#D58AD5"], ["#8C5A2B", "#CC9A70"]];
let classes = palette;

export function useColours(about) {
  classes = about.colours;
  palette = about.palette;
}

// from low to high: the high end, which matters, stands out from the background
const RAMP_LIGHT = ["#DCD6E8", "#F2B48A", "#E0705A", "#A32A66", "#3B0F54"];
const RAMP_DARK = ["#463A63", "#8A3A78", "#D4556A", "#F9A35F", "#FCF3A1"];

const bytes = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

export const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

const shade = (pair) => pair[isDark() ? 1 : 0];
export const classColour = (label) => shade(classes[label % classes.length]);
export const clusterColour = (label, cluster) =>
  cluster < 0 ? neutral() : shade(palette[(label * 5 + cluster * 7) % palette.length]);
export const neutral = () => (isDark() ? "#7C8794" : "#98A1AB");
export const keptColour = (kept) => classColour(kept ? 0 : 3);
export const rampStops = () => (isDark() ? RAMP_DARK : RAMP_LIGHT);

/** 256 colours of a ramp, as bytes. */
function rampTable() {
  const stops = rampStops().map(bytes);
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    return stops[low].map((part, k) => part + (stops[low + 1][k] - part) * (at - low));
  });
}

/** A function from an example to its colour (three bytes), for a way of colouring. */
export function painter(model, by) {
  const known = new Map();
  const remember = (key, hex) => {
    if (!known.has(key)) known.set(key, bytes(hex()));
    return known.get(key);
  };
  if (by === "cluster") {
    return (i) => {
      const label = model.label[i], cluster = model.cluster[i];
      const key = cluster < 0 ? -1 : ((label * 5 + cluster * 7) % palette.length);
      return remember(key, () => clusterColour(label, cluster));
    };
  }
  if (by === "kept") return (i) => remember(model.kept[i], () => keptColour(model.kept[i]));
  if (by === "loss" || by === "doubt") {
    const table = rampTable();
    const rank = by === "loss" ? model.lossRank : model.doubtRank;
    const unknown = bytes(neutral());
    return (i) => (rank[i] < 0 ? unknown : table[Math.round(rank[i] * 255)]);
  }
  return (i) => remember(model.label[i], () => classColour(model.label[i]));
}
