// What runs now, and what ended lately: rollouts, runs and workflow runs in one list, the latest first.
import { Link } from "wouter";
import { api, type Schema } from "../../api/client";
import { useOne } from "../../api/queries";
import { linkTo } from "../../app/screens";
import { Ago, Card, Status, Took } from "../../components/basics";
import { oneLine, seconds } from "../../lib/format";
import { briefly } from "../../lib/messages";

const LATELY = 8;
type Outcome = "running" | "failed" | "succeeded";
type RolloutStatus = Schema<"ShownRollout">["status"];
type RunStatus = Schema<"Run">["status"];
type WorkflowStatus = Schema<"WorkflowRunSummary">["status"];

interface Work {
  kind: "rollout" | "run" | "workflow_run";
  id: string;
  status: string;
  text: string;
  began: number | null;
  ended: number | null;
}

interface Kinds {
  title: string;
  nothing: string;
  rollout: RolloutStatus[];
  run: RunStatus;
  workflow: WorkflowStatus[];
  sort_by: "start_time" | "end_time";
}

const OUTCOMES: Record<Outcome, Kinds> = {
  running: { title: "Running now", nothing: "Nothing is executed now.", rollout: ["running", "preparing"], run: "running", workflow: ["running"], sort_by: "start_time" },
  failed: { title: "Failed lately", nothing: "Nothing has failed.", rollout: ["failed"], run: "error", workflow: ["failed"], sort_by: "end_time" },
  succeeded: { title: "Succeeded lately", nothing: "Nothing has succeeded yet.", rollout: ["succeeded"], run: "success", workflow: ["succeeded"], sort_by: "end_time" },
};

export function Lately({ outcome }: { outcome: Outcome }) {
  const { title, nothing, rollout } = OUTCOMES[outcome];
  const work = useWork(outcome);
  return (
    <Card title={title} className="span6" flush side={<Link href={`/rollouts?status=${rollout.join(",")}`} className="link">All</Link>}>
      <ul className="rows">
        {work?.map((each) => (
          <li key={`${each.kind} ${each.id}`}>
            <Link href={linkTo(each.kind, each.id) ?? "/"}>
              <span className="tag-cell wide"><Status status={each.status} /></span>
              <span className="mono cut id-cell" title={each.id}>{each.id}</span>
              <span className="quiet cut">{each.text}</span>
              <span className="quiet nowrap end-cell">
                {each.ended === null ? <Took from={each.began} to={null} /> : <><Took from={each.began} to={each.ended} /> · <Ago time={each.ended} /></>}
              </span>
            </Link>
          </li>
        ))}
        {work?.length === 0 && <li><div className="quiet">{nothing}</div></li>}
      </ul>
    </Card>
  );
}

function useWork(outcome: Outcome): Work[] | undefined {
  const { rollout, run, workflow, sort_by } = OUTCOMES[outcome];
  const isOver = outcome !== "running";
  const rollouts = useOne(["rollout", "lately", outcome], (signal) =>
    api.get("/api/v1/rollouts", { query: { status: rollout, sort_by, sort_order: "desc", limit: LATELY }, signal }),
  ).data?.items;
  const runs = useOne(["run", "lately", outcome], (signal) => api.get("/api/v1/runs", { query: { status: run, limit: LATELY }, signal })).data?.items;
  const workflows = useOne(["workflow_run", "lately", outcome], (signal) => api.get("/api/v1/workflow-runs", { query: { status: workflow, limit: LATELY }, signal })).data?.items;
  if (!rollouts || !runs || !workflows) return undefined;
  const all: Work[] = [
    ...rollouts.map((each): Work => ({
      kind: "rollout", id: each.rollout_id, status: isOver ? (each.attempt?.status ?? each.status) : each.status, text: oneLine(each.input, 80),
      began: each.attempt?.start_time ?? null, ended: isOver ? (each.end_time ?? null) : null,
    })),
    ...runs.map((each): Work => ({
      kind: "run", id: each.run_id, status: each.status, text: `${each.agent}: ${each.error ? oneLine(each.error.message, 80) : briefly(each.kwargs.input, 80)}`,
      began: each.created_at, ended: isOver ? (each.ended_at ?? each.updated_at) : null,
    })),
    ...workflows.map((each): Work => ({
      kind: "workflow_run", id: each.workflow_run_id, status: each.status, text: `${each.workflow_name}: ${oneLine(each.error ?? each.current_phase, 80)}`,
      began: seconds(each.started_at), ended: isOver ? seconds(each.finished_at) : null,
    })),
  ];
  return all.sort((one, other) => (other.ended ?? other.began ?? 0) - (one.ended ?? one.began ?? 0)).slice(0, LATELY);
}
