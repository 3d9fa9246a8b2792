/* English and Chinese. An element remembers which words it shows (data-t) and with which values, so that all of them can be
 * shown in the other language at any time. */
import { WORDS } from "./words.js";

const ATTRIBUTES = { tTitle: "title", tLabel: "aria-label", tPlaceholder: "placeholder" };

export const language = () => document.documentElement.lang;

/** The words of a key, with {name} replaced by a value. */
export function t(key, values = {}) {
  const words = WORDS[language()]?.[key] ?? WORDS.en[key] ?? key;
  return words.replace(/\{(\w+)\}/g, (all, name) => values[name] ?? all);
}

/** Show the words of a key as an element's text; key null: none. */
export function say(node, key, values) {
  if (key) node.dataset.t = key;
  else delete node.dataset.t;
  if (values) node.dataset.values = JSON.stringify(values);
  else delete node.dataset.values;
  const text = key ? t(key, values) : "";
  if (node.textContent !== text) node.textContent = text;
  return node;
}

/** The same of an attribute: which is "tTitle", "tLabel" or "tPlaceholder". */
export function label(node, which, key) {
  node.dataset[which] = key;
  node.setAttribute(ATTRIBUTES[which], t(key));
  return node;
}

export function translate(root = document) {
  for (const node of root.querySelectorAll("[data-t]")) say(node, node.dataset.t, node.dataset.values && JSON.parse(node.dataset.values));
  for (const [which, attribute] of Object.entries(ATTRIBUTES)) {
    const data = which.replace(/[A-Z]/, (c) => "-" + c.toLowerCase());
    for (const node of root.querySelectorAll(`[data-${data}]`)) node.setAttribute(attribute, t(node.dataset[which]));
  }
}

export const number = (value, digits = 0) => value.toLocaleString(language(), { maximumFractionDigits: digits, minimumFractionDigits: digits });

/** "1.24 s", "35 ms" */
export function duration(seconds) {
  if (seconds >= 100) return `${number(seconds)} s`;
  if (seconds >= 1) return `${number(seconds, 2)} s`;
  return `${number(seconds * 1000, seconds < 0.01 ? 1 : 0)} ms`;
}

export const gibibytes = (bytes) => `${number(bytes / 2 ** 30, bytes < 10 * 2 ** 30 ? 2 : 0)} GiB`;
