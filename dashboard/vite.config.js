import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// The server puts its own path in the place of this one; assets are found relative to the page's base.
const BASE = "/perdure-base/";
const SERVER = process.env.PERDURE_URL ?? "http://127.0.0.1:4747";

/** The development server gives the page what the server of a build gives it. */
const page = {
  name: "page",
  apply: "serve",
  transformIndexHtml: (html) => html.replace(BASE, "/ui/").replace("perdure-nonce", ""),
};

export default defineConfig(({ command }) => ({
  base: command === "serve" ? "/ui/" : "./",
  plugins: [react(), page],
  build: {
    outDir: process.env.DASHBOARD_OUT ?? "../src/perdure/web/ui",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 600,
  },
  server: {
    port: 4750,
    strictPort: true,
    proxy: { "/api": { target: SERVER, changeOrigin: false }, "/info": SERVER, "/healthz": SERVER },
  },
}));
