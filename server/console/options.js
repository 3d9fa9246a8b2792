/* How answers are sampled: the fields of the options, checked and as members of a request. */
import { byId } from "./elements.js";
import { number, t } from "./language.js";

const NUMBERS = [
  { name: "temperature", min: 0, max: 2 },
  { name: "top_p", min: 0, max: 1 },
  { name: "top_k", min: -1, max: 1e6, whole: true },
  { name: "min_p", min: 0, max: 1 },
  { name: "seed", min: Number.MIN_SAFE_INTEGER, max: Number.MAX_SAFE_INTEGER, whole: true },
  { name: "max_tokens", min: 1, max: 2 ** 31 - 1, whole: true },
];
const THINKING = { on: true, off: false };

const field = (name) => byId(`option-${name}`);

function refuse(name, message) {
  field(name).setAttribute("aria-invalid", "true");
  byId("options").open = true;
  field(name).focus();
  throw new Error(message);
}

/** Show what holds where a field is empty. */
export function showDefaults(values) {
  for (const { name } of NUMBERS) field(name).placeholder = values[name] ?? "";
}

export const systemPrompt = () => field("system").value.trim();

/** Members of a request. Throws a sentence about the field at fault. */
export function readOptions() {
  const members = {};
  for (const { name, min, max, whole } of NUMBERS) {
    const text = field(name).value.trim();
    field(name).removeAttribute("aria-invalid");
    const value = Number(text);
    if (field(name).validity.badInput || (text && !(value >= min && value <= max && (!whole || Number.isInteger(value)))))
      refuse(name, t("optionNumber", { field: t(name), min: number(min), max: number(max) }));
    if (text) members[name] = value;
  }
  const thinking = THINKING[field("thinking").value];
  if (thinking !== undefined) members.chat_template_kwargs = { enable_thinking: thinking, thinking };
  const tools = field("tools").value.trim();
  field("tools").removeAttribute("aria-invalid");
  if (tools) {
    try {
      members.tools = JSON.parse(tools);
    } catch (e) {
      refuse("tools", t("optionTools", { why: e.message }));
    }
  }
  return members;
}
