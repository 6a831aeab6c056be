import { Button } from "@mantine/core";
import { api } from "../api/client";
import { useAction, useOne } from "../api/queries";
import { linkTo, type Params } from "../app/screens";
import { useMay } from "../app/session";
import { Card, Facts, Head, Id, isEmpty, Loading, Status, Took, when } from "../components/basics";
import { Json } from "../components/Json";
import { Problem } from "../components/Problem";

/** What a worker reports that is shown among the facts. */
const SHOWN = new Set(["queue", "queues", "agents", "max"]);

export default function WorkerScreen({ params }: { params: Params }) {
  const worker_id = params.worker_id ?? "";
  const found = useOne(
    ["worker", "one", worker_id],
    (signal) => api.get("/api/v1/workers/{worker_id}", { path: { worker_id }, signal }),
    { every: 5000 },
  );
  const mayWrite = useMay("write");
  const drain = useAction(
    (on: boolean) =>
      on
        ? api.post("/api/v1/workers/{worker_id}/drain", { path: { worker_id } })
        : api.post("/api/v1/workers/{worker_id}/undrain", { path: { worker_id } }),
    (_, on) => (on ? "It claims no more, and finishes what it holds." : "It claims again."),
  );
  if (found.error && !found.data) return <Problem error={found.error} id={worker_id} />;
  if (!found.data) return <Loading />;
  const worker = found.data;
  const reported = (worker.heartbeat_stats ?? {}) as { queues?: string[]; agents?: string[]; max?: number };
  const more = Object.fromEntries(Object.entries(worker.heartbeat_stats ?? {}).filter(([key]) => !SHOWN.has(key)));
  return (
    <>
      <Head title={<Id id={worker_id} />} label={worker_id} above={["Workers", "/workers"]}>
        <Status status={worker.stopped_at ? "stopped" : worker.draining_since ? "draining" : worker.status} />
        {mayWrite && !worker.stopped_at && (
          <Button variant="default" loading={drain.isPending} onClick={() => drain.mutate(!worker.draining_since)}>
            {worker.draining_since ? "Let it claim again" : "Drain"}
          </Button>
        )}
      </Head>
      <div className="body">
        <div className="grid">
          <Card title={`Holds (${worker.held.length})`} className="span7" flush>
            {worker.held.length ? (
              <ul className="rows">
                {worker.held.map((each) => (
                  <li key={each.attempt_id}>
                    <div>
                      <span className="quiet">{each.kind}</span>
                      <Id id={each.rollout_id} to={linkTo(each.kind === "run" ? "run" : "rollout", each.rollout_id) ?? "/"} />
                      <span className="quiet end-cell">for <Took from={each.start_time} to={null} /></span>
                    </div>
                  </li>
                ))}
              </ul>
            ) : <div className="inside quiet">It executes nothing now.</div>}
          </Card>
          <Card title="Facts" className="span5">
            <Facts
              facts={[
                ["Queues", reported.queues?.join(", ")],
                ["Agents", reported.agents?.join(", ")],
                ["Slots", reported.max],
                ["Heartbeat", when(worker.last_heartbeat_time)],
                ["Last claim", when(worker.last_dequeue_time)],
                ["Last busy", when(worker.last_busy_time)],
                ["Last idle", when(worker.last_idle_time)],
                ["Drained", when(worker.draining_since)],
                ["Stopped", when(worker.stopped_at)],
              ]}
            />
          </Card>
          {!isEmpty(more) && <Card title="What else it reports" className="span12"><Json value={more} /></Card>}
        </div>
      </div>
    </>
  );
}
