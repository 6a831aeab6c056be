import { Button } from "@mantine/core";
import { useLocation } from "wouter";
import { api } from "../api/client";
import { useAction, useOne } from "../api/queries";
import { linkTo, type Params } from "../app/screens";
import { useMay } from "../app/session";
import { Card, Facts, Head, Id, isEmpty, Loading, Status, Took, when } from "../components/basics";
import { confirm } from "../components/Confirm";
import { Icon } from "../components/Icon";
import { Json } from "../components/Json";
import { Problem } from "../components/Problem";
import { StateList } from "../components/StateChart";
import { Traced } from "../components/Traced";
import { Why } from "../components/Why";
import { count, dollars } from "../lib/format";
import { LIVE_RUNS } from "./Runs";

export default function RunScreen({ params }: { params: Params }) {
  const run_id = params.run_id ?? "";
  const path = { run_id };
  const mayWrite = useMay("write");
  const found = useOne(["run", "one", run_id], (signal) => api.get("/api/v1/runs/{run_id}", { path, signal }));
  const cancel = useAction(() => api.post("/api/v1/runs/{run_id}/cancel", { path }), () => "Cancelled");
  const [, go] = useLocation();
  const retry = useAction(() => api.post("/api/v1/runs/{run_id}/retry", { path }), () => "Run again");
  const figures = useOne(["run", "one", run_id, "figures"], (signal) => api.get("/api/v1/figures", { query: { rollout_id: [run_id] }, signal }));
  const states = useOne(["run", "one", run_id, "path"], (signal) => api.get("/api/v1/rollouts/{rollout_id}/path", { path: { rollout_id: run_id }, signal })).data;
  const output = useOne(["run", "one", run_id, "output"], (signal) => api.get("/api/v1/runs/{run_id}/wait", { path, query: { timeout: 0 }, signal }), { enabled: found.data?.status === "success" });
  if (found.error && !found.data) return <Problem error={found.error} id={run_id} />;
  if (!found.data) return <Loading />;
  const run = found.data;
  const own = figures.data?.items[0];
  const isLive = LIVE_RUNS.includes(run.status);
  const thread = linkTo("thread", run.thread_id);
  const configured = { config: run.kwargs.config, context: run.kwargs.context };
  return (
    <>
      <Head title={<Id id={run_id} />} label={run_id} above={["Runs", "/runs"]}>
        <Status status={run.status} />
        {mayWrite && !isLive && run.kind === "run" && (
          <Button
            leftSection={<Icon name="retry" size={14} />} loading={retry.isPending}
            onClick={() => retry.mutate(undefined, { onSuccess: (again) => go(`/runs/${encodeURIComponent(again.run_id)}`) })}
          >
            Run again
          </Button>
        )}
        {mayWrite && isLive && (
          <Button
            variant="default" leftSection={<Icon name="cancel" size={14} />} loading={cancel.isPending}
            onClick={() => confirm({ title: "Cancel this run?", text: "What it has done so far stays.", action: "Cancel it", danger: true, then: () => cancel.mutate(undefined) })}
          >
            Cancel
          </Button>
        )}
      </Head>
      <div className="body">
        <Why id={run_id} />
        <div className="grid">
          <Card title="Facts" className="span6">
            <Facts
              facts={[
                ["Agent", run.agent],
                ["Assistant", <Id id={run.assistant_id} />],
                ["Thread", <Id id={run.thread_id} {...(thread ? { to: thread } : {})} />],
                ["Attempt", run.attempt || null],
                ["Created", when(run.created_at)],
                ["Took", <Took from={run.created_at} to={run.ended_at ?? (isLive ? null : run.updated_at)} />],
                ["Tokens", own && `${count(own.input_tokens)} in, ${count(own.output_tokens)} out`],
                ["Cost", own?.cost == null ? null : dollars(own.cost)],
                ["When the thread is busy", run.multitask_strategy],
                ["Session", run.session_id && <Id id={run.session_id} to={linkTo("session", run.session_id) ?? "/"} />],
                ["Webhook", run.webhook],
              ]}
            />
          </Card>
          <div className="stack span6">
            {run.error && <Card title={run.error.error}><span className="break" style={{ color: "var(--bad)" }}>{run.error.message}</span></Card>}
            <Card title="Input"><Json value={run.kwargs.command ?? run.kwargs.input} /></Card>
            {output.data && <Card title="Output"><Json value={output.data.values ?? null} open={1} /></Card>}
          </div>
          {states && <Card title="States" className="span12" flush><StateList path={states} /></Card>}
          <Traced rollout_id={run_id} />
          {!isEmpty(configured) && <Card title="Config" className="span6"><Json value={configured} /></Card>}
          {!isEmpty(run.metadata) && <Card title="Metadata" className="span6"><Json value={run.metadata} open={1} /></Card>}
        </div>
      </div>
    </>
  );
}
