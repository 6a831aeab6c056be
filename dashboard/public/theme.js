// Runs before the first paint, so that the page does not flash in the wrong colours.
(function () {
  var kept = null;
  try {
    kept = localStorage.getItem("perdure.theme");
  } catch (error) {
    kept = null;
  }
  var dark = kept === "dark" || (kept !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.setAttribute("data-mantine-color-scheme", dark ? "dark" : "light");
})();
