/*
 * An answer's Markdown, shown while it comes: headings, lists, quotes, tables, code, rules, and what inline.js knows.
 *
 * Only the last block can still change, so the blocks before it are shown once and left alone. The last one is shown anew
 * at most once a frame, and so seldom that it takes a tenth of the time however long it becomes.
 */
import { element } from "./elements.js";
import { inline } from "./inline.js";
import { copyButton } from "./copying.js";

const DEPTH_MAX = 8; // of quotes and lists in each other; what is deeper is text
const PACE = 9; // pauses are so many times as long as the work before them

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?=\S)|[ \t]*$| )/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

const isBlank = (line) => !/\S/.test(line);

/* Blocks that end a paragraph. */
function interrupts(line) {
  const item = ITEM.exec(line);
  return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || RULE.test(line) || (item && !isBlank(line.slice(item[0].length)) && /^([-*+]|1[.)])$/.test(item[2]));
}

function cellsOf(line) {
  const cells = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1").split(/(?<!\\)\|/);
  return cells.map((cell) => cell.trim().replace(/\\\|/g, "|"));
}

/* ---- blocks: each function looks at lines[at ..] and gives { next, make }, or null ---- */

function codeBlock(lines, at) {
  const fence = FENCE.exec(lines[at]);
  if (!fence) return null;
  const end = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}[ \\t]*$`);
  let next = at + 1;
  while (next < lines.length && !end.test(lines[next])) next++;
  const text = lines.slice(at + 1, next).join("\n");
  const name = fence[2].trim().split(/\s/)[0];
  const make = () => [
    element("figure", { class: "code" },
            element("figcaption", null, element("span", null, name.slice(0, 40)), copyButton(() => text)),
            element("pre", { tabindex: "0" }, element("code", null, text))),
  ];
  return { next: Math.min(next + 1, lines.length), make };
}

function heading(lines, at) {
  const found = HEADING.exec(lines[at]);
  if (!found) return null;
  const text = lines[at].slice(found[0].length).trim().replace(/[ \t]#+$/, "");
  return { next: at + 1, make: () => [element(`h${Math.min(found[1].length + 2, 6)}`, null, inline(text))] };
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { next: at + 1, make: () => [element("hr")] } : null;
}

function quote(lines, at, depth) {
  if (!QUOTE.test(lines[at]) || depth >= DEPTH_MAX) return null;
  let next = at;
  while (next < lines.length && QUOTE.test(lines[next])) next++;
  const inner = lines.slice(at, next).map((line) => line.replace(QUOTE, ""));
  return { next, make: () => [element("blockquote", null, nodesOf(inner, depth + 1))] };
}

const indentOf = (line) => /^ */.exec(line)[0].length;

/* Lines of one item, without its marker and its indentation: those that are indented as its text, blank ones between them,
 * and what goes on with its paragraph. */
function listItem(lines, at) {
  const marker = ITEM.exec(lines[at]);
  const width = isBlank(lines[at].slice(marker[0].length)) ? marker[1].length + marker[2].length + 1 : marker[0].length;
  const own = [lines[at].slice(marker[0].length)];
  let next = at + 1;
  for (; next < lines.length; next++) {
    const line = lines[next];
    if (isBlank(line)) {
      const after = lines.slice(next + 1, next + 3).find((l) => !isBlank(l));
      if (after === undefined || indentOf(after) < width) break;
      own.push("");
    } else if (indentOf(line) >= width) {
      own.push(line.slice(width));
    } else if (isBlank(lines[next - 1]) || interrupts(line) || ITEM.test(line)) {
      break;
    } else {
      own.push(line);
    }
  }
  return { next, own };
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first || depth >= DEPTH_MAX) return null;
  const kind = first[2].slice(-1);
  const items = [];
  let next = at;
  for (let from = at; from < lines.length; ) {
    const marker = ITEM.exec(lines[from]);
    if (!marker || marker[2].slice(-1) !== kind || RULE.test(lines[from])) break;
    const item = listItem(lines, from);
    items.push(item.own);
    next = from = item.next;
    while (from < lines.length && isBlank(lines[from])) from++;
  }
  const ordered = /\d/.test(first[2]);
  const make = () => [
    element(ordered ? "ol" : "ul", ordered && first[2] !== "1." ? { start: parseInt(first[2], 10) } : null,
            items.map((own) => {
              const nodes = nodesOf(own, depth + 1);
              const text = nodes[0]?.tagName === "P" ? [...nodes.shift().childNodes] : []; // it has no margins
              return element("li", null, text, nodes);
            })),
  ];
  return { next, make };
}

function table(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !DELIMITERS.test(lines[at + 1])) return null;
  const head = cellsOf(lines[at]);
  const sides = cellsOf(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : null));
  if (head.length !== sides.length) return null;
  let next = at + 2;
  while (next < lines.length && lines[next].includes("|") && !interrupts(lines[next])) next++;
  const row = (name, cells) => element("tr", null, sides.map((side, i) => element(name, { class: side }, inline(cells[i] ?? ""))));
  const make = () => [
    element("div", { class: "wide", tabindex: "0" },
            element("table", null, element("thead", null, row("th", head)),
                    element("tbody", null, lines.slice(at + 2, next).map((line) => row("td", cellsOf(line)))))),
  ];
  return { next, make };
}

function paragraph(lines, at) {
  let next = at + 1;
  while (next < lines.length && !isBlank(lines[next]) && !interrupts(lines[next]) && !table(lines, next)) next++;
  const text = lines.slice(at, next).map((line) => line.trim()).join("\n");
  return { next, make: () => [element("p", null, inline(text))] };
}

const KINDS = [codeBlock, heading, rule, quote, list, table, paragraph];

/** The blocks of some lines, not made yet: { from, make }. */
function blocksOf(lines, depth) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at++;
      continue;
    }
    for (const kind of KINDS) {
      const block = kind(lines, at, depth);
      if (!block) continue;
      blocks.push({ from: at, make: block.make });
      at = block.next;
      break;
    }
  }
  return blocks;
}

const nodesOf = (lines, depth) => blocksOf(lines, depth).flatMap((block) => block.make());

/** A text that grows. */
export class MarkdownView {
  /** @param root what it is shown in. @param shown called after each change. */
  constructor(root, shown = () => {}) {
    this.root = root;
    this.shown = shown;
    this.tail = element("div", { class: "tail" }); // the last block
    root.append(this.tail);
    this.lines = []; // of the last block, and not looked at yet
    this.partial = ""; // the line that has not ended
    this.waits = false;
    this.free = 0; // when it may be shown again
  }

  append(text) {
    const pieces = text.split("\n");
    this.partial += pieces[0];
    for (const piece of pieces.slice(1)) {
      this.lines.push(this.partial.replace(/\r$/, "").replace(/\t/g, "    "));
      this.partial = piece;
    }
    if (this.waits) return;
    this.waits = true;
    setTimeout(() => requestAnimationFrame(() => this.waits && this.show()), Math.max(0, this.free - performance.now()));
  }

  show() {
    const begin = performance.now();
    this.waits = false;
    const blocks = blocksOf(this.lines, 0);
    const last = blocks.pop();
    for (const block of blocks) this.tail.before(...block.make());
    if (last) this.lines = this.lines.slice(last.from);
    const tail = element("div", { class: "tail" }, nodesOf(this.lines.concat(this.partial), 0));
    this.tail.replaceWith(tail);
    this.tail = tail;
    this.shown();
    const end = performance.now();
    this.free = end + PACE * (end - begin);
  }

  /** Nothing follows: all of it is shown. */
  end() {
    this.show();
  }
}
