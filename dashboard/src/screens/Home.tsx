import { Button } from "@mantine/core";
import { Link } from "wouter";
import { api, type Schema } from "../api/client";
import { useOne } from "../api/queries";
import { linkTo } from "../app/screens";
import { Ago, Card, Empty, Figure, Head } from "../components/basics";
import { Queues, useLiveWorkers, useQueues } from "../components/Queues";
import { compact, count, duration, oneLine, plural } from "../lib/format";
import { Hours, QueueCharts, Usage } from "./home/Charts";
import { Lately } from "./home/Lately";

const SNIPPET = `import asyncio
from perdure import LightningStoreClient

async def main():
    store = LightningStoreClient("${location.origin}")
    await store.enqueue_rollout({"task": "say hello"})

asyncio.run(main())`;
const SHOWN = 8;
/** What a schedule of the server itself starts. */
const INTERNAL_TARGET = "job";

export default function Home() {
  const holds = useOne(["overview", "statistics"], (signal) => api.get("/api/v1/statistics", { signal }));
  const runs = useOne(["run", "any"], (signal) => api.get("/api/v1/runs", { query: { limit: 0 }, signal })).data;
  const workflows = useOne(["workflow_run", "any"], (signal) => api.get("/api/v1/workflow-runs", { query: { limit: 1 }, signal })).data;
  const isEmpty = holds.data?.total_rollouts === 0 && runs?.total === 0 && workflows?.items.length === 0;
  return (
    <>
      <Head title="Home" />
      <div className="body">
        {isEmpty && <First />}
        <Figures spans={holds.data?.total_spans ?? 0} rollouts={holds.data?.total_rollouts ?? 0} />
        <div className="grid">
          <Lately outcome="running" />
          <Lately outcome="failed" />
          <Queues />
          <div className="stack span6"><Asked /><Next /></div>
          <Lately outcome="succeeded" />
          <QueueCharts />
          <Usage />
          <Hours />
        </div>
      </div>
    </>
  );
}

/** What makes the first thing appear. The page notices when it does. */
function First() {
  const assistants = useOne(["assistant", "any"], (signal) => api.get("/api/v1/assistants", { query: { limit: 1 }, signal })).data?.items;
  return (
    <Card>
      {assistants?.length ? (
        <Empty title="Nothing has run yet" text="An agent is at work here. Talk to it, or give it work from a program; this page notices." snippet={`perdure run create ${assistants[0]?.name} '{}' --watch --url ${location.origin}`}>
          <Button component={Link} href="/chat">Talk to {assistants[0]?.name}</Button>
        </Empty>
      ) : (
        <Empty title="Nothing is here yet" text="Paste this into a file and run it. The page notices." snippet={SNIPPET} />
      )}
    </Card>
  );
}

function Figures({ spans, rollouts }: { spans: number; rollouts: number }) {
  const queues = useQueues() ?? [];
  const running = useCount(["running", "preparing"], "running");
  const failed = useCount(["failed"], "error");
  const ready = queues.reduce((sum, queue) => sum + queue.ready, 0);
  const later = queues.reduce((sum, queue) => sum + queue.delayed + queue.waiting, 0);
  const oldest = Math.max(0, ...queues.map((queue) => queue.oldest_age_seconds ?? 0));
  const alive = useLiveWorkers().filter((worker) => worker.status !== "unknown");
  const busy = alive.filter((worker) => worker.status === "busy").length;
  return (
    <div className="grid">
      <Figure label="Running now" value={count(running)} note={`${compact(rollouts)} ${rollouts === 1 ? "rollout" : "rollouts"}, ${compact(spans)} spans so far`} to="/rollouts?status=running,preparing" />
      <Figure label="Ready to be claimed" value={count(ready)} note={ready ? `the oldest for ${duration(oldest)}` : later ? `${plural(later, "other")} later` : "nothing waits for a worker"} to="/rollouts?status=queuing,requeuing" />
      <Figure label="Failed" value={count(failed)} note={failed ? "rollouts and runs" : "none"} to="/rollouts?status=failed" />
      <Figure label="Workers" value={count(alive.length)} note={alive.length ? `${busy} busy` : "none is alive"} to="/workers" />
    </div>
  );
}

/** How many rollouts and runs there are with a status. */
function useCount(status: Schema<"ShownRollout">["status"][], run: Schema<"Run">["status"]): number {
  const rollouts = useOne(["rollout", "count", status], (signal) => api.get("/api/v1/rollouts", { query: { status, limit: 0 }, signal }));
  const runs = useOne(["run", "count", run], (signal) => api.get("/api/v1/runs", { query: { status: run, limit: 0 }, signal }));
  return (rollouts.data?.total ?? 0) + (runs.data?.total ?? 0);
}

function Asked() {
  const approvals = useOne(["approval", "pending"], (signal) => api.get("/api/v1/approvals", { query: { status: "pending", limit: SHOWN }, signal })).data?.items;
  return (
    <Card title="Waits for a person" flush side={<Link href="/approvals" className="link">All</Link>}>
      <ul className="rows">
        {approvals?.map((approval) => (
          <li key={approval.approval_id}>
            <Link href={linkTo("approval", approval.approval_id) ?? "/"}>
              <span className="nowrap">{approval.workflow_name} · {approval.label}</span>
              <span className="quiet cut">{oneLine(approval.summary, 80)}</span>
              <span className="quiet nowrap end-cell"><Ago time={approval.created_at} /></span>
            </Link>
          </li>
        ))}
        {approvals?.length === 0 && <li><div className="quiet">No approval waits.</div></li>}
      </ul>
    </Card>
  );
}

function Next() {
  const schedules = useOne(["schedule", "next"], (signal) =>
    api.get("/api/v1/schedules", { query: { enabled: true, sort_by: "next_at", sort_order: "asc", limit: 100 }, signal }),
  ).data?.items;
  const own = schedules?.filter((each) => each.next_at !== null && each.target !== INTERNAL_TARGET).slice(0, SHOWN);
  return (
    <Card title="Fires next" flush side={<Link href="/schedules" className="link">All</Link>}>
      <ul className="rows">
        {own?.map((schedule) => (
          <li key={schedule.schedule_id}>
            <Link href={linkTo("schedule", schedule.schedule_id) ?? "/"}>
              <span className="nowrap">{schedule.name ?? schedule.schedule_id}</span>
              <span className="quiet cut" title={schedule.expression}>{schedule.sentence || schedule.expression}</span>
              <span className="quiet nowrap end-cell"><Ago time={schedule.next_at} /></span>
            </Link>
          </li>
        ))}
        {own?.length === 0 && <li><div className="quiet">No schedule of yours is enabled.</div></li>}
      </ul>
    </Card>
  );
}
