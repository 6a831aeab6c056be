import { lazy, Suspense } from "react";
import { Link } from "wouter";
import { api } from "../api/client";
import { useOne } from "../api/queries";
import { Ago, Card, Empty, Figure, Head, Status, Took } from "../components/basics";
import { compact, count, dollars, duration, oneLine, plural } from "../lib/format";
import { rolloutLink } from "./Rollouts";

const SNIPPET = `import asyncio
from perdure import LightningStoreClient

async def main():
    store = LightningStoreClient("${location.origin}")
    await store.enqueue_rollout({"task": "say hello"})

asyncio.run(main())`;
const LATELY = 8;
const HOURS = 24;
const QUEUE_HOURS = 3;
const INTERNAL = "internal";
const Chart = lazy(() => import("../components/Chart").then(({ Chart }) => ({ default: Chart })));

export default function Home() {
  const holds = useOne(["overview", "statistics"], (signal) => api.get("/api/v1/statistics", { signal }));
  const empty = holds.data && !holds.data.total_rollouts && !holds.data.total_workers;
  return (
    <>
      <Head title="Home" />
      <div className="body">
        {empty && (
          <Card>
            <Empty title="Nothing is here yet" text="Paste this into a file and run it. The page notices." snippet={SNIPPET} />
          </Card>
        )}
        <Figures spans={holds.data?.total_spans ?? 0} rollouts={holds.data?.total_rollouts ?? 0} />
        <div className="grid">
          <Running />
          <Failed />
          <Queues />
          <Waiting />
          <Next />
          <Done />
          <QueueCharts />
          <Usage />
          <Hours />
        </div>
      </div>
    </>
  );
}

function Figures({ spans, rollouts }: { spans: number; rollouts: number }) {
  const queues = useOne(["overview", "queues"], (signal) => api.get("/api/v1/queues", { signal }), { every: 10_000 });
  const running = useCount(["running", "preparing"]);
  const failed = useCount(["failed"]);
  const workers = useOne(["overview", "workers"], (signal) => api.get("/api/v1/workers", { query: { limit: 1000 }, signal }));
  const items = queues.data?.items ?? [];
  const ready = items.reduce((sum, queue) => sum + queue.ready, 0);
  const later = items.reduce((sum, queue) => sum + queue.delayed + queue.waiting, 0);
  const oldest = Math.max(0, ...items.map((queue) => queue.oldest_age_seconds ?? 0));
  const alive = (workers.data?.items ?? []).filter((worker) => !worker.stopped_at && worker.status !== "unknown");
  const busy = alive.filter((worker) => worker.status === "busy").length;
  return (
    <div className="grid">
      <Figure label="Running now" value={count(running)} note={`${compact(rollouts)} in all, ${compact(spans)} spans`} to="/rollouts?status=running,preparing" />
      <Figure label="Ready to be claimed" value={count(ready)} note={ready ? `the oldest for ${duration(oldest)}` : later ? `${plural(later, "other")} later` : ""} to="/rollouts?status=queuing,requeuing" />
      <Figure label="Failed" value={count(failed)} to="/rollouts?status=failed" />
      <Figure label="Workers" value={count(alive.length)} note={alive.length ? `${busy} busy` : "none is alive"} to="/workers" />
    </div>
  );
}

type Statuses = ("running" | "preparing" | "failed" | "succeeded")[];

function useCount(status: Statuses): number {
  const found = useOne(["rollout", "count", status], (signal) => api.get("/api/v1/rollouts", { query: { status, limit: 0 }, signal }));
  return found.data?.total ?? 0;
}

function useLately(status: Statuses, sort_by: string) {
  return useOne(["rollout", "lately", status], (signal) =>
    api.get("/api/v1/rollouts", { query: { status, sort_by, sort_order: "desc", limit: LATELY }, signal }),
  ).data?.items;
}

