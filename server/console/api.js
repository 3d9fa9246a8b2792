/* The server's API: the key, errors as sentences, streams as events. */
import { t } from "./language.js";

const KEPT_KEY = "tandem-key";
const EVENT_MAX = 16 * 2 ** 20; // characters of an event that has not ended

let key = sessionStorage.getItem(KEPT_KEY); // of this tab only, and never in an address
let askForKey = null;
let asking = null; // the promise of an answer, while a person is asked

/** @param ask (wrong: a key was refused) => promise of the key, or null for none. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** What went wrong, as a sentence. status 0: no answer came. */
export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function errorOf(response) {
  const text = await response.text().catch(() => "");
  try {
    const { error } = JSON.parse(text);
    return new ApiError(response.status, error.message, error.code);
  } catch {
    return new ApiError(response.status, t("error_status", { status: response.status }));
  }
}

/* Paths are relative to the page, so that a proxy may serve all of it below a path of its own. */
async function send(path, { body, signal }) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  try {
    return await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
      referrerPolicy: "no-referrer",
    });
  } catch (e) {
    throw e.name === "AbortError" ? e : new ApiError(0, t("error_unreachable"));
  }
}

/* One dialog, however many requests want a key. */
async function askOnce(refused) {
  if (refused !== key) return true; // another request's dialog brought a new one meanwhile
  asking ??= askForKey(refused !== null).finally(() => (asking = null));
  const given = await asking;
  if (given === null) return false;
  key = given;
  sessionStorage.setItem(KEPT_KEY, given);
  return true;
}

/**
 * A response with a good status.
 * @param options body: sent as JSON; signal: to abort; quiet: without a key, fail rather than ask for it.
 */
export async function request(path, options = {}) {
  for (;;) {
    const sent = key;
    const response = await send(path, options);
    if (response.ok) return response;
    const error = await errorOf(response);
    if (response.status !== 401 || options.quiet || !(await askOnce(sent))) throw error;
  }
}

export const getJson = async (path, options) => (await request(path, options)).json();
export const getText = async (path, options) => (await request(path, options)).text();

/** The status that /health tells; it needs no key, and says so in its own way when it is no 200. */
export async function health() {
  const response = await send("health", {});
  const { status } = await response.json().catch(() => ({}));
  return status ?? "unreachable";
}

/** The events of a stream, as values, until its "[DONE]". */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (e) {
      throw e.name === "AbortError" ? e : new ApiError(0, t("error_cut"));
    }
    if (piece.done) throw new ApiError(0, t("error_cut"));
    text += piece.value;
    let from = 0;
    for (let end; (end = text.indexOf("\n\n", from)) >= 0; from = end + 2) {
      const event = text.slice(from, end);
      if (!event.startsWith("data: ")) throw new ApiError(0, t("error_form", { what: event.slice(0, 80) }));
      if (event === "data: [DONE]") return;
      const value = JSON.parse(event.slice(6));
      if (value.error) throw new ApiError(value.error.status ?? 500, value.error.message, value.error.code);
      yield value;
    }
    text = text.slice(from);
    if (text.length > EVENT_MAX) throw new ApiError(0, t("error_form", { what: text.slice(0, 80) }));
  }
}
