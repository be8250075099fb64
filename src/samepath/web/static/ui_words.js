// Numbers and times in few words.

import { short } from "./dom.js";

export const known = (value) => value !== null && value !== undefined && value !== "";

/** What there is to say, with dots between. */
export const joined = (...words) => words.filter(Boolean).join(" \u00b7 ");

/** A loss or a metric: four digits. */
export const figure = (value) => {
  if (!known(value)) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
};

export const duration = (seconds) => {
  if (!known(seconds)) return "";
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${short(seconds)} s`;
  if (seconds < 100) return `${Number(seconds.toPrecision(3))} s`;
  if (seconds < 5400) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
};

/** How long ago a time (in seconds since 1970) was. */
export const ago = (time) => {
  const seconds = Date.now() / 1000 - time;
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`;
  if (seconds < 86400 * 14) return `${Math.round(seconds / 86400)} days ago`;
  return new Date(time * 1000).toISOString().slice(0, 10);
};

export const STATUS = {
  running: "running", finished: "finished", target: "target reached", diverged: "diverged",
  stuck: "stuck", early: "ended early", interrupted: "interrupted (resumable)",
  stopped: "stopped (resumable)", failed: "failed", unreadable: "cannot be read",
};

export const TITLES = {
  loss: "Loss", train_loss: "Training loss", learning_rate: "Learning rate",
  gradient_norm: "Gradient norm", noise_scale: "Gradient noise scale (examples)",
  staleness: "Staleness (updates)", batch_size: "Batch size",
  loss_scale: "Scale of the loss (float16)", skipped_updates: "Updates left out (float16)",
  noise_variance: "Noise: variance of the gradient, tr S",
  noise_signal: "Noise: squared length of the gradient, |G|\u00b2",
};

/** What a column of metrics is called. */
export const titleOf = (name) => {
  if (TITLES[name]) return TITLES[name];
  const words = name.replaceAll("_", " ");
  if (name.startsWith("valid_")) return `Validation ${words.slice(6)}`;
  if (name.startsWith("train_")) return `Training ${words.slice(6)}`;
  if (name.startsWith("epoch_train_")) return `Mean training ${words.slice(12)} of each epoch`;
  return words[0].toUpperCase() + words.slice(1);
};
