import { Button } from "@mantine/core";
import { Link } from "wouter";
import { api, type Schema } from "../api/client";
import { useAction, useCursorList, useOne } from "../api/queries";
import { linkTo, type Params } from "../app/screens";
import { useMay } from "../app/session";
import { Ago, Card, Facts, Head, Id, isEmpty, Loading, Status, Took, when } from "../components/basics";
import { confirm } from "../components/Confirm";
import { Dag } from "../components/Dag";
import { Definition } from "../components/Definition";
import { Icon } from "../components/Icon";
import { Json } from "../components/Json";
import { LongText } from "../components/LongText";
import { Problem } from "../components/Problem";
import { Why } from "../components/Why";
import { compact, inWords, oneLine, seconds } from "../lib/format";

type Node = Schema<"NodeInfo">;

const MAX_NODES = 200;
const MAX_HISTORY = 100;

export default function WorkflowRunScreen({ params }: { params: Params }) {
  const workflow_run_id = params.workflow_run_id ?? "";
  const path = { workflow_run_id };
  const mayWrite = useMay("write");
  const found = useOne(["workflow_run", "one", workflow_run_id], (signal) => api.get("/api/v1/workflow-runs/{workflow_run_id}", { path, signal }));
  const executions = useCursorList(["workflow_run", "one", workflow_run_id, "executions"], ({ signal, ...page }) =>
    api.get("/api/v1/workflow-runs/{workflow_run_id}/executions", { path, query: page, signal }),
  );
  const defined = useOne(["workflow_definition", "one", workflow_run_id], (signal) => api.get("/api/v1/workflow-runs/{workflow_run_id}/definition", { path, signal })).data;
  const cancel = useAction(() => api.post("/api/v1/workflow-runs/{workflow_run_id}/cancel", { path, body: {} }), () => "Cancelled");
  const retry = useAction(() => api.post("/api/v1/workflow-runs/{workflow_run_id}/retry", { path }), () => "It runs again");
  const pause = useAction(() => api.post("/api/v1/workflow-runs/{workflow_run_id}/pause", { path }), () => "Paused");
  const resume = useAction(() => api.post("/api/v1/workflow-runs/{workflow_run_id}/resume", { path }), () => "It goes on");
  if (found.error && !found.data) return <Problem error={found.error} id={workflow_run_id} />;
  if (!found.data) return <Loading />;
  const run = found.data;
  const isOver = run.status === "succeeded" || run.status === "failed" || run.status === "cancelled";
  // What of a loop or a map is drawn is its node; its passes are rows of the list below.
  const drawn = new Map(run.nodes.filter((node) => !node.item).map((node) => [node.node, node]));
  // Each pass of a loop and each item of a map is a row of its own, in the order in which they began.
  const unrolled = run.nodes.toSorted((one, other) => (seconds(one.started_at) ?? Infinity) - (seconds(other.started_at) ?? Infinity) || 0).slice(0, MAX_NODES);
  const asks = run.nodes.find((node) => node.status === "waiting" && node.approval_id)?.approval_id;
  const sessions = new Map(executions.rows.flatMap((each) => (each.session_id ? [[each.execution_id, each.session_id] as const] : [])));
  return (
    <>
      <Head title={run.workflow_name} label={run.workflow_name} above={["Workflow runs", "/workflow-runs"]}>
        <Status status={run.held ? "paused" : run.status} />
        {mayWrite && !isOver && !run.held && run.status !== "queued" && <Button variant="default" loading={pause.isPending} onClick={() => pause.mutate(undefined)}>Pause</Button>}
        {mayWrite && !isOver && run.held && <Button variant="default" loading={resume.isPending} onClick={() => resume.mutate(undefined)}>Resume</Button>}
        {mayWrite && (run.status === "failed" || run.status === "cancelled") && (
          <Button variant="default" leftSection={<Icon name="retry" size={14} />} loading={retry.isPending} onClick={() => retry.mutate(undefined)}>Retry</Button>
        )}
        {mayWrite && !isOver && (
          <Button
            variant="default" leftSection={<Icon name="cancel" size={14} />} loading={cancel.isPending}
            onClick={() => confirm({ title: "Cancel this workflow run?", text: "What its phases have done so far stays.", action: "Cancel it", danger: true, then: () => cancel.mutate(undefined) })}
          >
            Cancel
          </Button>
        )}
      </Head>
      <div className="body">
        <Why id={workflow_run_id}>{asks && <Button component={Link} href={linkTo("approval", asks) ?? "/"}>Answer it</Button>}</Why>
        <div className="grid">
          <Card title="Phases by their dependencies" className="span12">
            <Dag
              label="The graph of phases"
              nodes={[...drawn.values()].slice(0, MAX_NODES).map((node) => ({ name: node.node, label: node.label ?? node.node, depends_on: node.depends_on ?? [], status: run.node_statuses[node.node] ?? node.status }))}
            />
          </Card>
          <Card title={`Phases (${run.nodes.length})`} className="span8" flush>
            <ul className="rows">{unrolled.map((node) => <Phase key={`${node.node} ${node.cycle} ${node.item} ${node.iteration}`} node={node} session={sessions.get(node.execution_id ?? "")} />)}</ul>
            {run.nodes.length > MAX_NODES && <div className="inside quiet">The first {MAX_NODES} are shown.</div>}
          </Card>
          <Card title="Facts" className="span4">
            <Facts
              facts={[
                ["Run", <Id id={run.workflow_run_id} />],
                ["Phase", inWords(run.current_phase)],
                ["Trigger", `${run.trigger_type} · ${run.trigger_id}`],
                ["Triggered by", run.triggered_by],
                ["Started", when(run.started_at)],
                ["Took", <Took from={seconds(run.started_at)} to={seconds(run.finished_at)} />],
                ["Tokens", run.total_tokens ? compact(run.total_tokens) : null],
                ["Cost", run.total_cost_usd ? `$${run.total_cost_usd.toFixed(4)}` : null],
                ["Repository", run.repo],
                ["Part of", run.parent_run_id && <Id id={run.parent_run_id} to={linkTo("workflow_run", run.parent_run_id) ?? "/"} />],
                ["Workers lost", run.restart_count || null],
              ]}
            />
          </Card>
          {run.error && <Card title="Error" className="span12"><LongText text={run.error} /></Card>}
          {run.phase_history.length > 0 && (
            <Card title="History and outputs" className="span12" flush>
              <ul className="rows">
                {run.phase_history.slice(-MAX_HISTORY).map((entry, place) => (
                  <li key={`${place} ${entry.timestamp}`}>
                    <div>
                      <span className="tag-cell wide"><Status status={entry.success ? "succeeded" : "failed"} /></span>
                      <span className="nowrap">{inWords(entry.phase)}</span>
                      <span className="quiet cut" title={entry.summary ?? ""}>{oneLine(entry.summary)}</span>
                      <span className="quiet end-cell"><Ago time={entry.timestamp} /></span>
                    </div>
                  </li>
                ))}
              </ul>
            </Card>
          )}
          <Card title="Executions" className="span12" flush>
            {executions.rows.length ? (
              <ul className="rows">
                {executions.rows.map((each) => (
                  <li key={each.execution_id}>
                    <div>
                      <span className="tag-cell wide"><Status status={each.success === true ? "succeeded" : each.success === false ? "failed" : "running"} /></span>
                      <span className="nowrap">{each.skill}</span>
                      <span className="quiet cut">{oneLine(each.error ?? each.stop_reason)}</span>
                      <span className="links end-cell">
                        {each.session_id && <Link className="link nowrap" href={linkTo("session", each.session_id) ?? "/"}>session</Link>}
                        {each.rollout_id && <Link className="link nowrap" href={linkTo("rollout", each.rollout_id) ?? "/"}>rollout</Link>}
                      </span>
                      <span className="quiet num nowrap">{tokensOf(each)}</span>
                      <Took from={seconds(each.started_at)} to={seconds(each.finished_at)} />
                    </div>
                  </li>
                ))}
              </ul>
            ) : <div className="inside quiet">No phase has been executed yet.</div>}
            {executions.hasMore && <div className="inside"><Button variant="default" onClick={executions.loadMore}>Show more</Button></div>}
          </Card>
          {!isEmpty(run.context) && <Card title="Context" className="span6"><Json value={run.context} open={1} /></Card>}
          {!isEmpty(run.scratch) && <Card title="Scratch" className="span6"><Json value={run.scratch} open={1} /></Card>}
          {defined && (
            <Card title="Definition" className="span12" side={<span className="quiet">{defined.current === false ? "as this run began; the workflow has changed since" : "as this run began"}</span>}>
              <Definition yaml={defined.yaml} statuses={run.node_statuses as Record<string, string>} />
            </Card>
          )}
        </div>
      </div>
    </>
  );
}