function Running() {
  const rollouts = useLately(["running", "preparing"], "start_time");
  return (
    <Card title="Running now" className="span6" flush side={<Link href="/rollouts?status=running,preparing" className="link">All</Link>}>
      <ul className="rows">
        {rollouts?.map((rollout) => (
          <li key={rollout.rollout_id}>
            <Link href={rolloutLink(rollout.rollout_id)}>
              <Status status={rollout.status} />
              <span className="mono nowrap">{rollout.rollout_id}</span>
              <span className="quiet cut">{oneLine(rollout.input, 80)}</span>
              <span className="quiet nowrap" style={{ marginLeft: "auto" }}><Took from={rollout.attempt?.start_time} to={null} /></span>
            </Link>
          </li>
        ))}
        {rollouts?.length === 0 && <li><div className="quiet">Nothing is executed now.</div></li>}
      </ul>
    </Card>
  );
}

function Failed() {
  const rollouts = useLately(["failed"], "end_time");
  return (
    <Card title="Failed lately" className="span6" flush side={<Link href="/rollouts?status=failed" className="link">All</Link>}>
      <ul className="rows">
        {rollouts?.map((rollout) => (
          <li key={rollout.rollout_id}>
            <Link href={rolloutLink(rollout.rollout_id)}>
              <Status status={rollout.attempt?.status ?? rollout.status} />
              <span className="mono nowrap">{rollout.rollout_id}</span>
              <span className="quiet cut">{oneLine(rollout.input, 80)}</span>
              <span className="quiet nowrap" style={{ marginLeft: "auto" }}><Ago time={rollout.end_time} /></span>
            </Link>
          </li>
        ))}
        {rollouts?.length === 0 && <li><div className="quiet">Nothing has failed.</div></li>}
      </ul>
    </Card>
  );
}

function Done() {
  const rollouts = useLately(["succeeded"], "end_time");
  return (
    <Card title="Succeeded lately" className="span6" flush side={<Link href="/rollouts?status=succeeded" className="link">All</Link>}>
      <ul className="rows">
        {rollouts?.map((rollout) => (
          <li key={rollout.rollout_id}>
            <Link href={rolloutLink(rollout.rollout_id)}>
              <span className="mono nowrap">{rollout.rollout_id}</span>
              <span className="quiet cut">{oneLine(rollout.input, 80)}</span>
              <span className="quiet nowrap" style={{ marginLeft: "auto" }}>
                <Took from={rollout.attempt?.start_time} to={rollout.end_time} /> · <Ago time={rollout.end_time} />
              </span>
            </Link>
          </li>
        ))}
        {rollouts?.length === 0 && <li><div className="quiet">Nothing has succeeded yet.</div></li>}
      </ul>
    </Card>
  );
}

function Queues() {
  const queues = useOne(["overview", "queues"], (signal) => api.get("/api/v1/queues", { signal }), { every: 10_000 }).data?.items;
  return (
    <Card title="What waits" className="span6" flush>
      <ul className="rows">
        {queues?.map((queue) => (
          <li key={`${queue.namespace} ${queue.queue}`}>
            <div>
              <span className="cut">{queue.queue || "default"}</span>
              <span className="quiet nowrap num" style={{ marginLeft: "auto" }}>
                {[
                  queue.paused_since ? "paused" : null,
                  queue.ready ? `${count(queue.ready)} ready${queue.oldest_age_seconds === null ? "" : `, the oldest for ${duration(queue.oldest_age_seconds)}`}` : null,
                  queue.delayed ? `${count(queue.delayed)} for their time` : null,
                  queue.waiting ? `${count(queue.waiting)} for the one before them` : null,
                ].filter(Boolean).join(" · ")}
              </span>
            </div>
          </li>
        ))}
        {queues?.length === 0 && <li><div className="quiet">Nothing waits.</div></li>}
      </ul>
    </Card>
  );
}

