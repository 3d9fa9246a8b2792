/* Runs before the first paint: the theme and the language that were chosen last, else the browser's. */
(() => {
  const kept = (name) => {
    try {
      return localStorage.getItem(name);
    } catch {
      return null; // storage may be forbidden
    }
  };
  const root = document.documentElement;
  root.dataset.theme = kept("tandem-theme") ?? "auto";
  root.lang = kept("tandem-language") ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");
})();
