import { Button } from "@mantine/core";
import { Link } from "wouter";
import { api, type Schema } from "../api/client";
import { useCursorList } from "../api/queries";
import { useFilter } from "../app/filters";
import { Ago, Empty, Head, Id, Status } from "../components/basics";
import { Choices } from "../components/Choices";
import { type Column, Table } from "../components/Table";
import { Views } from "../components/Views";
import { oneLine } from "../lib/format";

type Thread = Schema<"Thread">;

const STATUSES: Thread["status"][] = ["busy", "interrupted", "error", "idle"];
/** What the server notes itself, and what is shown in columns of its own. */
const OWN = new Set(["assistant_id", "graph_id"]);

export default function Threads() {
  const [status, setStatus] = useFilter("status");
  const list = useCursorList(["thread", "list", status], ({ signal, ...page }) =>
    api.get("/api/v1/threads", { query: { ...page, status: (status || null) as Thread["status"] | null, values: false, sort_by: "updated_at" }, signal }),
  );
  const columns: Column<Thread>[] = [
    { name: "Status", width: "110px", cell: (thread) => <Status status={thread.status} /> },
    { name: "Thread", width: "minmax(120px, 1fr)", cell: (thread) => <Id id={thread.thread_id} /> },
    { name: "Agent", width: "minmax(0, 140px)", cell: (thread) => String(thread.metadata.graph_id ?? "") },
    {
      name: "Metadata, or the error", width: "minmax(0, 1.500fr)", wide: true,
      cell: ({ metadata, error }) =>
        error ? <span style={{ color: "var(--bad)" }}>{oneLine(error.message)}</span>
          : <span className="quiet">{oneLine(Object.fromEntries(Object.entries(metadata).filter(([key]) => !OWN.has(key))))}</span>,
    },
    { name: "Created", width: "80px", end: true, wide: true, cell: (thread) => <span className="quiet"><Ago time={thread.created_at} /></span> },
    { name: "Changed", width: "80px", end: true, cell: (thread) => <span className="quiet"><Ago time={thread.updated_at} /></span> },
  ];
  return (
    <>
      <Head title="Threads"><Views screen="threads" /><Button component={Link} href="/chat">New chat</Button></Head>
      <div className="bar"><Choices single label="Status" choices={STATUSES} chosen={status ? [status] : []} onChange={([one]) => setStatus(one ?? "")} /></div>
      <Table
        label="Threads" list={list} columns={columns}
        idOf={(thread) => thread.thread_id}
        linkOf={(thread) => `/threads/${encodeURIComponent(thread.thread_id)}`}
        empty={
          status ? <Empty title="No thread is like this" text="Take the filter away to see more." />
            : <Empty title="No threads yet" text="A thread keeps the state of a conversation from run to run."><Button component={Link} href="/chat">Talk to an assistant</Button></Empty>
        }
      />
    </>
  );
}
