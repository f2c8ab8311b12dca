// The theme a person chose: "light", "dark", or nothing, and then it is the system's.
"use strict";

(() => {
  const KEY = "helmsman-theme";
  const root = document.documentElement;

  function chosen() {
    try {
      return localStorage.getItem(KEY) ?? "";
    } catch {
      return ""; // storage may be forbidden; then a choice lasts as long as the page
    }
  }

  function apply(theme) {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  }

  window.helmsmanTheme = {
    get: () => root.dataset.theme ?? "",
    set(theme) {
      apply(theme);
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // see above
      }
    },
  };
  apply(chosen());
})();
