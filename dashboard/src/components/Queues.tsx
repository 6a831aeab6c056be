// The queues: what waits in each and why, with a control to pause and resume it.
import { Button } from "@mantine/core";
import { Link } from "wouter";
import { api, type Schema } from "../api/client";
import { useAction, useOne, useWhy } from "../api/queries";
import { linkTo } from "../app/screens";
import { useMay } from "../app/session";
import { count, duration } from "../lib/format";
import { Card, Status } from "./basics";
import { confirm } from "./Confirm";
import { Sentence } from "./Why";

type Queue = Schema<"QueueState">;

/** The queue of everything that names none. */
const DEFAULT = "default";
/** The queue of what the server does for itself. */
export const INTERNAL = "internal";
const OLDEST = 3;
const EVERY = 15_000;
const MOST_WORKERS = 1000;

/** The queues that hold something or are paused; that of the server's own work only if it is paused. */
export const useQueues = (): Queue[] | undefined =>
  useOne(["overview", "queues"], (signal) => api.get("/api/v1/queues", { signal }), { every: EVERY }).data?.items.filter(
    (queue) => queue.queue !== INTERNAL || queue.paused_since,
  );

/** The workers that have not stopped. Each heartbeat is a change, so they are read now and then. */
export function useLiveWorkers(): Schema<"WorkerDetails">[] {
  const found = useOne(["overview", "workers"], (signal) => api.get("/api/v1/workers", { query: { limit: MOST_WORKERS }, signal }), { every: EVERY });
  return found.data?.items.filter((worker) => !worker.stopped_at) ?? [];
}

export function Queues() {
  const mayWrite = useMay("write");
  const held = useQueues();
  const served = useLiveWorkers().flatMap((worker) => ((worker.heartbeat_stats ?? {}) as { queues?: string[] }).queues ?? []);
  const idle = [...new Set([DEFAULT, ...served])].filter((name) => !held?.some((queue) => queue.queue === name)).sort();
  return (
    <Card title="Queues and what waits" className="span6" flush>
      <ul className="rows">
        {held?.map((queue) => <Row key={`${queue.namespace} ${queue.queue}`} name={queue.queue} queue={queue} mayWrite={mayWrite} />)}
        {held && idle.map((name) => <Row key={name} name={name} queue={null} mayWrite={mayWrite} />)}
      </ul>
      <Oldest />
    </Card>
  );
}

function Row({ name, queue, mayWrite }: { name: string; queue: Queue | null; mayWrite: boolean }) {
  const path = { queue: name };
  const pause = useAction(() => api.post("/api/v1/queues/{queue}/pause", { path }), () => `Paused: ${name}`);
  const resume = useAction(() => api.post("/api/v1/queues/{queue}/resume", { path }), () => `Resumed: ${name}`);
  const isPaused = !!queue?.paused_since;
  return (
    <li>
      <div data-queue={name}>
        <span className="cut">{name}</span>
        {isPaused && <Status status="paused" />}
        <span className="quiet nowrap num end-cell">{waiting(queue)}</span>
        {mayWrite && (isPaused ? (
          <Button size="compact-xs" variant="default" aria-label={`Resume ${name}`} loading={resume.isPending} onClick={() => resume.mutate(undefined)}>Resume</Button>
        ) : (
          <Button
            size="compact-xs" variant="default" aria-label={`Pause ${name}`} loading={pause.isPending}
            onClick={() => confirm({ title: `Pause the queue ${name}?`, text: "Workers finish what they hold and claim nothing more of it, until it is resumed.", action: "Pause it", then: () => pause.mutate(undefined) })}
          >
            Pause
          </Button>
        ))}
      </div>
    </li>
  );
}

function waiting(queue: Queue | null): string {
  const parts = queue && [
    queue.ready ? `${count(queue.ready)} ready${queue.oldest_age_seconds === null || queue.oldest_age_seconds === undefined ? "" : `, the oldest for ${duration(queue.oldest_age_seconds)}`}` : null,
    queue.delayed ? `${count(queue.delayed)} for their time` : null,
    queue.waiting ? `${count(queue.waiting)} for the one before them` : null,
  ].filter(Boolean);
  return parts?.length ? parts.join(" · ") : "nothing waits";
}

/** Why those wait that have waited longest. */
function Oldest() {
  const rollouts = useOne(["rollout", "oldest"], (signal) =>
    api.get("/api/v1/rollouts", { query: { status: ["queuing", "requeuing"], sort_by: "start_time", sort_order: "asc", limit: OLDEST }, signal }),
  ).data?.items;
  const runs = useOne(["run", "oldest"], (signal) => api.get("/api/v1/runs", { query: { status: "pending", limit: OLDEST }, signal })).data?.items;
  const ids = [...(rollouts ?? []).map((each) => ["rollout", each.rollout_id] as const), ...(runs ?? []).map((each) => ["run", each.run_id] as const)];
  if (!ids.length) return null;
  return <ul className="rows why-rows">{ids.slice(0, OLDEST).map(([kind, id]) => <Reason key={id} kind={kind} id={id} />)}</ul>;
}

function Reason({ kind, id }: { kind: string; id: string }) {
  const why = useWhy(id).data;
  return why ? <li><Link href={linkTo(kind, id) ?? "/"}><span className="quiet break"><Sentence text={why.sentence} /></span></Link></li> : null;
}
