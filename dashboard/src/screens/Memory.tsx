import { TextInput } from "@mantine/core";
import { useState } from "react";
import { Link } from "wouter";
import { api, type Schema } from "../api/client";
import { useOne } from "../api/queries";
import { useTypedFilter } from "../app/filters";
import type { Params } from "../app/screens";
import { Ago, Card, Empty, Facts, Head, Loading, Status } from "../components/basics";
import { Conversation } from "../components/Conversation";
import { Icon } from "../components/Icon";
import { LongText } from "../components/LongText";
import { Problem } from "../components/Problem";
import { Views } from "../components/Views";
import { count, exact, plural } from "../lib/format";
import type { ChatMessage } from "../lib/messages";
import { sessionLink } from "./Session";

type Node = Schema<"TocNode">;
type Event = Schema<"MemoryEvent">;
type Hit = Schema<"SearchHit">;

const MOST_NODES = 200;
const MOST_HITS = 50;
const MOST_EVENTS = 200;
/** How much of a session around an event is shown with it, in milliseconds. */
const AROUND = 120_000;
const BELOW: Record<Node["level"], string> = { year: "Months", month: "Weeks", week: "Days", day: "Segments", segment: "Events" };

const nodeLink = (node_id: string): string => `/memory/${encodeURIComponent(node_id)}`;

export default function Memory({ params }: { params: Params }) {
  const [typed, setTyped, words] = useTypedFilter("q");
  const node_id = params.node_id ?? null;
  return (
    <>
      {node_id === null ? <Head title="Memory"><Views screen="memory" /></Head> : <NodeHead node_id={node_id} />}
      <div className="bar">
        <TextInput
          aria-label="Search memory" placeholder="What did we decide about…" leftSection={<Icon name="search" size={13} />} w={320}
          value={typed} onChange={(event) => setTyped(event.currentTarget.value)}
        />
      </div>
      <div className="body">{words.trim() ? <Found words={words.trim()} /> : node_id === null ? <Years /> : <NodeBody node_id={node_id} />}</div>
    </>
  );
}

function Years() {
  const years = useOne(["memory", "years"], (signal) => api.get("/api/v1/memory/toc", { query: { limit: MOST_NODES }, signal }));
  const holds = useOne(["memory", "stats"], (signal) => api.get("/api/v1/memory/stats", { signal })).data;
  if (years.error && !years.data) return <Problem error={years.error} />;
  if (!years.data) return <Loading />;
  if (!years.data.items.length && !holds?.events) {
    return <Empty title="Nothing is remembered yet" text="Events are stored, summarised by day, week, month and year, and found again by their words." snippet={`perdure memory add "We chose SQLite because it needs no server."`} />;
  }
  return (
    <div className="grid">
      <Card title="Years" className="span8" flush><Nodes nodes={years.data.items} /></Card>
      {holds && (
        <Card title="Facts" className="span4">
          <Facts
            facts={[
              ["Events", count(holds.events)],
              ["Summaries", count(holds.toc_nodes)],
              ["Citations", count(holds.grips)],
              ["Indexed", count(holds.indexed)],
              ["Vectors", count(holds.vectors)],
              ["To be summarised", holds.stale_nodes ? count(holds.stale_nodes) : null],
              ["Failed", holds.failed_nodes ? count(holds.failed_nodes) : null],
            ]}
          />
        </Card>
      )}
    </div>
  );
}

function Nodes({ nodes }: { nodes: readonly Node[] }) {
  return (
    <ul className="rows">
      {nodes.map((node) => (
        <li key={node.node_id}>
          <Link href={nodeLink(node.node_id)}>
            <span style={{ minWidth: 110 }}>{node.title}</span>
            <span className="quiet cut">{node.summary}</span>
            <span className="faint nowrap end-cell">{node.status === "complete" ? "" : node.status}</span>
          </Link>
        </li>
      ))}
      {!nodes.length && <li><div className="quiet">There is nothing below.</div></li>}
    </ul>
  );
}

const useNode = (node_id: string) => useOne(["memory", "node", node_id], (signal) => api.get("/api/v1/memory/toc/{node_id}", { path: { node_id }, signal }));

function NodeHead({ node_id }: { node_id: string }) {
  const node = useNode(node_id).data;
  const parent = useOne(
    ["memory", "node", node?.parent_id ?? ""],
    (signal) => api.get("/api/v1/memory/toc/{node_id}", { path: { node_id: node?.parent_id ?? "" }, signal }),
    { enabled: !!node?.parent_id },
  ).data;
  const above: [string, string] = node?.parent_id ? [parent?.node_id === node.parent_id ? parent.title : "…", nodeLink(node.parent_id)] : ["Memory", "/memory"];
  return <Head title={node?.title ?? node_id} label={node?.title ?? node_id} above={above}>{node && <Status status={node.status} />}</Head>;
}

function NodeBody({ node_id }: { node_id: string }) {
  const found = useNode(node_id);
  if (found.error && !found.data) return <Problem error={found.error} id={node_id} />;
  if (!found.data) return <Loading />;
  const node = found.data;
  return (
    <div className="grid">
      <Card title="Summary" className="span8">
        <LongText text={node.summary || "It has not been summarised yet."} />
        {node.bullets.length > 0 && <ul className="bullets">{node.bullets.slice(0, MOST_NODES).map((bullet, place) => <Line key={place} bullet={bullet} />)}</ul>}
        {node.error && <div style={{ color: "var(--bad)" }}>{node.error}</div>}
      </Card>
      <Card title="Facts" className="span4">
        <Facts
          facts={[
            ["Level", node.level],
            ["From", exact(node.start_time_ms / 1000)],
            ["To", exact(node.end_time_ms / 1000)],
            ["Agents", node.agents.join(", ") || null],
            ["Keywords", node.keywords.join(", ") || null],
            ["Version", node.version],
          ]}
        />
      </Card>
      <Card title={BELOW[node.level]} className="span12" flush>
        {node.level === "segment" ? <div className="inside"><Between from={node.start_time_ms} to={node.end_time_ms} /></div> : <Children node_id={node_id} />}
      </Card>
    </div>
  );
}

