import { TextInput } from "@mantine/core";
import { Link } from "wouter";
import { api, type Schema } from "../api/client";
import { useOffsetList, useOne } from "../api/queries";
import { useTypedFilter } from "../app/filters";
import { Ago, Card, Empty, Head, Id, Loading } from "../components/basics";
import { Icon } from "../components/Icon";
import { Problem } from "../components/Problem";
import { type Column, Table } from "../components/Table";
import { Views } from "../components/Views";
import { bytes, oneLine, plural } from "../lib/format";
import { sessionLink } from "./Session";

type Session = Schema<"Session">;

const MOST_FOUND = 100;
const SNIPPET = `from claude_agent_sdk import ClaudeAgentOptions
from perdure.integrations.claude_agent import PerdureSessionStore

options = ClaudeAgentOptions(session_store=PerdureSessionStore("${location.origin}"))`;

export default function Sessions() {
  const [typed, setTyped, words] = useTypedFilter("q");
  return (
    <>
      <Head title="Sessions"><Views screen="sessions" /></Head>
      <div className="bar">
        <TextInput
          aria-label="Search what was said" placeholder="Search what was said" leftSection={<Icon name="search" size={13} />} w={280}
          value={typed} onChange={(event) => setTyped(event.currentTarget.value)}
        />
      </div>
      {words.trim() ? <Found words={words.trim()} /> : <All />}
    </>
  );
}

function All() {
  const list = useOffsetList(["session", "list"], ({ signal, ...page }) => api.get("/api/v1/sessions", { query: page, signal }));
  const columns: Column<Session>[] = [
    { name: "Kind", width: "60px", cell: (session) => <span className="quiet">{session.kind}</span> },
    { name: "Begins with", width: "minmax(0, 2fr)", cell: (session) => oneLine(session.first_message) || <Id id={session.session_id} /> },
    { name: "Last", width: "minmax(0, 1.500fr)", wide: true, cell: (session) => <span className="quiet">{oneLine(session.last_message)}</span> },
    { name: "Project", width: "minmax(0, 130px)", wide: true, cell: (session) => <span className="quiet" title={session.project}>{session.project}</span> },
    { name: "Model", width: "minmax(0, 120px)", wide: true, cell: (session) => <span className="quiet">{session.model ?? ""}</span> },
    { name: "Size", width: "70px", end: true, wide: true, cell: (session) => <span className="num quiet">{bytes(session.size)}</span> },
    { name: "Changed", width: "80px", end: true, cell: (session) => <span className="quiet"><Ago time={session.updated_at} /></span> },
  ];
  return (
    <Table
      label="Sessions" list={list} columns={columns}
      idOf={(session) => `${session.project} ${session.session_id}`}
      linkOf={(session) => sessionLink(session.session_id, { project: session.project })}
      empty={<Empty title="No sessions yet" text="A session is what an agent said and did. Runs write one, and so do agents of other programs:" snippet={SNIPPET} />}
    />
  );
}

function Found({ words }: { words: string }) {
  const found = useOne(["session", "search", words], (signal) => api.get("/api/v1/sessions/search", { query: { query: words, scope: "all", limit: MOST_FOUND }, signal }));
  if (found.error && !found.data) return <Problem error={found.error} />;
  if (!found.data) return <Loading />;
  const { items, complete } = found.data;
  if (!items.length) return <Empty title="Nobody has said this" text="Try fewer or other words." />;
  return (
    <div className="body">
      <Card title={`${plural(items.length, "message")}${items.length === MOST_FOUND || !complete ? ", and there may be more" : ""}`} flush>
        <ul className="rows">
          {items.map((match) => (
            <li key={`${match.session_id} ${match.position}`}>
              <Link href={sessionLink(match.session_id, { project: match.project, at: String(match.position) })}>
                <span className="quiet nowrap" style={{ width: 70 }}>{match.role}</span>
                <span className="cut">{oneLine(match.text, 240)}</span>
                <span className="quiet nowrap end-cell"><Ago time={match.time} /></span>
              </Link>
            </li>
          ))}
        </ul>
      </Card>
    </div>
  );
}
