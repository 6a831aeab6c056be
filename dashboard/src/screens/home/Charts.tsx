// What happened over time: queues, models, executions. Drawn once there is something to draw.
import { lazy, Suspense } from "react";
import { api } from "../../api/client";
import { useOne } from "../../api/queries";
import { loaded } from "../../app/connection";
import { Card } from "../../components/basics";
import { INTERNAL } from "../../components/Queues";
import { compact, dollars, duration, plural } from "../../lib/format";

const MINUTE = 60_000;
const HOURS = 24;
const QUEUE_HOURS = 3;
const MOST_MODELS = 8;
const Chart = lazy(() => loaded(() => import("../../components/Chart").then(({ Chart }) => ({ default: Chart }))));

/** Depth, waiting time and throughput of all queues in the last hours; left out while nothing was written down. */
export function QueueCharts() {
  const history = useOne(
    ["history", "queues"],
    (signal) => api.get("/api/v1/stats/queues", { query: { since: Date.now() / 1000 - QUEUE_HOURS * 3600 }, signal }),
    { every: MINUTE },
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
export function Usage() {
  const usage = useOne(
    ["history", "usage"],
    (signal) => api.get("/api/v1/stats/usage", { query: { by: "model", since: Date.now() / 1000 - HOURS * 3600 }, signal }),
    { every: MINUTE },
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
  const first = [...models].sort(([, one], [, other]) => other.cost - one.cost || other.tokens - one.tokens).slice(0, MOST_MODELS);
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
      {cost > 0 && (
        <Card title="Cost of models, by hour" className="span6" side={<span className="quiet num">{dollars(cost)}</span>}>
          <Chart
            label={`Cost in each of the last ${HOURS} hours, in US dollars`} times={times} format={dollars}
            series={[{ label: "cost", color: "var(--ok)", values: sum((point) => point.cost ?? 0), fill: true }]}
          />
        </Card>
      )}
      <Card title="Models" className="span6" flush>
        <ul className="rows">
          {first.map(([name, model]) => (
            <li key={name}>
              <div>
                <span className="cut">{name || "unknown"}</span>
                <span className="quiet nowrap num end-cell">
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
export function Hours() {
  const hours = useOne(["history", "executions"], (signal) => api.get("/api/v1/executions/stats/hourly", { query: { hours: HOURS }, signal }), { every: MINUTE }).data?.items;
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