function Children({ node_id }: { node_id: string }) {
  const found = useOne(["memory", "children", node_id], (signal) => api.get("/api/v1/memory/toc/{node_id}/children", { path: { node_id }, query: { limit: MOST_NODES }, signal }));
  if (found.error && !found.data) return <Problem error={found.error} />;
  if (!found.data) return <Loading />;
  return <><Nodes nodes={found.data.items} />{found.data.has_more && <div className="inside faint">The first {MOST_NODES} are shown.</div>}</>;
}

/** A line of a summary, with the excerpts that it rests on. */
function Line({ bullet }: { bullet: Schema<"Bullet"> }) {
  const [open, setOpen] = useState<string | null>(null);
  return (
    <li>
      <span className="break">{bullet.text}</span>{" "}
      {bullet.grip_ids?.slice(0, 8).map((grip_id, place) => (
        <button key={grip_id} type="button" className="cite" aria-expanded={open === grip_id} aria-label={`Citation ${place + 1}`} onClick={() => setOpen(open === grip_id ? null : grip_id)}>{place + 1}</button>
      ))}
      {open !== null && <Cited grip_id={open} />}
    </li>
  );
}

function Cited({ grip_id }: { grip_id: string }) {
  const found = useOne(["memory", "grip", grip_id], (signal) => api.get("/api/v1/memory/grips/{grip_id}", { path: { grip_id }, signal }));
  if (found.error && !found.data) return <Problem error={found.error} />;
  if (!found.data) return <Loading />;
  const { grip, events_before, excerpt_events, events_after } = found.data;
  return <Events events={[...events_before, ...excerpt_events, ...events_after]} cited={grip.event_ids} session_id={grip.session_id} />;
}

function Between({ from, to, session_id }: { from: number; to: number; session_id?: string }) {
  const found = useOne(["memory", "events", from, to, session_id ?? ""], (signal) =>
    api.get("/api/v1/memory/events", { query: { from_ms: from, to_ms: to, session_id: session_id ?? null, limit: MOST_EVENTS }, signal }),
  );
  if (found.error && !found.data) return <Problem error={found.error} />;
  if (!found.data) return <Loading />;
  return <Events events={found.data.items} cited={[]} {...(session_id === undefined ? {} : { session_id })} />;
}

function Events({ events, cited, session_id }: { events: readonly Event[]; cited: readonly string[]; session_id?: string }) {
  const messages: ChatMessage[] = events.map((event) => ({
    id: event.event_id, role: event.role, text: event.text || event.event_type, calls: [], answers: null, name: event.agent ?? null, failed: false,
    time: event.timestamp_ms / 1000, ...(cited.includes(event.event_id) ? { note: "cited" } : {}),
  }));
  return (
    <div className="cited">
      {messages.length ? <Conversation messages={messages} /> : <span className="quiet">Its events are gone.</span>}
      {session_id !== undefined && <Link className="link" href={sessionLink(session_id)}>The session of these events</Link>}
    </div>
  );
}

function Found({ words }: { words: string }) {
  const found = useOne(["memory", "search", words], (signal) => api.get("/api/v1/memory/search", { query: { query: words, limit: MOST_HITS, mode: "hybrid" }, signal }));
  if (found.error && !found.data) return <Problem error={found.error} />;
  if (!found.data) return <Loading />;
  const { items, mode_used, documents } = found.data;
  if (!items.length) return <Empty title="Nothing of this is remembered" text={`${plural(documents ?? 0, "document")} were searched.`} />;
  return (
    <Card title={`${plural(items.length, "result")}`} side={<span className="faint">by {mode_used === "text" ? "words" : mode_used === "vector" ? "meaning" : "words and meaning"}</span>} flush>
      <ul className="rows hits">{items.map((hit) => <Result key={`${hit.kind} ${hit.id}`} hit={hit} />)}</ul>
    </Card>
  );
}

function Result({ hit }: { hit: Hit }) {
  const [open, setOpen] = useState<string | null>(null);
  const opened = hit.events?.find((event) => event.event_id === open);
  return (
    <li className="hit">
      <div className="hit-text">
        <span className="faint nowrap" style={{ width: 60 }}>{hit.kind === "node" ? "summary" : hit.kind === "grip" ? "excerpt" : "event"}</span>
        <span style={{ minWidth: 0, flex: 1 }}>
          {hit.kind === "node" ? <Link href={nodeLink(hit.id)} className="link break">{hit.text}</Link> : <LongText text={hit.text} />}{" "}
          {hit.events?.slice(0, 8).map((event, place) => (
            <button key={event.event_id} type="button" className="cite" aria-expanded={open === event.event_id} aria-label={`Citation ${place + 1}`} onClick={() => setOpen(open === event.event_id ? null : event.event_id)}>{place + 1}</button>
          ))}
        </span>
        <span className="quiet nowrap"><Ago time={hit.timestamp_ms / 1000} /></span>
      </div>
      {opened && <Between from={opened.timestamp_ms - AROUND} to={opened.timestamp_ms + AROUND} session_id={opened.session_id} />}
    </li>
  );
}
