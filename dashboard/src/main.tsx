import { createRoot } from "react-dom/client";
import "@mantine/core/styles.css";
import "./styles.css";
import { App } from "./app/App";

const base = new URL(document.baseURI).pathname;
const root = document.getElementById("root");
if (!location.pathname.startsWith(base)) {
  // The server can also be reached without the prefix that it is mounted at.
  location.replace(base);
} else if (root) {
  createRoot(root).render(<App />);
}
