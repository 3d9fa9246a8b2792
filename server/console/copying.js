/* Buttons that copy text. */
import { element } from "./elements.js";
import { say } from "./language.js";

const COPIED_MS = 1500;

/* Without https, pages have no clipboard but the one of a selection. */
function copySelected(text) {
  const area = element("textarea", { class: "unseen", readonly: true });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** @param text gives what is copied. */
export function copyButton(text) {
  const button = say(element("button", { type: "button", class: "quiet" }), "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
    } catch {
      copySelected(text());
      button.focus();
    }
    say(button, "copied");
    setTimeout(() => say(button, "copy"), COPIED_MS);
  });
  return button;
}
