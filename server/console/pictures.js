/* Pictures that a person adds to a message: chosen, dropped or pasted. Nothing of them gets an address: they are drawn. */
import { byId, element } from "./elements.js";
import { label, say } from "./language.js";

const SIDE = 120; // pixels of a side as it is shown, at most

let taken = false; // the model takes pictures
let added = []; // { url: a data URL, bitmap } of the next message

const readUrl = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

function draw({ bitmap }) {
  const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  const size = { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) };
  const canvas = label(element("canvas", { role: "img", ...size }), "tLabel", "picture");
  canvas.getContext("2d").drawImage(bitmap, 0, 0, size.width, size.height);
  return canvas;
}

function show() {
  const remove = (picture) => {
    added = added.filter((other) => other !== picture);
    show();
    byId("message").focus();
  };
  const item = (picture) => element("li", null, draw(picture), label(element("button", { type: "button", class: "quiet", click: () => remove(picture) }, "×"), "tLabel", "removePicture"));
  byId("pictures").replaceChildren(...added.map(item));
  byId("pictures").hidden = !added.length;
}

/* In the order in which they came; a file that the browser cannot show is none. */
async function add(files) {
  const problem = byId("problem");
  problem.hidden = true;
  for (const file of files) {
    try {
      const picture = { url: await readUrl(file), bitmap: await createImageBitmap(file) };
      added.push(picture); // of the message that is written now: another one may have been sent meanwhile
    } catch {
      say(problem, "noPicture");
      problem.hidden = false;
    }
  }
  show();
}

function takeFrom(e, transfer) {
  if (!taken || !transfer?.files.length) return;
  e.preventDefault();
  add([...transfer.files]);
}

/** Whether the model takes pictures. */
export function offerPictures(takes) {
  taken = takes;
  byId("add-pictures").hidden = !takes;
  if (!takes) forgetPictures();
}

export const addedPictures = () => added;

export function forgetPictures() {
  added = [];
  show();
}

/** Pictures of a message, as the page shows them; null: there are none. */
export const pictureRow = (pictures) => (pictures.length ? element("div", { class: "pictures" }, pictures.map(draw)) : null);

/** The content of a message. */
export function contentOf(text, pictures) {
  if (!pictures.length) return text;
  const parts = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

byId("add-pictures").addEventListener("click", () => byId("picture-files").click());
byId("picture-files").addEventListener("change", (e) => {
  add([...e.target.files]);
  e.target.value = ""; // the same file may be chosen again
});
byId("message").addEventListener("paste", (e) => takeFrom(e, e.clipboardData));
byId("chat").addEventListener("dragover", (e) => taken && e.preventDefault());
byId("chat").addEventListener("drop", (e) => takeFrom(e, e.dataTransfer));