function tokensOf({ input_tokens, output_tokens }: Schema<"Execution">): string {
  const sum = (input_tokens ?? 0) + (output_tokens ?? 0);
  return sum ? `${compact(sum)} tokens` : "";
}

function Phase({ node, session }: { node: Node; session: string | undefined }) {
  const pass = [node.cycle ? `cycle ${node.cycle}` : "", node.iteration ? `iteration ${node.iteration}` : "", node.item ? `item ${node.item}` : ""].filter(Boolean).join(", ");
  const tried = (node.attempts ?? 0) > 1;
  return (
    <li>
      <div>
        <span className="tag-cell wide"><Status status={node.status} {...(node.status === "pending" ? { tone: "not yet" } : {})} /></span>
        <span>{node.label ?? node.node}</span>
        {pass && <span className="quiet">{pass}</span>}
        {node.error && <span className="cut" style={{ color: "var(--bad)" }} title={node.error}>{oneLine(node.error)}</span>}
        <span className="links end-cell quiet">
          {session && <Link className="link nowrap" href={linkTo("session", session) ?? "/"}>session</Link>}
          {node.approval_id && <Link className="link nowrap" href={linkTo("approval", node.approval_id) ?? "/"}>approval</Link>}
          {node.child_run_id && <Link className="link nowrap" href={linkTo("workflow_run", node.child_run_id) ?? "/"}>its own run</Link>}
          {node.rollout_id && <Link className="link nowrap" href={linkTo("rollout", node.rollout_id) ?? "/"}>rollout</Link>}
          {tried && <span className="nowrap" title={`since ${when(node.started_at)}`}>attempt {node.attempts}</span>}
          <Took from={seconds(tried ? node.attempt_started_at : node.started_at)} to={seconds(node.ended_at)} />
        </span>
      </div>
    </li>
  );
}
