import { Switch, TextInput } from "@mantine/core";
import { Link, useLocation } from "wouter";
import { api, type Schema } from "../api/client";
import { useAction, useOne } from "../api/queries";
import { useTypedFilter } from "../app/filters";
import { linkTo } from "../app/screens";
import { useMay } from "../app/session";
import { Empty, Head, Loading } from "../components/basics";
import { JsonDialog } from "../components/JsonDialog";
import { Problem } from "../components/Problem";
import { type Column, Table } from "../components/Table";
import { Views } from "../components/Views";

type Workflow = Schema<"WorkflowInfo">;

function RunWorkflow({ name }: { name: string }) {
  const [, go] = useLocation();
  const run = useAction((context: Record<string, unknown>) => api.post("/api/v1/workflows/{name}/runs", { path: { name }, body: { context } as Schema<"WorkflowsRun"> }), () => `Started: ${name}`);
  return (
    <JsonDialog
      size="compact-xs" variant="default" label={`Run ${name}`}
      title={`Run ${name}`} about="Its prompts and commands may use what stands in the context." field="Context" example={{}} action="Run it" isBusy={run.isPending}
      start={(context, done) =>
        run.mutate((context ?? {}) as Record<string, unknown>, {
          onSuccess: ({ workflow_run_id }) => (done(), workflow_run_id && go(linkTo("workflow_run", workflow_run_id) ?? "/workflow-runs")),
        })
      }
    >
      Run
    </JsonDialog>
  );
}

export default function Workflows() {
  const mayWrite = useMay("write");
  const [typed, setTyped, name] = useTypedFilter("name");
  const found = useOne(["workflow", "list"], (signal) => api.get("/api/v1/workflows", { signal }));
  const switchTo = useAction(
    ({ workflow, enabled }: { workflow: string; enabled: boolean }) => api.put("/api/v1/workflow-overrides/{name}", { path: { name: workflow }, body: { enabled } }),
    ({ name: changed, enabled }) => `${changed} is ${enabled ? "enabled" : "disabled"}`,
  );
  if (found.error && !found.data) return <Problem error={found.error} />;
  if (!found.data) return <Loading />;
  const rows = found.data.items.filter((workflow) => workflow.name.includes(name));
  const columns: Column<Workflow>[] = [
    {
      name: "Enabled", width: "70px",
      cell: (workflow) => (
        <Switch
          size="xs" aria-label={`Enable ${workflow.name}`} checked={workflow.enabled ?? true} disabled={!mayWrite || switchTo.isPending}
          onChange={(event) => switchTo.mutate({ workflow: workflow.name, enabled: event.currentTarget.checked })}
        />
      ),
    },
    { name: "Workflow", width: "minmax(90px, 1fr)", cell: (workflow) => <Link href={`/workflow-runs?workflow=${encodeURIComponent(workflow.name)}`}>{workflow.name}</Link> },
    { name: "Description", width: "minmax(0, 2fr)", wide: true, cell: (workflow) => <span className="quiet">{workflow.description}</span> },
    { name: "Phases", width: "minmax(0, 1.500fr)", wide: true, cell: (workflow) => <span className="quiet">{workflow.phases.slice(0, 12).map((phase) => phase.label ?? phase.name).join(", ")}</span> },
    { name: "Trigger", width: "minmax(0, 110px)", wide: true, cell: (workflow) => <span className="quiet">{workflow.trigger}</span> },
    { name: "Action", width: "70px", end: true, cell: (workflow) => mayWrite && <RunWorkflow name={workflow.name} /> },
  ];
  const list = { rows, total: rows.length, hasMore: false, loadMore: () => undefined, isLoading: false, isRefreshing: false, error: found.error };
  return (
    <>
      <Head title="Workflows" above={["Workflow runs", "/workflow-runs"]}><Views screen="workflows" /></Head>
      <div className="bar"><TextInput size="xs" aria-label="Name" placeholder="Name" value={typed} onChange={(event) => setTyped(event.currentTarget.value)} /></div>
      <Table
        label="Workflows" list={list} columns={columns} idOf={(workflow) => workflow.name}
        empty={name ? <Empty title="No workflow has this name" /> : <Empty title="No workflows yet" text="A server reads the files in workflows/ when it starts. This checks them:" snippet="perdure workflow validate" />}
      />
    </>
  );
}
