import { Select, TextInput } from "@mantine/core";
import { useDeferredValue, useEffect, useState } from "react";
import { api, ApiError, type Schema } from "../api/client";
import { useOne } from "../api/queries";
import { useFilter } from "../app/filters";
import { linkTo, type Params } from "../app/screens";
import { Card, Facts, Head, Id, Loading, when } from "../components/basics";
import { Conversation } from "../components/Conversation";
import { Icon } from "../components/Icon";
import { Problem } from "../components/Problem";
import { bytes, compact, count } from "../lib/format";
import type { ChatMessage } from "../lib/messages";

type Message = Schema<"Message">;

const PAGE = 500;
const MOST = 20_000;
const WAIT = 20;
const AGAIN = 1000;

export function sessionLink(session_id: string, query: { project?: string; at?: string } = {}): string {
  const text = new URLSearchParams(query).toString();
  return `/sessions/${encodeURIComponent(session_id)}${text && `?${text}`}`;
}

export default function SessionScreen({ params }: { params: Params }) {
  const session_id = params.session_id ?? "";
  const [project] = useFilter("project");
  const [at] = useFilter("at");
  const [sub_agent, setSubAgent] = useFilter("agent");
  const [text, setText] = useState("");
  const words = useDeferredValue(text.toLowerCase());
  const found = useOne(["session", "one", session_id, project], (signal) =>
    api.get("/api/v1/sessions/{session_id}", { path: { session_id }, query: { project: project || null }, signal }),
  );
  const read = useTranscript(session_id, project, sub_agent, found.data !== undefined);
  if (found.error && !found.data) return <Problem error={found.error} id={session_id} />;
  if (!found.data) return <Loading />;
  const session = found.data;
  const messages = words ? read.messages.filter((message) => matches(message, words)) : read.messages;
  const run_id = read.run_id;
  return (
    <>
      <Head title={<Id id={session_id} />} label={session_id} above={["Sessions", "/sessions"]}>
        {read.isTailing && <span className="badge tone-ok is-live" data-tail="live"><span className="dot" />live</span>}
      </Head>
      <div className="body">
        <div className="grid">
          <Card
            title={`Transcript (${count(messages.length)}${read.messages.length >= MOST ? "+" : ""})`} className="span8"
            side={
              <>
                {!!session.sub_agents?.length && (
                  <Select
                    aria-label="Sub-agent" w={160} clearable placeholder="The session itself" value={sub_agent || null}
                    data={session.sub_agents.map((each) => each.name)} onChange={(name) => setSubAgent(name ?? "")}
                  />
                )}
                <TextInput aria-label="Search this session" placeholder="Search" leftSection={<Icon name="search" size={13} />} value={text} onChange={(event) => setText(event.currentTarget.value)} />
              </>
            }
          >
            {read.error ? <Problem error={read.error} /> : !read.isRead ? <Loading />
              : messages.length ? <Conversation messages={messages} {...(at ? { focus: at } : {})} />
              : <span className="quiet">{words ? "Nothing in it has these words." : "It is empty."}</span>}
          </Card>
          <Card title="Facts" className="span4">
            <Facts
              facts={[
                ["Session", <Id id={session.session_id} />],
                ["Kind", session.kind],
                ["Project", session.project],
                ["Directory", session.cwd],
                ["Model", session.model],
                ["Run", run_id && <Id id={run_id} to={linkTo("run", run_id) ?? "/"} />],
                ["Messages", session.messages === null || session.messages === undefined ? null : count(session.messages)],
                ["Turns", session.turns || null],
                ["Tool calls", session.tool_calls || null],
                ["Tokens", session.usage ? `${compact(session.usage.input_tokens ?? 0)} in, ${compact(session.usage.output_tokens ?? 0)} out` : null],
                ["From cache", session.usage?.cache_read_input_tokens ? compact(session.usage.cache_read_input_tokens) : null],
                ["Cost", session.usage?.cost_usd ? `$${session.usage.cost_usd.toFixed(4)}` : null],
                ["Size", bytes(session.size)],
                ["Began", when(session.started_at)],
                ["Changed", when(session.updated_at)],
              ]}
            />
          </Card>
        </div>
      </div>
    </>
  );
}

