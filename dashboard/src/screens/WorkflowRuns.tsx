import { Select } from "@mantine/core";
import { Link } from "wouter";
import { api, type Schema } from "../api/client";
import { useAction, useCursorList, useOne } from "../api/queries";
import { useFilter, useFilterList } from "../app/filters";
import { useMay } from "../app/session";
import { Ago, Empty, Head, Id, Status, Took } from "../components/basics";
import { Bulk } from "../components/Bulk";
import { Choices } from "../components/Choices";
import { type Column, Table } from "../components/Table";
import { Views } from "../components/Views";
import { compact, inWords, plural, seconds, WAITING } from "../lib/format";

type Run = Schema<"WorkflowRunSummary">;

const STATUSES: Run["status"][] = ["queued", "running", "paused", "succeeded", "failed", "cancelled"];
const SNIPPET = `perdure workflow run release --url ${location.origin}`;

const isOver = (run: Run): boolean => run.status === "succeeded" || run.status === "failed" || run.status === "cancelled";

/** Does something with one run after another; what one refuses does not keep the others. */
function useEach(done: string, act: (workflow_run_id: string) => Promise<unknown>) {
  return useAction(
    async (ids: string[]) => {
      let refused = 0;
      for (const id of ids) await act(id).catch(() => (refused += 1));
      return refused;
    },
    (refused, ids) => `${done}: ${plural(ids.length - refused, "workflow run")}${refused ? `; ${refused} had moved on meanwhile` : ""}`,
  );
}

export default function WorkflowRuns() {
  const [statuses, setStatuses] = useFilterList("status");
  const [name, setName] = useFilter("workflow");
  const list = useCursorList(["workflow_run", "list", statuses, name], ({ signal, ...page }) =>
    api.get("/api/v1/workflow-runs", { query: { ...page, status: statuses as Run["status"][], workflow_name: name || null }, signal }),
  );
  const names = useOne(["workflow", "names"], (signal) => api.get("/api/v1/workflow-names", { signal }));
  const mayWrite = useMay("write");
  const cancel = useEach("Cancelled", (workflow_run_id) => api.post("/api/v1/workflow-runs/{workflow_run_id}/cancel", { path: { workflow_run_id }, body: {} }));
  const retry = useEach("Run again", (workflow_run_id) => api.post("/api/v1/workflow-runs/{workflow_run_id}/retry", { path: { workflow_run_id } }));
  const columns: Column<Run>[] = [
    { name: "Status", width: "105px", cell: (run) => <Status status={run.held ? "paused" : run.status} /> },
    { name: "Workflow", width: "minmax(90px, 1fr)", cell: (run) => run.workflow_name },
    { name: "Run", width: "minmax(0, 1fr)", wide: true, cell: (run) => <span className="quiet"><Id id={run.workflow_run_id} /></span> },
    {
      name: "Phase", width: "minmax(0, 1.500fr)", wide: true,
      cell: (run) => <span className="quiet">{run.error ?? [inWords(run.current_phase), run.waiting_approvals && run.current_phase !== WAITING ? "waits for an approval" : ""].filter(Boolean).join(" · ")}</span>,
    },
    { name: "Tokens", width: "70px", end: true, wide: true, cell: (run) => <span className="num quiet">{run.total_tokens ? compact(run.total_tokens) : ""}</span> },
    { name: "Took", width: "72px", end: true, wide: true, cell: (run) => <Took from={seconds(run.started_at)} to={seconds(run.finished_at)} /> },
    { name: "Started", width: "72px", end: true, cell: (run) => <span className="quiet"><Ago time={run.started_at} /></span> },
  ];
  return (
    <>
      <Head title="Workflow runs"><Views screen="workflow-runs" /><Link href="/workflows" className="link">Workflows and their switches</Link></Head>
      <div className="bar">
        <Choices label="Status" choices={STATUSES} chosen={statuses} onChange={setStatuses} />
        <Select
          aria-label="Workflow" placeholder="Any workflow" clearable searchable size="xs"
          data={names.data?.items ?? []} value={name || null} onChange={(value) => setName(value ?? "")}
        />
      </div>
      <Table
        label="Workflow runs" list={list} columns={columns}
        idOf={(run) => run.workflow_run_id}
        linkOf={(run) => `/workflow-runs/${encodeURIComponent(run.workflow_run_id)}`}
        {...(mayWrite
          ? {
              bulk: (selected: Run[], clear: () => void) => (
                <Bulk
                  noun="workflow run" cancelText="What their phases have done so far stays."
                  live={selected.filter((run) => !isOver(run)).map((run) => run.workflow_run_id)}
                  ended={selected.filter((run) => run.status === "failed" || run.status === "cancelled").map((run) => run.workflow_run_id)}
                  cancel={(ids) => cancel.mutate(ids, { onSuccess: clear })}
                  retry={(ids) => retry.mutate(ids, { onSuccess: clear })}
                />
              ),
            }
          : {})}
        empty={
          statuses.length || name ? <Empty title="No workflow run is like this" text="Take a filter away to see more." />
            : <Empty title="No workflow runs yet" text="A workflow runs its phases by their dependencies. This starts one:" snippet={SNIPPET} />
        }
      />
    </>
  );
}
