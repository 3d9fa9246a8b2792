/* What /metrics says, and what has changed between two readings of it. */

const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** One reading. */
export class Samples {
  /** @param text Prometheus's. @param time seconds, of any clock that only goes on. */
  constructor(text, time) {
    this.time = time;
    this.families = new Map(); // name -> [{ labels, value }]
    for (const line of text.split("\n")) {
      const found = LINE.exec(line);
      if (!found) continue;
      const labels = {};
      for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) labels[name] = value;
      if (!this.families.has(found[1])) this.families.set(found[1], []);
      this.families.get(found[1]).push({ labels, value: Number(found[3]) });
    }
  }

  all(name) {
    return this.families.get(name) ?? [];
  }

  /** The sample with these labels; NaN: there is none. */
  value(name, labels = {}) {
    const found = this.all(name).find((s) => Object.entries(labels).every(([label, value]) => s.labels[label] === value));
    return found ? found.value : NaN;
  }
}

/** What happened between two readings of the same server. */
export class Interval {
  constructor(before, after) {
    this.before = before;
    this.after = after;
    this.seconds = after.time - before.time;
  }

  grown(name, labels) {
    return this.after.value(name, labels) - this.before.value(name, labels);
  }

  rate(name, labels) {
    return this.grown(name, labels) / this.seconds;
  }

  /** The mean of what a histogram has seen; NaN: nothing. */
  mean(name) {
    const n = this.grown(`${name}_count`);
    return n > 0 ? this.grown(`${name}_sum`) / n : NaN;
  }

  /** The time that a tier's measured bounds allow for its work, by the time that it took; NaN: next to no work, or no
   * bounds. */
  boundFraction(tier) {
    const { after } = this;
    const busy = this.grown("tandem:tier_busy_seconds_total", { tier });
    const memory = this.grown("tandem:tier_bytes_total", { tier }) / after.value("tandem:tier_bound_bytes_per_second", { tier });
    const compute = ["int8", "f32"]
      .map((kind) => this.grown("tandem:tier_operations_total", { tier, kind }) / after.value("tandem:tier_bound_operations_per_second", { tier, kind }))
      .reduce((a, b) => a + b);
    return busy > 0.001 * this.seconds ? Math.max(memory, compute) / busy : NaN;
  }
}
