import { Button, Group } from "@mantine/core";
import { Link } from "wouter";
import { api, type Schema } from "../api/client";
import { useAction, useOne } from "../api/queries";
import type { Params } from "../app/screens";
import { useMay } from "../app/session";
import { Ago, Card, Facts, Head, Id, isEmpty, Loading, Status, Took, when } from "../components/basics";
import { confirm } from "../components/Confirm";
import { Icon } from "../components/Icon";
import { Json } from "../components/Json";
import { Problem } from "../components/Problem";
import { StateChart, StateList } from "../components/StateChart";
import { Traced } from "../components/Traced";
import { Why } from "../components/Why";
import { Compare } from "../components/Compare";
import { Resources } from "../components/Resources";
import { compact, dollars, duration } from "../lib/format";
import { ENDED } from "./Rollouts";

type Rollout = Schema<"ShownRollout">;
type Attempt = Schema<"Attempt">;

export default function RolloutScreen({ params }: { params: Params }) {
  const rollout_id = params.rollout_id ?? "";
  const path = { rollout_id };
  const rollout = useOne(["rollout", "one", rollout_id], (signal) => api.get("/api/v1/rollouts/{rollout_id}", { path, signal }));
  const attempts = useOne(["rollout", "one", rollout_id, "attempts"], (signal) =>
    api.get("/api/v1/rollouts/{rollout_id}/attempts", { path, query: { limit: 100 }, signal }),
  );
  const states = useOne(["rollout", "one", rollout_id, "path"], (signal) => api.get("/api/v1/rollouts/{rollout_id}/path", { path, signal })).data;
  const figures = useOne(["rollout", "one", rollout_id, "figures"], (signal) =>
    api.get("/api/v1/figures", { query: { rollout_id: [rollout_id] }, signal }),
  );
  if (rollout.error && !rollout.data) return <Problem error={rollout.error} id={rollout_id} />;
  if (!rollout.data) return <Loading />;
  const own = figures.data?.items[0];
  const made = attempts.data?.items ?? [];
  return (
    <>
      <Head title={<Id id={rollout_id} />} label={rollout_id} above={["Rollouts", "/rollouts"]}>
        <Status status={rollout.data.status} />
        <Actions rollout={rollout.data} />
      </Head>
      <div className="body">
        <Why id={rollout_id} />
        <div className="grid">
          <Card title="State" className="span7" flush>
            {states && <><div className="inside"><StateChart path={states} /></div><StateList path={states} /></>}
          </Card>
          <div className="stack span5">
            <Card title="Facts">
              <Facts
                facts={[
                  ["Started", when(rollout.data.start_time)],
                  ["Ended", when(rollout.data.end_time)],
                  ["Took", <Took from={rollout.data.start_time} to={rollout.data.end_time} />],
                  ["Attempts", `${rollout.data.attempt?.sequence_id ?? 0} of ${rollout.data.config?.max_attempts ?? 1}`],
                  ["Retried after", rollout.data.config?.retry_condition?.join(", ") || "nothing"],
                  ["Time limit", limits(rollout.data)],
                  ["Mode", rollout.data.mode],
                  ["Resources", rollout.data.resources_id && <Id id={rollout.data.resources_id} />],
                  ["Reward", own?.reward ?? null],
                  ["Tokens", own && own.input_tokens + own.output_tokens ? `${compact(own.input_tokens)} in, ${compact(own.output_tokens)} out` : null],
                  ["Cost", own?.cost == null ? null : dollars(own.cost)],
                ]}
              />
            </Card>
            <Traced rollout_id={rollout_id} attempt_id={made.at(-1)?.attempt_id} />
          </div>
          <Card title={`Attempts (${made.length})`} className="span12" flush><Attempts attempts={made} /></Card>
          {made.length > 1 && <Compare rollout_id={rollout_id} attempts={made} />}
          <Card title="Input" className="span6"><Json value={rollout.data.input} /></Card>
          {!isEmpty(rollout.data.metadata) && <Card title="Metadata" className="span6"><Json value={rollout.data.metadata} /></Card>}
          {rollout.data.resources_id && <Resources resources_id={rollout.data.resources_id} />}
        </div>
      </div>
    </>
  );
}

function Actions({ rollout }: { rollout: Rollout }) {
  const path = { rollout_id: rollout.rollout_id };
  const mayWrite = useMay("write");
  const cancel = useAction(() => api.post("/api/v1/rollouts/{rollout_id}/cancel", { path }), () => "Cancelled");
  const retry = useAction(() => api.post("/api/v1/rollouts/{rollout_id}/retry", { path }), () => "Queued again");
  if (!mayWrite) return null;
  return (
    <Group gap={8}>
      {ENDED.includes(rollout.status) ? (
        <Button leftSection={<Icon name="retry" size={14} />} loading={retry.isPending} onClick={() => retry.mutate(undefined)}>Retry</Button>
      ) : (
        <Button
          variant="default" leftSection={<Icon name="cancel" size={14} />} loading={cancel.isPending}
          onClick={() => confirm({ title: "Cancel this rollout?", text: "Its worker is told to stop. A cancelled rollout can be retried.", action: "Cancel it", danger: true, then: () => cancel.mutate(undefined) })}
        >
          Cancel
        </Button>
      )}
    </Group>
  );
}

function Attempts({ attempts }: { attempts: Attempt[] }) {
  if (!attempts.length) return <div className="inside quiet">No worker has claimed it yet.</div>;
  return (
    <ul className="rows">
      {attempts.map((attempt) => (
        <li key={attempt.attempt_id}>
          <div>
            <span className="num faint">{attempt.sequence_id}</span>
            <Status status={attempt.status} />
            <Id id={attempt.attempt_id} />
            <span className="quiet cut">
              {attempt.worker_id && <Link href={`/workers/${encodeURIComponent(attempt.worker_id)}`}>{attempt.worker_id}</Link>}
            </span>
            <span className="quiet nowrap end-cell">
              <Ago time={attempt.start_time} /> · <Took from={attempt.start_time} to={attempt.end_time} />
            </span>
          </div>
        </li>
      ))}
    </ul>
  );
}

function limits({ config }: Rollout): string {
  const given = [
    config?.timeout_seconds ? `${duration(config.timeout_seconds)} an attempt` : null,
    config?.unresponsive_seconds ? `${duration(config.unresponsive_seconds)} of silence` : null,
  ];
  return given.filter(Boolean).join(", ") || "none";
}
