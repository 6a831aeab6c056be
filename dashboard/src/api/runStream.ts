// The events of a run while it lasts: messages as they grow, the nodes that run, and what was told last.
import { useEffect, useState } from "react";
import { type ChatMessage, grown, messageOf, messagesIn } from "../lib/messages";
import { events } from "./changes";
import { ApiError, request } from "./client";

export interface Told {
  number: number;
  name: string;
  data: unknown;
}

export interface Live {
  /** The messages of the latest values, if they hold some. */
  messages: ChatMessage[] | null;
  /** Messages that are not in the values yet, by their ids. */
  growing: ReadonlyMap<string, ChatMessage>;
  /** The nodes that run; null if the run does not tell of them. */
  nodes: ReadonlySet<string> | null;
  told: readonly Told[];
}

const NOTHING: Live = { messages: null, growing: new Map(), nodes: null, told: [] };
const MOST_TOLD = 200;
const TOGETHER = 80;
const WAIT = 1000;

/** Follow a run from its first event on; without one there is nothing. */
export function useRunStream(run_id: string | null): Live {
  const [live, setLive] = useState(NOTHING);
  useEffect(() => {
    setLive(NOTHING);
    if (run_id === null) return;
    const stop = new AbortController();
    void follow(run_id, stop.signal, setLive);
    return () => stop.abort();
  }, [run_id]);
  return live;
}

async function follow(run_id: string, signal: AbortSignal, show: (live: Live) => void): Promise<void> {
  let last: string | null = null;
  let live = NOTHING;
  let timer: ReturnType<typeof setTimeout> | undefined;
  while (!signal.aborted) {
    try {
      const headers: Record<string, string> = last === null ? {} : { "Last-Event-ID": last };
      const response: Response = await request("GET", "/api/v1/runs/{run_id}/stream", { path: { run_id }, signal, headers });
      for await (const event of events(response)) {
        last = event.id ?? last;
        live = after(live, event.name, JSON.parse(event.data) as unknown);
        // Tokens come faster than a page can be drawn.
        timer ??= setTimeout(() => {
          timer = undefined;
          if (!signal.aborted) show(live);
        }, TOGETHER);
      }
      return;
    } catch (error) {
      if (signal.aborted || error instanceof ApiError) return;
      await new Promise((done) => setTimeout(done, WAIT));
    }
  }
}

function after(live: Live, name: string, data: unknown): Live {
  const mode = name.split("|")[0];
  const number = (live.told.at(-1)?.number ?? 0) + 1;
  if (mode === "messages" && Array.isArray(data)) {
    const piece = messageOf((data[0] ?? {}) as Record<string, unknown>);
    if (piece.id === null) return live;
    const whole = live.growing.get(piece.id);
    // A message that was streamed comes once more as a whole.
    const isPiece = String((data[0] as { type?: unknown }).type).endsWith("Chunk");
    return { ...live, growing: new Map(live.growing).set(piece.id, isPiece ? grown(whole, piece) : piece) };
  }
  const next = { ...live, told: [...live.told.slice(1 - MOST_TOLD), { number, name, data }] };
  if (name === "values") return { ...next, messages: messagesIn(data) ?? live.messages };
  if (mode === "tasks" && typeof data === "object" && data !== null) {
    const task = data as { name?: unknown; input?: unknown };
    const nodes = new Set(live.nodes);
    if ("input" in task) nodes.add(String(task.name));
    else nodes.delete(String(task.name));
    return { ...next, nodes };
  }
  return next;
}

/** The messages of a state, with those that grow behind them. */
export function withGrowing(messages: readonly ChatMessage[], live: Live): ChatMessage[] {
  const known = new Set(messages.map((message) => message.id));
  return [...messages, ...[...live.growing].filter(([id, message]) => !known.has(id) && message.role !== "user").map(([, message]) => message)];
}
