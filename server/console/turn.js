/* One turn of a chat on the page: what a person, the model or a tool said, and the buttons under it. */
import { copyButton } from "./copying.js";
import { element } from "./elements.js";
import { duration, label, number, say } from "./language.js";
import { MarkdownView } from "./markdown.js";
import { contentOf, pictureRow } from "./pictures.js";

const button = (key, act) => say(element("button", { type: "button", class: "quiet", click: act }), key);

/* Arguments are JSON when they are whole. */
function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

class Turn {
  constructor(kind, title, values) {
    this.heading = say(element("h2"), title, values);
    this.body = element("div", { class: "body" });
    this.actions = element("div", { class: "actions" });
    this.node = element("article", { class: `turn ${kind}` }, this.heading, this.body, this.actions);
  }
}

export class UserTurn extends Turn {
  /** @param onEdit called with a new text, which is to be answered instead. */
  constructor(text, pictures, onEdit) {
    super("user", "you");
    this.text = text;
    this.message = { role: "user", content: contentOf(text, pictures) };
    this.body.append(pictureRow(pictures) ?? "", text);
    this.actions.append(copyButton(() => this.text), button("edit", () => this.edit(onEdit)));
  }

  edit(onEdit) {
    const area = label(element("textarea", { rows: Math.min(12, this.text.split("\n").length + 1) }), "tLabel", "message");
    area.value = this.text;
    const leave = () => {
      form.remove();
      this.body.hidden = this.actions.hidden = false;
      this.actions.lastChild.focus();
    };
    const save = () => {
      if (!area.value.trim()) return;
      leave();
      onEdit(area.value);
    };
    const form = element("form", { class: "edit", submit: (e) => (e.preventDefault(), save()) }, area,
                         element("div", { class: "actions" }, say(element("button", { type: "submit" }), "save"), button("cancel", leave)));
    form.addEventListener("keydown", (e) => {
      if (e.key === "Escape") {
        e.stopPropagation();
        leave();
      } else if (e.key === "Enter" && !e.shiftKey && !e.isComposing && e.target === area) {
        e.preventDefault();
        save();
      }
    });
    this.body.hidden = this.actions.hidden = true;
    this.body.after(form);
    area.focus();
  }
}

export class ToolTurn extends Turn {
  constructor(call, result) {
    super("tool", "tool", { name: call.name });
    this.message = { role: "tool", tool_call_id: call.id, content: result };
    this.body.append(element("pre", { tabindex: "0" }, pretty(result)));
  }
}

/** An answer, which comes in pieces. */
export class AnswerTurn extends Turn {
  /** @param on { regenerate, results: called with a result for each call, shown: after each change } */
  constructor(on) {
    super("assistant", "assistant");
    this.on = on;
    this.content = this.reasoning = "";
    this.calls = []; // { id, name, arguments, shown: the element of the arguments }
    this.note = say(element("p", { class: "note" }), "waiting");
    this.meta = element("p", { class: "meta" });
    this.body.append(this.note);
    this.node.setAttribute("aria-busy", "true");
  }

  /** What a request has of it; null: it says nothing. */
  get message() {
    if (!this.content && !this.calls.length) return null;
    const message = { role: "assistant", content: this.content || null };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (this.calls.length) message.tool_calls = this.calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    return message;
  }

  addReasoning(text) {
    if (!this.thinking) {
      this.thinkingTitle = say(element("summary"), "thinkingNow");
      const inner = element("div", { class: "markdown" });
      this.thinking = element("details", { class: "thinking" }, this.thinkingTitle, inner);
      this.body.insertBefore(this.thinking, this.note);
      this.thinkingView = new MarkdownView(inner, this.on.shown);
    }
    this.reasoning += text;
    this.thinkingView.append(text);
  }

  addContent(text) {
    if (!this.view) {
      if (this.thinking) say(this.thinkingTitle, "thinking");
      const inner = element("div", { class: "markdown" });
      this.body.insertBefore(inner, this.note);
      this.view = new MarkdownView(inner, this.on.shown);
    }
    this.content += text;
    this.view.append(text);
  }

  /** A piece of a call, as OpenAI's streams have it. */
  addCall({ index, id, function: f }) {
    const call = (this.calls[index] ??= { id, name: "", arguments: "", shown: null });
    if (f?.name) call.name += f.name;
    if (f?.arguments) call.arguments += f.arguments;
    if (!call.shown) {
      call.title = element("figcaption");
      call.shown = element("code");
      this.body.insertBefore(element("figure", { class: "call code" }, call.title, element("pre", { tabindex: "0" }, call.shown)), this.note);
    }
    say(call.title, "call", { name: call.name });
    call.shown.textContent = call.arguments;
  }

  /** A delta of a stream. @return whether it said something. */
  add(delta) {
    if (delta.reasoning_content) this.addReasoning(delta.reasoning_content);
    if (delta.content) this.addContent(delta.content);
    for (const call of delta.tool_calls ?? []) this.addCall(call);
    const said = Boolean(delta.reasoning_content || delta.content || delta.tool_calls?.length);
    if (said) say(this.note, null);
    return said;
  }

  warn(sentences) {
    this.body.append(...sentences.map((sentence) => element("p", { class: "note" }, sentence)));
  }

  /** It is over. @param how { note: words under it, error: a sentence, usage, times: { ttft, tpot } } */
  end({ note, error, usage, times }) {
    this.node.removeAttribute("aria-busy");
    if (this.thinking) say(this.thinkingTitle, "thinking");
    this.thinkingView?.end();
    this.view?.end();
    for (const call of this.calls) call.shown.textContent = pretty(call.arguments);
    say(this.note, note);
    this.note.hidden = !note;
    if (error) this.body.append(element("p", { class: "error", role: "alert" }, error));
    this.showUsage(usage, times);
    if (this.content) this.actions.append(copyButton(() => this.content));
    this.actions.append(button(error ? "retry" : "regenerate", this.on.regenerate));
    if (this.calls.length && !error && !note) this.askForResults();
    this.on.shown();
  }

  showUsage(usage, { ttft, tpot }) {
    if (usage) {
      const reasoning = usage.completion_tokens_details?.reasoning_tokens ?? 0;
      const values = {
        prompt: number(usage.prompt_tokens),
        cached: number(usage.prompt_tokens_details?.cached_tokens ?? 0),
        completion: number(usage.completion_tokens),
        reasoning: number(reasoning),
      };
      this.meta.append(say(element("span"), reasoning ? "usageThinking" : "usage", values));
    }
    if (usage && ttft !== null) this.meta.append(" · ");
    if (ttft !== null) {
      const values = { ttft: duration(ttft) };
      if (tpot) Object.assign(values, { tpot: duration(tpot), rate: number(1 / tpot, 1) });
      this.meta.append(say(element("span"), tpot ? "speedRate" : "speed", values));
    }
    if (this.meta.firstChild) this.body.append(this.meta);
  }

  /* The console runs no tools: a person says what they gave. */
  askForResults() {
    const areas = this.calls.map((call) => {
      const area = element("textarea", { rows: "2", required: true, id: `result-${call.id}` });
      return { area, field: [say(element("label", { for: area.id }), "result", { name: call.name }), area] };
    });
    const form = element("form", { class: "results" }, ...areas.flatMap(({ field }) => field), say(element("button", { type: "submit" }), "sendResults"));
    form.addEventListener("submit", (e) => {
      e.preventDefault();
      form.remove();
      this.on.results(areas.map(({ area }) => area.value));
    });
    this.body.append(form);
  }
}
