/* The machine: what both tiers do, memory, requests and their times, read once a second while somebody looks. */
import { getJson, getText } from "./api.js";
import { byId, element } from "./elements.js";
import { duration, gibibytes, number, say, t } from "./language.js";
import { Plot } from "./plot.js";
import { Interval, Samples } from "./samples.js";

const percent = (v) => `${number(v)} %`;
const rate = (v) => (v < 1 ? `${number(1000 * v)} MB/s` : `${number(v, v < 100 ? 1 : 0)} GB/s`);
const count = (v) => number(v);

const PLOTS = {
  busy: new Plot("busy", { format: percent, max: 100, note: "note_busy" }),
  bound: new Plot("bound", { format: percent, max: 100, note: "note_bound" }),
  bandwidth: new Plot("bandwidth", { format: rate }),
  nodes: new Plot("nodes", { format: rate }),
  resident: new Plot("resident", { format: percent, max: 100 }),
  link: new Plot("link", { format: rate, note: "note_link" }),
  tokens: new Plot("tokens", { format: (v) => number(v, v < 100 ? 1 : 0) }),
  queue: new Plot("queue", { format: count }),
  ttft: new Plot("ttft", { format: duration }),
  tpot: new Plot("tpot", { format: duration }),
  kv: new Plot("kv", { format: count, stacked: true }),
  hits: new Plot("hits", { format: percent, max: 100 }),
};
const SERIES = {
  busy: ["device", "experts"],
  bound: ["device", "experts"],
  bandwidth: ["device", "experts"],
  resident: ["series_resident", "series_streamed", "series_on_cpu"],
  link: ["series_resident", "series_streamed"],
  tokens: ["series_generated", "series_prompt"],
  queue: ["series_running", "series_waiting"],
  ttft: ["series_mean"],
  tpot: ["series_mean"],
  kv: ["series_used", "series_cached"],
  hits: ["series_hits"],
};
const TIERS = ["device", "experts"];
const NODE_BYTES = "tandem:node_expert_bytes_total";

for (const [name, plot] of Object.entries(PLOTS)) {
  for (const title of SERIES[name] ?? []) plot.add(title);
  byId("plots").append(plot.node);
}

let before = null; // the reading before this one

/* ---- plots ---- */

function addNodes(samples) {
  const nodes = samples.all(NODE_BYTES);
  if (PLOTS.nodes.series.length === 0)
    for (const { labels } of nodes) PLOTS.nodes.add(labels.node === "any" ? "nodeAny" : "node", { node: labels.node });
  PLOTS.nodes.node.hidden = nodes.length === 0;
  return nodes.map(({ labels }) => labels.node);
}

const orDash = (value, format) => (Number.isFinite(value) ? format(value) : "–");

/* Where pairs of a token and an expert were computed. */
function pushResident(interval) {
  const { after } = interval;
  const pairs = ["hits", "streamed", "misses"].map((name) => interval.grown(`tandem:expert_${name}_total`));
  const all = pairs.reduce((sum, n) => sum + (n || 0), 0);
  const shares = pairs.map((n) => (all > 0 ? (100 * n) / all : NaN));
  const [resident, streamed] = shares.map((share) => orDash(share, percent));
  const places = t("residentNow", { n: number(after.value("tandem:resident_experts")), slots: number(after.value("tandem:resident_expert_slots")) });
  const rows = after.value("tandem:streamed_from_rows"); // NaN: nothing is streamed
  const layer = rows > 0 ? t("streamedNow", { n: number(after.value("tandem:streamed_layer_experts")), rows: number(rows) }) : t("streamedNever");
  PLOTS.resident.push(shares, [`${resident}, ${places}`, Number.isFinite(rows) ? `${streamed}, ${layer}` : "–"]);
}

/* Copies of experts to the device. */
function pushLink(interval) {
  const uploads = ["expert", "streamed"].map((name) => `tandem:${name}_upload`);
  const speeds = uploads.map((name) => interval.rate(`${name}_bytes_total`) / 1e9);
  const busy = uploads.map((name) => Math.min(100, 100 * interval.rate(`${name}_seconds_total`)));
  PLOTS.link.push(speeds, speeds.map((speed, i) => orDash(speed, (v) => `${rate(v)}, ${t("linkBusy", { percent: number(busy[i]) })}`)));
}

/* Hidden where the device has none of the routed experts, or all. */
function pushMoving(interval) {
  const hidden = interval.after.all("tandem:resident_expert_slots").length === 0;
  for (const plot of [PLOTS.resident, PLOTS.link]) plot.node.hidden = hidden;
  if (hidden) return;
  pushResident(interval);
  pushLink(interval);
}

/* Busy time is counted operation by operation: one that ends now may have begun before the interval. */
const busyShare = (interval, tier) => Math.min(100, 100 * interval.rate("tandem:tier_busy_seconds_total", { tier }));

