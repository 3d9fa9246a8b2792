/* Plots of the last two minutes: lines, or areas on top of each other. */
import { element, svgElement } from "./elements.js";
import { say, t } from "./language.js";

const POINTS = 120;
const WIDTH = 240;
const HEIGHT = 64;

/* 1, 2 or 5 times a power of ten, not below the value. */
function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value * 0.9999);
}

const x = (i) => ((i / (POINTS - 1)) * WIDTH).toFixed(1);

export class Plot {
  /** @param name of the words plot_…, and note_… where there are. @param format a value as text. @param max of the axis;
   * 0: by what is shown. @param stacked areas on top of each other. */
  constructor(name, { format, max = 0, stacked = false, note = null }) {
    this.title = `plot_${name}`;
    this.format = format;
    this.max = max;
    this.stacked = stacked;
    this.series = []; // { title, node, legend, points }
    this.svg = svgElement("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.top = element("span", { class: "top" });
    this.legend = element("dl", { class: "legend" });
    this.node = element("figure", { class: "plot", id: `plot-${name}` },
                        element("figcaption", null, say(element("span"), this.title), this.top), this.svg, this.legend);
    if (note) this.node.append(say(element("p", { class: "note" }), note));
  }

  /** A series; the words of title, with values. */
  add(title, values) {
    const at = this.series.length;
    const node = svgElement("path", { class: `series s${at}${this.stacked ? " area" : ""}`, "vector-effect": "non-scaling-stroke" });
    const legend = element("dd");
    this.svg.append(node);
    this.legend.append(element("div", null, say(element("dt", { class: `s${at}` }), title, values), legend));
    this.series.push({ title, values, node, legend, points: Array(POINTS).fill(NaN), text: "" });
  }

  /** The next value of each series. @param texts of the legend, where they are not the values. */
  push(values, texts = []) {
    this.series.forEach((s, i) => {
      s.points.shift();
      s.points.push(values[i] ?? NaN);
      s.text = texts[i] ?? (Number.isFinite(values[i]) ? this.format(values[i]) : "–");
    });
  }

  /** Forget what was shown: the server is another one. */
  clear() {
    for (const s of this.series) s.points.fill(NaN);
  }

  draw() {
    const base = Array(POINTS).fill(0);
    const tops = this.series.map((s) => s.points.map((v, i) => (this.stacked ? (base[i] += v) : v)));
    const highest = Math.max(0, ...tops.flat().filter(Number.isFinite));
    const max = Math.max(this.max, highest > 0 && highest > this.max ? niceCeiling(highest) : this.max) || 1;
    const y = (v) => (HEIGHT - 1 - (v / max) * (HEIGHT - 2)).toFixed(1);
    this.series.forEach((s, k) => {
      const below = this.stacked && k > 0 ? tops[k - 1] : null;
      s.node.setAttribute("d", this.stacked ? area(tops[k], below, y) : line(tops[k], y));
      if (s.legend.textContent !== s.text) s.legend.textContent = s.text;
    });
    this.top.textContent = highest > 0 || this.max ? this.format(max) : "";
    const values = this.series.map((s) => `${t(s.title, s.values)} ${s.text}`).join(", ");
    this.svg.setAttribute("aria-label", t("plotLabel", { title: t(this.title), values }));
  }
}

/* A gap where there is no value; a point alone is a short line. */
function line(points, y) {
  let path = "";
  points.forEach((v, i) => {
    if (!Number.isFinite(v)) return;
    const begins = !Number.isFinite(points[i - 1]);
    path += `${begins ? "M" : "L"}${x(i)} ${y(v)}`;
    if (begins && !Number.isFinite(points[i + 1])) path += "h1.5";
  });
  return path;
}

function area(points, below, y) {
  const first = points.findIndex(Number.isFinite);
  if (first < 0) return "";
  const shown = points.map((v, i) => i).filter((i) => Number.isFinite(points[i]));
  const up = shown.map((i) => `${x(i)} ${y(points[i])}`);
  const down = shown.reverse().map((i) => `${x(i)} ${y(below ? below[i] : 0)}`);
  return `M${up.join("L")}L${down.join("L")}Z`;
}