function Waiting() {
  const approvals = useOne(["approval", "pending"], (signal) => api.get("/api/v1/approvals", { query: { status: "pending", limit: LATELY }, signal })).data?.items;
  return (
    <Card title="Waits for a person" className="span6" flush>
      <ul className="rows">
        {approvals?.map((approval) => (
          <li key={approval.approval_id}>
            <div>
              <span className="cut">{approval.label}</span>
              <span className="quiet cut">{approval.workflow_name}</span>
              <span className="quiet nowrap" style={{ marginLeft: "auto" }}><Ago time={approval.created_at} /></span>
            </div>
          </li>
        ))}
        {approvals?.length === 0 && <li><div className="quiet">No approval waits.</div></li>}
      </ul>
    </Card>
  );
}

function Next() {
  const schedules = useOne(["schedule", "next"], (signal) =>
    api.get("/api/v1/schedules", { query: { enabled: true, limit: 100 }, signal }),
  ).data?.items;
  const next = schedules?.filter((each) => each.next_at !== null).sort((one, other) => Number(one.next_at) - Number(other.next_at)).slice(0, LATELY);
  return (
    <Card title="Fires next" className="span6" flush>
      <ul className="rows">
        {next?.map((schedule) => (
          <li key={schedule.schedule_id}>
            <div>
              <span className="cut">{schedule.name ?? schedule.schedule_id}</span>
              <span className="quiet mono nowrap">{schedule.expression}</span>
              <span className="quiet nowrap" style={{ marginLeft: "auto" }}><Ago time={schedule.next_at} /></span>
            </div>
          </li>
        ))}
        {next?.length === 0 && <li><div className="quiet">No schedule is enabled.</div></li>}
      </ul>
    </Card>
  );
}

/** Depth, waiting time and throughput of all queues in the last hours; left out while nothing was written down. */
function QueueCharts() {
  const history = useOne(
    ["overview", "queue-history"],
    (signal) => api.get("/api/v1/stats/queues", { query: { since: Date.now() / 1000 - QUEUE_HOURS * 3600 }, signal }),
    { every: 60_000 },
  ).data;
  const points = (history?.items ?? []).filter((point) => point.queue !== INTERNAL);
  if (!history || history.times.length < 2) return null;
  const sum = (read: (point: (typeof points)[number]) => number) => {
    const totals = new Map<number, number>();
    for (const point of points) totals.set(point.time, (totals.get(point.time) ?? 0) + read(point));
    return history.times.map((time) => totals.get(time) ?? 0);
  };
  const highest = (read: (point: (typeof points)[number]) => number | null) => {
    const found = new Map<number, number>();
    for (const point of points) found.set(point.time, Math.max(found.get(point.time) ?? 0, read(point) ?? 0));
    return history.times.map((time) => found.get(time) ?? null);
  };
  const step = duration(history.step_seconds);
  return (
    <Suspense>
      <Card title="Queue depth" className="span6" side={<span className="quiet">last {QUEUE_HOURS} hours</span>}>
        <Chart
          label={`Rollouts that were ready or waited, in each ${step}`} times={history.times}
          series={[
            { label: "ready", color: "var(--run)", values: sum((point) => point.ready), fill: true },
            { label: "later", color: "var(--wait)", values: sum((point) => point.delayed + point.waiting) },
          ]}
        />
      </Card>
      <Card title="Waiting time" className="span6" side={<span className="quiet">half and 95% of claims</span>}>
        <Chart
          label={`How long rollouts waited for their first claim, in each ${step}`} times={history.times} format={duration}
          series={[
            { label: "p50", color: "var(--run)", values: highest((point) => point.wait_seconds_p50), fill: true },
            { label: "p95", color: "var(--violet)", values: highest((point) => point.wait_seconds_p95) },
          ]}
        />
      </Card>
      <Card title="Throughput" className="span6" side={<span className="quiet">ended in each {step}</span>}>
        <Chart
          label={`Rollouts that succeeded and failed, in each ${step}`} times={history.times}
          series={[
            { label: "succeeded", color: "var(--ok)", values: sum((point) => point.succeeded), fill: true },
            { label: "failed", color: "var(--bad)", values: sum((point) => point.failed) },
          ]}
        />
      </Card>
    </Suspense>
  );
}

