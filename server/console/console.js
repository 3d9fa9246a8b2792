/* The page as a whole: its two views, the connection, the key, language and colours, and the keys that work everywhere. */
import { ApiError, getJson, health, onKeyNeeded } from "./api.js";
import { isRunning, setModel, stop } from "./chat.js";
import { byId } from "./elements.js";
import { language, say, translate } from "./language.js";
import { pauseMachine, readMachine, setServer } from "./machine.js";

const EVERY_MS = 1000;
const THEMES = ["auto", "light", "dark"];
const VIEWS = ["chat", "machine"];

const root = document.documentElement;

function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // storage may be forbidden: it holds for this page then
  }
}

/* ---- views, language, colours ---- */

function showView(view) {
  for (const name of VIEWS) {
    byId(name).hidden = name !== view;
    byId(`show-${name}`).setAttribute("aria-current", name === view ? "page" : "false");
  }
  if (view === "machine") pauseMachine();
  else if (!matchMedia("(pointer: coarse)").matches) byId("message").focus(); // a keyboard on the screen would hide the chat
  root.dataset.view = view;
  look();
}

for (const view of VIEWS) byId(`show-${view}`).addEventListener("click", () => (location.hash = view));
const viewOfAddress = () => (VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat");
addEventListener("hashchange", () => showView(viewOfAddress()));

byId("language").addEventListener("click", () => {
  root.lang = language() === "zh" ? "en" : "zh";
  keep("tandem-language", root.lang);
  translate();
  look();
});

function showTheme() {
  say(byId("theme"), `theme_${root.dataset.theme}`);
}

byId("theme").addEventListener("click", () => {
  root.dataset.theme = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
  keep("tandem-theme", root.dataset.theme);
  showTheme();
});

/* ---- the key ---- */

let needsKey = false; // a person did not give one

onKeyNeeded((wrong) => new Promise((resolve) => {
  const dialog = byId("key-dialog");
  const field = byId("key");
  const problem = byId("key-problem");
  const complain = (key) => {
    say(problem, key);
    problem.hidden = !key;
  };
  const ended = (given) => {
    needsKey = given === null;
    byId("key-form").onsubmit = dialog.onclose = null;
    field.value = "";
    if (dialog.open) dialog.close();
    resolve(given);
  };
  complain(wrong ? "keyWrong" : null);
  byId("key-form").onsubmit = (e) => {
    e.preventDefault();
    if (/^[\x21-\x7e]+$/.test(field.value)) ended(field.value);
    else complain("keyForm");
  };
  dialog.onclose = () => ended(null);
  dialog.showModal();
  field.focus();
}));
byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());

/* ---- the connection ---- */

let state = "connecting";
let known = false; // the server's own facts are shown
let asks = false;

/* @param sentence why the server is of no use, where it is there. */
function showState(next, sentence) {
  if (next === "unreachable") {
    say(byId("banner"), sentence ? null : "lost");
    if (sentence) byId("banner").textContent = sentence;
    byId("banner").hidden = false;
    known = false;
  } else if (state === "unreachable" && next !== state) {
    say(byId("announcement"), "lostSince");
    byId("banner").hidden = true;
  }
  state = next;
  say(byId("state"), `state_${state}`);
  byId("state").dataset.state = state;
}

/* Who is there; again after it was away, since another model may be served now. Asks for the key. */
async function learn() {
  if (asks) return;
  asks = true;
  try {
    const models = await getJson("v1/models");
    const [info, server] = await Promise.all([getJson("get_model_info"), getJson("server_info")]);
    const name = models.data[0].id;
    byId("model-name").textContent = name;
    document.title = `${name} · Tandem`;
    setModel(name, info);
    setServer(server);
    known = true;
  } finally {
    asks = false;
  }
}

async function lookOnce() {
  const status = await health();
  if (needsKey) return "key";
  if (!known) await learn();
  if (known && root.dataset.view === "machine") known = await readMachine();
  return status;
}

let timer = null;
let looking = false;

/* Look now, and every second from then on while the page can be seen. */
async function look() {
  clearTimeout(timer);
  if (looking || document.hidden) return;
  looking = true;
  try {
    showState(await lookOnce());
  } catch (e) {
    if (e.status === 401) {
      needsKey = true;
      known = false;
      showState("key");
    } else {
      showState("unreachable", e.status === 0 ? null : e.message);
      if (!(e instanceof ApiError)) console.error(e); // a mistake of this page
    }
  }
  looking = false;
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(look, EVERY_MS);
}

document.addEventListener("visibilitychange", () => {
  pauseMachine();
  look();
});
byId("state").addEventListener("click", () => {
  needsKey = false;
  look();
});

/* ---- keys that work everywhere ---- */

addEventListener("keydown", (e) => {
  const types = /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName);
  if (e.key === "Escape" && isRunning() && !byId("key-dialog").open) {
    e.preventDefault();
    stop();
  } else if (e.key === "/" && !types && !e.ctrlKey && !e.metaKey && !e.altKey && !byId("key-dialog").open) {
    e.preventDefault();
    showView("chat");
    byId("message").focus();
  }
});

translate();
showTheme();
showView(viewOfAddress());
