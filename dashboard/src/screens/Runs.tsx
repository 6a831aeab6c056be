import { api, type Schema } from "../api/client";
import { useAction, useCursorList, useFigures } from "../api/queries";
import { useFilter } from "../app/filters";
import { useMay } from "../app/session";
import { Ago, Empty, Head, Id, Status, Tokens, Took } from "../components/basics";
import { Bulk } from "../components/Bulk";
import { Choices } from "../components/Choices";
import { type Column, Table } from "../components/Table";
import { Views } from "../components/Views";
import { plural } from "../lib/format";
import { briefly } from "../lib/messages";

type Run = Schema<"Run">;

export const LIVE_RUNS: readonly string[] = ["pending", "running"];
const STATUSES: Run["status"][] = ["pending", "running", "success", "error", "interrupted", "timeout", "rollback"];
const SNIPPET = `import asyncio
from langgraph_sdk import get_client

async def main():
    client = get_client(url="${location.origin}")
    result = await client.runs.wait(None, "agent", input={"messages": []})
    print(result)

asyncio.run(main())`;

export default function Runs() {
  const [status, setStatus] = useFilter("status");
  const mayWrite = useMay("write");
  const list = useCursorList(["run", "list", status], (page) =>
    api.get("/api/v1/runs", { query: { ...page, status: (status || null) as Run["status"] | null }, signal: page.signal }),
  );
  const cancel = useAction(
    (run_ids: string[]) => api.post("/api/v1/runs/cancel", { body: { run_ids } }),
    ({ items }) => `Cancelled: ${plural(items.length, "run")}`,
  );
  const retry = useAction(
    (run_ids: string[]) => api.post("/api/v1/runs/retry", { body: { run_ids } }),
    ({ items }) => {
      const again = items.filter((each) => each.run_id).length;
      return `Run again: ${plural(again, "run")}${again < items.length ? `; ${items.length - again} could not be` : ""}`;
    },
  );
  const figuresOf = useFigures("run", list.rows.map((run) => run.run_id));
  const columns: Column<Run>[] = [
    { name: "Status", width: "110px", cell: (run) => <Status status={run.status} /> },
    { name: "Run", width: "minmax(110px, 1fr)", wide: true, cell: (run) => <Id id={run.run_id} /> },
    { name: "Agent", width: "minmax(0, 1fr)", cell: (run) => run.agent },
    { name: "Thread", width: "minmax(0, 1fr)", wide: true, cell: (run) => <span className="quiet"><Id id={run.thread_id} /></span> },
    {
      name: "Input, or the error", width: "minmax(0, 2fr)", wide: true,
      cell: (run) => (run.error ? <span style={{ color: "var(--bad)" }}>{run.error.message}</span> : <span className="quiet">{briefly(run.kwargs.input)}</span>),
    },
    { name: "Tokens", width: "64px", end: true, wide: true, cell: (run) => <Tokens of={figuresOf.get(run.run_id)} /> },
    { name: "Took", width: "72px", end: true, wide: true, cell: (run) => <Took from={run.created_at} to={run.ended_at ?? (LIVE_RUNS.includes(run.status) ? null : run.updated_at)} /> },
    { name: "Created", width: "72px", end: true, cell: (run) => <span className="quiet"><Ago time={run.created_at} /></span> },
  ];
  return (
    <>
      <Head title="Runs"><Views screen="runs" /></Head>
      <div className="bar"><Choices single label="Status" choices={STATUSES} chosen={status ? [status] : []} onChange={([one]) => setStatus(one ?? "")} /></div>
      <Table
        label="Runs"
        list={list}
        columns={columns}
        idOf={(run) => run.run_id}
        linkOf={(run) => `/runs/${encodeURIComponent(run.run_id)}`}
        empty={
          status ? (
            <Empty title="No run is like this" text="Take the filter away to see more." />
          ) : (
            <Empty title="No runs yet" text="A run executes an assistant on a thread. With an agent named `agent` at work, this makes the first:" snippet={SNIPPET} />
          )
        }
        {...(mayWrite
          ? {
              bulk: (selected: Run[], clear: () => void) => (
                <Bulk
                  noun="run" cancelText="What they have done so far stays."
                  live={selected.filter((run) => LIVE_RUNS.includes(run.status)).map((run) => run.run_id)}
                  ended={selected.filter((run) => !LIVE_RUNS.includes(run.status)).map((run) => run.run_id)}
                  cancel={(ids) => cancel.mutate(ids, { onSuccess: clear })}
                  retry={(ids) => retry.mutate(ids, { onSuccess: clear })}
                />
              ),
            }
          : {})}
      />
    </>
  );
}