function pushInterval(interval) {
  const { after } = interval;
  const busy = TIERS.map((tier) => busyShare(interval, tier));
  PLOTS.busy.push(busy, busy.map((b) => t("tierBusy", { percent: number(b), rest: number(100 - b) })));
  const measured = after.all("tandem:tier_bound_bytes_per_second").length > 0;
  const bounds = TIERS.map((tier) => 100 * interval.boundFraction(tier));
  PLOTS.bound.push(bounds, measured ? [] : bounds.map(() => t("notMeasured")));
  PLOTS.bandwidth.push(TIERS.map((tier) => interval.rate("tandem:tier_bytes_total", { tier }) / 1e9));
  PLOTS.nodes.push(addNodes(after).map((node) => interval.rate(NODE_BYTES, { node }) / 1e9));
  pushMoving(interval);
  PLOTS.tokens.push([interval.rate("sglang:generation_tokens_total"), interval.rate("sglang:prompt_tokens_total")]);
  PLOTS.ttft.push([interval.mean("sglang:time_to_first_token_seconds")]);
  PLOTS.tpot.push([interval.mean("sglang:inter_token_latency_seconds")]);
  const prompts = interval.grown("sglang:prompt_tokens_total");
  PLOTS.hits.push([prompts > 0 ? (100 * interval.grown("sglang:cached_tokens_total")) / prompts : NaN]);
}

function pushNow(samples) {
  const used = samples.value("sglang:num_used_tokens");
  const cached = samples.value("tandem:cached_kv_tokens");
  const total = samples.value("sglang:max_total_num_tokens");
  const share = (v) => `${number(v)} (${number((100 * v) / total, 1)} %)`;
  PLOTS.kv.max = total;
  PLOTS.kv.push([used, cached], [share(used), share(cached)]);
  PLOTS.queue.push([samples.value("sglang:num_running_reqs"), samples.value("sglang:num_queue_reqs")]);
}

/* ---- requests ---- */

const COLUMNS = {
  id: (r) => r.id,
  state: (r) => t(`row_${r.finish_reason ?? r.state}`),
  prompt: (r) => (r.cached_tokens ? t("ofCached", { n: number(r.prompt_tokens), cached: number(r.cached_tokens) }) : number(r.prompt_tokens)),
  completion: (r) => number(r.completion_tokens),
  ttft: (r) => (r.ttft_s === null ? "–" : duration(r.ttft_s)),
  tpot: (r) => (r.tpot_s === null ? "–" : duration(r.tpot_s)),
  age: (r) => duration(r.age_s),
};

byId("request-columns").append(...Object.keys(COLUMNS).map((name) => say(element("th", { scope: "col" }), `column_${name}`)));

function showRequests({ running, num_running, ended }) {
  const rows = [...running, ...ended].map((r) =>
    element("tr", { class: r.finish_reason ? "ended" : r.state },
            ...Object.entries(COLUMNS).map(([name, text]) => element("td", { class: name }, text(r)))));
  byId("request-rows").replaceChildren(...rows);
  byId("requests-none").hidden = rows.length > 0;
  const more = num_running - running.length;
  say(byId("requests-more"), more > 0 ? "requestsMore" : null, { n: number(more) });
}

/* ---- facts ---- */

function boundText(samples, tier) {
  const bytes = samples.value("tandem:tier_bound_bytes_per_second", { tier });
  const int8 = samples.value("tandem:tier_bound_operations_per_second", { tier, kind: "int8" });
  return Number.isFinite(bytes) ? `${rate(bytes / 1e9)}, ${number(int8 / 1e12, 2)} int8 TOP/s` : t("notMeasured");
}

function uptimeText(samples) {
  const seconds = samples.value("tandem:uptime_seconds");
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

const FACTS = {
  model: (i) => `${i.served_model_name} (${i.model_path})`,
  architecture: (i) => i.architecture,
  device: (i) => i.device,
  numbers: (i) => `${i.quantization}, ${i.expert_quantization}`,
  kernel: (i) => i.expert_kernel,
  context: (i) => number(i.context_length),
  kv: (i) => number(i.max_total_tokens),
  weights: (i) => `${gibibytes(i.device_weight_bytes)}, ${gibibytes(i.expert_weight_bytes)}`,
  memory: (i) => `${gibibytes(i.kv_bytes)}, ${gibibytes(i.scratch_bytes)}`,
  bounds: (i, samples) => TIERS.map((tier) => boundText(samples, tier)).join("; "),
  uptime: (i, samples) => uptimeText(samples),
  version: (i) => i.version,
};
const facts = {};
let info = null;

for (const name of Object.keys(FACTS)) {
  facts[name] = element("dd", { id: `fact-${name}` });
  byId("facts").append(element("div", null, say(element("dt"), `fact_${name}`), facts[name]));
}

function showFacts(samples) {
  for (const [name, text] of Object.entries(FACTS)) {
    const now = text(info, samples);
    if (facts[name].textContent !== now) facts[name].textContent = now;
  }
}

/* ---- readings ---- */

/** The server is another one, or was started again. @param serverInfo of /server_info. */
export function setServer(serverInfo) {
  info = serverInfo;
  before = null;
  for (const plot of Object.values(PLOTS)) plot.clear();
}

/** Read and show. Throws what api.js throws. @return false: the server was started again since the reading before. */
export async function readMachine() {
  const options = { quiet: true };
  const [text, requests] = await Promise.all([getText("metrics", options), getJson("v1/requests", options)]);
  const samples = new Samples(text, performance.now() / 1000);
  const again = before && samples.value("tandem:uptime_seconds") < before.value("tandem:uptime_seconds");
  if (again) return false;
  addNodes(samples);
  if (before) pushInterval(new Interval(before, samples));
  pushNow(samples);
  before = samples;
  for (const plot of Object.values(PLOTS)) plot.draw();
  showRequests(requests);
  showFacts(samples);
  return true;
}

/** Nobody looks for a while: what happens meanwhile is no interval of a second, but a gap. */
export function pauseMachine() {
  if (before) for (const plot of Object.values(PLOTS)) plot.push([]);
  before = null;
}
