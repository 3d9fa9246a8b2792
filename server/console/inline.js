/* Markdown within a line or a paragraph: emphasis, code, links. Text becomes text nodes, so HTML in it is shown and not run;
 * links lead to http and https addresses only. Time grows with the length of the text: a search for an end that failed is
 * not repeated. */
import { element } from "./elements.js";

const DEPTH_MAX = 6; // of emphasis in emphasis
const LABEL_MAX = 300; // characters of a link's text
const SPECIAL = /[\\`*_~![<\n]|https?:\/\//gi;
const BARE_LINK = /https?:\/\/[^\s<>"'`\\^{|}]{1,2000}/iy;
const ANGLE_LINK = /<(https?:\/\/[^\s<>]{1,2000})>/iy;
const TARGET = /\(\s*<?(https?:\/\/(?:[^\s<>()]|\([^\s<>()]*\)){0,2000}?)>?(?:\s+(?:"[^"\n]*"|'[^'\n]*'))?\s*\)/iy;
const WORD = /[\p{L}\p{N}]/u;

function link(address, children) {
  let url = null;
  try {
    url = new URL(address);
  } catch {
    // not an address
  }
  if (!url || (url.protocol !== "https:" && url.protocol !== "http:")) return null;
  return element("a", { href: url.href, title: url.href, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}

/* An address in a sentence, without the sentence's punctuation behind it. */
function withoutTail(address) {
  let end = address.length;
  while (".,:;!?*_~)]".includes(address[end - 1]) && !(address[end - 1] === ")" && address.includes("("))) end--;
  return address.slice(0, end);
}

/* Where the ] of the [ at `at` is; -1: nowhere near. */
function endOfLabel(text, at) {
  let open = 0;
  const last = Math.min(text.length, at + LABEL_MAX);
  for (let i = at; i < last; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === "[") open++;
    else if (text[i] === "]" && --open === 0) return i;
  }
  return -1;
}

class Inline {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.at = 0;
    this.plain = "";
    this.nodes = [];
    this.hopeless = new Set(); // ends that do not come any more
  }

  put(node, next) {
    if (this.plain) this.nodes.push(this.plain);
    this.plain = "";
    this.nodes.push(node);
    this.at = next;
    return true;
  }

  inner(from, to) {
    return inline(this.text.slice(from, to), this.depth + 1);
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.text);
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "\n") return ++this.at; // a break that is meant
    if (!next || !/[!-/:-@[-`{-~]/.test(next)) return false;
    this.plain += next;
    this.at += 2;
    return true;
  }

  code() {
    const { text, at } = this;
    let n = 1;
    while (text[at + n] === "`") n++;
    const ticks = "`".repeat(n);
    let end = this.hopeless.has(ticks) ? -1 : text.indexOf(ticks, at + n);
    while (end >= 0 && text[end + n] === "`") {
      let past = end + n;
      while (text[past] === "`") past++;
      end = text.indexOf(ticks, past);
    }
    if (end >= 0) {
      const code = text.slice(at + n, end).replace(/\n/g, " ");
      const padded = code.startsWith(" ") && code.endsWith(" ") && code.trim();
      return this.put(element("code", null, padded ? code.slice(1, -1) : code), end + n);
    }
    this.hopeless.add(ticks);
    this.plain += ticks;
    this.at += n;
    return true;
  }

  /* **strong**, *em*, ***both***, ~~deleted~~; _ only around words. */
  emphasis(c) {
    const { text, at } = this;
    let n = 1;
    while (text[at + n] === c) n++;
    const after = text[at + n];
    const mark = c.repeat(n);
    const opens = n <= 3 && !(c === "~" && n !== 2) && after && !/\s/.test(after) && !(c === "_" && WORD.test(text[at - 1] ?? ""));
    const end = opens && this.depth < DEPTH_MAX && !this.hopeless.has(mark) ? this.endOf(mark, at + n) : -1;
    if (end < 0) {
      if (opens) this.hopeless.add(mark);
      this.plain += mark;
      this.at += n;
      return true;
    }
    let node = element(c === "~" ? "del" : n === 1 ? "em" : "strong", null, this.inner(at + n, end));
    if (n === 3) node = element("em", null, node);
    return this.put(node, end + n);
  }

  endOf(mark, from) {
    const c = mark[0];
    for (let end = this.text.indexOf(mark, from); end >= 0; ) {
      let n = mark.length;
      while (this.text[end + n] === c) n++;
      const before = this.text[end - 1];
      const fits = n === mark.length || (mark.length < 3 && n === 3);
      if (fits && !/[\s\\]/.test(before) && !(c === "_" && WORD.test(this.text[end + n] ?? ""))) return n === 3 && mark.length === 1 ? end + 2 : end;
      end = this.text.indexOf(mark, end + n);
    }
    return -1;
  }

  /* [text](address); an image is shown as a link to it, since nothing is loaded from elsewhere. */
  labelled(at) {
    const end = endOfLabel(this.text, at);
    if (end < 0) return false;
    TARGET.lastIndex = end + 1;
    const target = TARGET.exec(this.text);
    const node = target && this.depth < DEPTH_MAX && link(target[1], this.inner(at + 1, end));
    return node ? this.put(node, TARGET.lastIndex) : false;
  }

  address(pattern, group) {
    const found = this.match(pattern);
    if (!found) return false;
    const whole = group ? found[1] : withoutTail(found[0]);
    const node = link(whole, whole);
    return node ? this.put(node, this.at + (group ? found[0].length : whole.length)) : false;
  }

  step(c) {
    switch (c) {
      case "\\":
        return this.escape();
      case "`":
        return this.code();
      case "*":
      case "_":
      case "~":
        return this.emphasis(c);
      case "\n":
        return this.put(element("br"), this.at + 1);
      case "!":
        return this.text[this.at + 1] === "[" && this.labelled(this.at + 1);
      case "[":
        return this.labelled(this.at);
      case "<":
        return this.address(ANGLE_LINK, true);
      default:
        return this.address(BARE_LINK, false);
    }
  }

  parse() {
    while (this.at < this.text.length) {
      const found = this.match(SPECIAL);
      const stop = found ? found.index : this.text.length;
      this.plain += this.text.slice(this.at, stop);
      this.at = stop;
      if (found && !this.step(found[0][0])) this.plain += this.text[this.at++];
    }
    if (this.plain) this.nodes.push(this.plain);
    return this.nodes;
  }
}

/** Nodes and strings, for append(). */
export function inline(text, depth = 0) {
  return new Inline(text, depth).parse();
}
