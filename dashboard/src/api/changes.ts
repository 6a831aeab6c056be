// The change feed: a change is a hint, and what it concerns is read again. It pauses while the page is hidden.
import type { QueryClient } from "@tanstack/react-query";
import { whenServerReturns } from "../app/connection";
import { Store } from "../app/store";
import { ApiError, request } from "./client";
import { refresh } from "./refresh";

interface Change {
  kind: string;
  id: string;
  status: string;
}

/**
 * What is read again when something of a kind has changed: the first word of its query keys. Kinds that are not
 * listed stand for themselves, so that a screen of a new kind needs nothing here.
 */
const AFFECTED: Record<string, string[]> = {
  rollout: ["rollout", "run", "worker", "overview", "why"],
  run: ["run", "thread", "overview", "why"],
  thread: ["thread", "run"],
  execution: ["execution", "workflow_run", "overview"],
  approval: ["approval", "workflow_run", "overview", "why"],
  workflow_override: ["workflow"],
  workflow_run: ["workflow_run", "approval", "overview", "why"],
};
const TOGETHER = 400;
const HIDDEN_AFTER = 10_000;
const LONGEST_WAIT = 10_000;

export const feed = new Store<"live" | "paused" | "connecting">("connecting");

export function followChanges(client: QueryClient): () => void {
  let stop = new AbortController();
  let hiding: ReturnType<typeof setTimeout> | undefined;
  const collected = new Map<string, Set<string>>();
  let timer: ReturnType<typeof setTimeout> | undefined;

  const flush = () => {
    timer = undefined;
    const kinds = new Map(collected);
    collected.clear();
    void refresh(client, (query) => concerns(query.queryKey, kinds));
  };
  const note = ({ kind, id }: Change) => {
    const ids = collected.get(kind) ?? new Set();
    collected.set(kind, ids.add(id));
    timer ??= setTimeout(flush, TOGETHER);
  };
  const start = () => {
    stop = new AbortController();
    void follow(stop.signal, note, () => void refresh(client));
  };
  const onVisibility = () => {
    clearTimeout(hiding);
    if (document.visibilityState === "hidden") {
      hiding = setTimeout(() => {
        stop.abort();
        feed.set("paused");
      }, HIDDEN_AFTER);
    } else if (stop.signal.aborted) {
      start();
      void refresh(client);
    }
  };
  document.addEventListener("visibilitychange", onVisibility);
  whenServerReturns(() => void refresh(client));
  start();
  return () => {
    document.removeEventListener("visibilitychange", onVisibility);
    clearTimeout(hiding);
    clearTimeout(timer);
    stop.abort();
  };
}

/** Keys are [kind, "one", id, ...] for one object, and [kind, ...] for everything else. */
function concerns(key: readonly unknown[], kinds: Map<string, Set<string>>): boolean {
  for (const [kind, ids] of kinds) {
    const affected = AFFECTED[kind] ?? [kind];
    if (!affected.includes(String(key[0]))) continue;
    if (key[1] !== "one" || key[0] !== kind || ids.has(String(key[2]))) return true;
  }
  return false;
}

async function follow(signal: AbortSignal, note: (change: Change) => void, resync: () => void): Promise<void> {
  let wait = 500;
  let again = false;
  while (!signal.aborted) {
    try {
      feed.set("connecting");
      const response = await request("GET", "/api/v1/changes", { signal });
      feed.set("live");
      // What changed while nobody listened is not told again.
      if (again) resync();
      again = true;
      wait = 500;
      for await (const event of events(response)) {
        if (event.name === "change") note(JSON.parse(event.data) as Change);
        if (event.name === "resync") resync();
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && (error.status === 401 || error.status === 403)) return feed.set("paused");
    }
    feed.set("connecting");
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, LONGEST_WAIT);
  }
}

export interface ServerEvent {
  name: string;
  data: string;
  id: string | null;
}

/** The events of a response that streams server-sent events. */
export async function* events(response: Response): AsyncGenerator<ServerEvent> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (!reader) return;
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value.replaceAll("\r\n", "\n");
    const frames = rest.split("\n\n");
    rest = frames.pop() ?? "";
    for (const frame of frames) {
      const event = eventOf(frame);
      if (event) yield event;
    }
  }
}

function eventOf(frame: string): ServerEvent | null {
  let name = "message";
  let id: string | null = null;
  const data: string[] = [];
  for (const line of frame.split("\n")) {
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") name = value;
    if (field === "id") id = value;
    if (field === "data") data.push(value);
  }
  return data.length ? { name, data: data.join("\n"), id } : null;
}