const matches = (message: ChatMessage, words: string): boolean =>
  message.text.toLowerCase().includes(words) || message.calls.some((call) => `${call.name} ${JSON.stringify(call.arguments)}`.toLowerCase().includes(words));

interface Transcript {
  messages: ChatMessage[];
  run_id: string | null;
  isRead: boolean;
  isTailing: boolean;
  error: Error | null;
}

const NOTHING: Transcript = { messages: [], run_id: null, isRead: false, isTailing: false, error: null };

/** The messages of a session, page by page, and then each new one as it is written. */
function useTranscript(session_id: string, project: string, sub_agent: string, isThere: boolean): Transcript {
  const [read, setRead] = useState(NOTHING);
  useEffect(() => {
    setRead(NOTHING);
    if (!isThere) return;
    const stop = new AbortController();
    void follow({ session_id, project, sub_agent }, stop.signal, setRead);
    return () => stop.abort();
  }, [session_id, project, sub_agent, isThere]);
  return read;
}

async function follow(wanted: { session_id: string; project: string; sub_agent: string }, signal: AbortSignal, show: (read: Transcript) => void): Promise<void> {
  const { session_id, sub_agent } = wanted;
  const project = wanted.project || null;
  let read = NOTHING;
  let after = 0;
  while (!signal.aborted) {
    try {
      const query = { project, sub_agent, after, limit: PAGE, wait: read.isRead ? WAIT : 0 };
      const page = await api.get("/api/v1/sessions/{session_id}/messages", { path: { session_id }, query, signal });
      after = page.after;
      const isFull = read.messages.length + page.items.length >= MOST;
      const run_id = read.run_id ?? page.items.find((message) => message.run_id)?.run_id ?? null;
      read = { messages: joined(read.messages, page.items.map((message) => said(message, session_id, project))), run_id, isRead: read.isRead || page.end || isFull, isTailing: page.end || read.isTailing, error: null };
      if (page.items.length || page.end) show(read);
      if (isFull) return show({ ...read, isTailing: false });
      if (document.visibilityState === "hidden") await seen(signal);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError) return show({ ...read, isRead: true, isTailing: false, error: read.messages.length ? null : error });
      await new Promise((done) => setTimeout(done, AGAIN));
    }
  }
}

/** Wait until the page is in sight again. */
function seen(signal: AbortSignal): Promise<void> {
  return new Promise((done) => {
    document.addEventListener("visibilitychange", () => done(), { once: true, signal });
    signal.addEventListener("abort", () => done(), { once: true });
  });
}

function said(message: Message, session_id: string, project: string | null): ChatMessage {
  const { blob } = message;
  const tokens = message.usage && !message.cumulative ? (message.usage.input_tokens ?? 0) + (message.usage.output_tokens ?? 0) : 0;
  return {
    id: String(message.position ?? 0),
    part: message.message_id ?? null,
    role: message.role === "event" ? (message.kind ?? "event") : message.role,
    text: message.text ?? "",
    calls: (message.tool_calls ?? []).map((call) => ({ id: call.id, name: call.name, arguments: call.input })),
    answers: message.tool_call_id ?? null,
    name: null,
    failed: message.is_error ?? false,
    time: message.time ?? null,
    ...(message.reasoning?.length ? { reasoning: message.reasoning.join("\n") } : {}),
    ...(tokens ? { note: `${compact(tokens)} tokens` } : {}),
    ...(blob ? { more: async () => (await api.get("/api/v1/sessions/{session_id}/blobs/{digest}", { path: { session_id, digest: blob }, query: { project } })).content } : {}),
  };
}

/** Lines that are parts of one message are one message here. */
function joined(known: readonly ChatMessage[], fresh: readonly ChatMessage[]): ChatMessage[] {
  const all = [...known];
  for (const message of fresh) {
    const last = all.at(-1);
    if (last && message.part && last.part === message.part && last.role === message.role && !message.answers) {
      const reasoning = [last.reasoning, message.reasoning].filter(Boolean).join("\n");
      all[all.length - 1] = { ...last, text: [last.text, message.text].filter(Boolean).join("\n"), calls: [...last.calls, ...message.calls], ...(reasoning ? { reasoning } : {}) };
    } else all.push(message);
  }
  return all;
}
