/* The chat: its turns, and the answer that runs. */
import { events, request } from "./api.js";
import { byId } from "./elements.js";
import { number, say } from "./language.js";
import { readOptions, showDefaults, systemPrompt } from "./options.js";
import { addedPictures, forgetPictures, offerPictures } from "./pictures.js";
import { AnswerTurn, ToolTurn, UserTurn } from "./turn.js";

const NEAR_END = 60; // pixels: who is so near the end of the page is taken along
const NOTES = { length: "lengthNote", abort: "abortNote" };

const turns = [];
let model = null;
let running = null; // { abort, done }: the answer that comes
let follows = true;

const log = byId("log");
const message = byId("message");
const scroller = byId("scroller");
const announce = (key, values) => say(byId("announcement"), key, values);

/* ---- the page ---- */

scroller.addEventListener("scroll", () => {
  follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END;
}, { passive: true });

function shown() {
  if (follows) scroller.scrollTop = scroller.scrollHeight;
}

function showEmpty() {
  byId("empty").hidden = turns.length > 0;
}

function add(turn) {
  turns.push(turn);
  log.append(turn.node);
  showEmpty();
  follows = true;
  shown();
  return turn;
}

/* Forget the turns from one on. */
function cut(turn) {
  for (const old of turns.splice(turns.indexOf(turn))) old.node.remove();
  showEmpty();
}

function showRunning() {
  say(byId("send"), running ? "stop" : "send");
  byId("send").classList.toggle("stops", Boolean(running));
}

/* ---- an answer ---- */

/* The message box says what is wrong with the options before anything is sent. */
function optionsOrNull() {
  const problem = byId("problem");
  try {
    const options = readOptions();
    problem.hidden = true;
    return options;
  } catch (e) {
    problem.textContent = e.message;
    problem.hidden = false;
    return null;
  }
}

function bodyOf(options) {
  const system = systemPrompt();
  const messages = turns.map((turn) => turn.message).filter((m) => m);
  if (system) messages.unshift({ role: "system", content: system });
  return { model, messages, stream: true, stream_options: { include_usage: true }, ...options };
}

/* Read the answer into its turn. @return what the end of the turn is to show. */
async function readAnswer(turn, body, signal) {
  const begin = performance.now();
  const end = { note: null, error: null, usage: null, times: { ttft: null, tpot: null } };
  let last = begin;
  try {
    for await (const chunk of events(await request("v1/chat/completions", { body, signal }))) {
      if (chunk.warnings) turn.warn(chunk.warnings);
      if (chunk.usage) end.usage = chunk.usage;
      for (const choice of chunk.choices ?? []) {
        if (turn.add(choice.delta)) {
          last = performance.now();
          if (end.times.ttft === null) announce("answering");
          end.times.ttft ??= (last - begin) / 1000;
        }
        end.note = NOTES[choice.finish_reason] ?? null;
      }
    }
    announce("answered", { tokens: number(end.usage?.completion_tokens ?? 0) });
  } catch (e) {
    if (e.name === "AbortError") end.note = "stoppedNote";
    else end.error = e.message;
    announce(e.name === "AbortError" ? "stopped" : null);
  }
  const tokens = end.usage?.completion_tokens ?? 0;
  if (tokens > 1 && last > begin) end.times.tpot = ((last - begin) / 1000 - end.times.ttft) / (tokens - 1);
  return end;
}

async function generate(options) {
  const body = bodyOf(options);
  const turn = new AnswerTurn({ regenerate: () => regenerate(turn), results: (results) => sendResults(turn, results), shown });
  const abort = new AbortController();
  add(turn);
  running = { abort, done: null };
  showRunning();
  running.done = readAnswer(turn, body, abort.signal).then((end) => {
    running = null;
    showRunning();
    turn.end(end);
  });
  await running.done;
}

async function answer(change) {
  await stop();
  const options = optionsOrNull();
  if (!options) return false;
  change();
  generate(options);
  return true;
}

/** Stop the answer that runs, if one does. */
export async function stop() {
  const done = running?.done;
  running?.abort.abort();
  await done;
}

export const isRunning = () => running !== null;

/* ---- what a person does ---- */

const userTurn = (text, pictures) => {
  const turn = new UserTurn(text, pictures, (edited) => answer(() => (cut(turn), add(userTurn(edited, pictures)))));
  return turn;
};

function regenerate(turn) {
  answer(() => cut(turn));
  message.focus();
}

function sendResults(turn, results) {
  answer(() => turn.calls.forEach((call, i) => add(new ToolTurn(call, results[i]))));
  message.focus();
}

async function sendMessage() {
  const text = message.value, pictures = addedPictures();
  if (!(text.trim() || pictures.length) || running) return;
  if (await answer(() => add(userTurn(text, pictures)))) {
    message.value = "";
    forgetPictures();
    fitMessage();
  }
}

function fitMessage() {
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight + 2}px`;
}

export async function newChat() {
  await stop();
  if (turns.length) cut(turns[0]);
  message.focus();
}

/** The model that answers, and what it does where an option is left out. */
export function setModel(name, info) {
  model = name;
  say(byId("empty-title"), "empty", { model: name });
  byId("no-template").hidden = info.has_chat_template !== false;
  offerPictures(info.has_image_understanding === true);
  showDefaults(info.preferred_sampling_params ?? {});
}

byId("composer").addEventListener("submit", (e) => {
  e.preventDefault();
  if (running) stop();
  else sendMessage();
});
message.addEventListener("input", fitMessage);
message.addEventListener("keydown", (e) => {
  if (e.key !== "Enter" || e.shiftKey || e.isComposing || e.keyCode === 229) return; // 229: of an input method
  e.preventDefault();
  sendMessage();
});
byId("new-chat").addEventListener("click", newChat);
showRunning();