/** Tokens and cost of model calls, by hour, with the models that cost most. */
function Usage() {
  const usage = useOne(
    ["overview", "usage"],
    (signal) => api.get("/api/v1/stats/usage", { query: { by: "model", since: Date.now() / 1000 - HOURS * 3600 }, signal }),
    { every: 60_000 },
  ).data;
  if (!usage?.items.length) return null;
  const times: number[] = [];
  for (let time = usage.since; time < usage.until; time += usage.step_seconds) times.push(time);
  const items = usage.items;
  const sum = (read: (point: (typeof items)[number]) => number) =>
    times.map((time) => items.filter((point) => point.time === time).reduce((total, point) => total + read(point), 0));
  const models = new Map<string, { cost: number; tokens: number; calls: number }>();
  for (const point of usage.items) {
    const model = models.get(point.name) ?? { cost: 0, tokens: 0, calls: 0 };
    model.cost += point.cost ?? 0;
    model.tokens += point.input_tokens + point.output_tokens;
    model.calls += point.steps;
    models.set(point.name, model);
  }
  const first = [...models].sort(([, one], [, other]) => other.cost - one.cost || other.tokens - one.tokens).slice(0, LATELY);
  const cost = first.reduce((total, [, model]) => total + model.cost, 0);
  return (
    <Suspense>
      <Card title="Tokens of models, by hour" className="span6">
        <Chart
          label={`Tokens read and written in each of the last ${HOURS} hours`} times={times}
          series={[
            { label: "input", color: "var(--run)", values: sum((point) => point.input_tokens), fill: true },
            { label: "output", color: "var(--violet)", values: sum((point) => point.output_tokens) },
          ]}
        />
      </Card>
      <Card title="Cost of models, by hour" className="span6" side={<span className="quiet num">{dollars(cost)}</span>}>
        <Chart
          label={`Cost in each of the last ${HOURS} hours, in US dollars`} times={times} format={dollars}
          series={[{ label: "cost", color: "var(--ok)", values: sum((point) => point.cost ?? 0), fill: true }]}
        />
      </Card>
      <Card title="Models" className="span6" flush>
        <ul className="rows">
          {first.map(([name, model]) => (
            <li key={name}>
              <div>
                <span className="cut">{name || "unknown"}</span>
                <span className="quiet nowrap num" style={{ marginLeft: "auto" }}>
                  {[plural(model.calls, "call"), `${compact(model.tokens)} tokens`, model.cost ? dollars(model.cost) : null].filter(Boolean).join(" · ")}
                </span>
              </div>
            </li>
          ))}
        </ul>
      </Card>
    </Suspense>
  );
}

/** What phases of workflows and turns of chats did and took in each of the last hours; left out while there are none. */
function Hours() {
  const hours = useOne(["execution", "hours"], (signal) => api.get("/api/v1/executions/stats/hourly", { query: { hours: HOURS }, signal })).data?.items;
  if (!hours?.some((hour) => hour.total > 0)) return null;
  const times = hours.map((hour) => Date.parse(hour.at) / 1000);
  const cost = hours.reduce((sum, hour) => sum + hour.cost_usd, 0);
  return (
    <Suspense>
      <Card title="Executions, by hour" className="span6">
        <Chart
          label="Executions that succeeded and failed in each of the last 24 hours"
          times={times}
          series={[
            { label: "succeeded", color: "var(--ok)", values: hours.map((hour) => hour.succeeded), fill: true },
            { label: "failed", color: "var(--bad)", values: hours.map((hour) => hour.failed) },
          ]}
        />
      </Card>
      <Card title="Tokens, by hour" className="span6" side={<span className="quiet num">{cost ? `$${cost.toFixed(2)}` : ""}</span>}>
        <Chart
          label="Tokens read and written in each of the last 24 hours"
          times={times}
          series={[
            { label: "input", color: "var(--run)", values: hours.map((hour) => hour.input_tokens), fill: true },
            { label: "output", color: "var(--violet)", values: hours.map((hour) => hour.output_tokens) },
          ]}
        />
      </Card>
    </Suspense>
  );
}
