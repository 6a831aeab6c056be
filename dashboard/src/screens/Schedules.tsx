import { Button, Switch } from "@mantine/core";
import { api, type Schema } from "../api/client";
import { useAction, useOffsetList } from "../api/queries";
import { useFilter } from "../app/filters";
import { useMay } from "../app/session";
import { Ago, Empty, Head, Id } from "../components/basics";
import { nameOf, useAssistants } from "../components/Composer";
import { Choices } from "../components/Choices";
import { type Column, Table } from "../components/Table";
import { Views } from "../components/Views";

type Schedule = Schema<"Schedule">;
type Target = Schedule["target"];

const TARGETS = ["run", "workflow", "rollout", "job"];
const SNIPPET = `perdure cron create agent "0 9 * * MON-FRI" '{"team": "blue"}' --name report --url ${location.origin}`;

export default function Schedules() {
  const mayWrite = useMay("write");
  const [state, setState] = useFilter("state");
  const [target, setTarget] = useFilter("target");
  const list = useOffsetList(["schedule", "list", state, target], ({ signal, ...page }) =>
    api.get("/api/v1/schedules", {
      query: { ...page, enabled: state ? state === "enabled" : null, target: (target || null) as Target | null, sort_by: "next_at", sort_order: "asc" },
      signal,
    }),
  );
  const enable = useAction(
    ({ schedule_id, enabled }: { schedule_id: string; enabled: boolean }) => api.patch("/api/v1/schedules/{schedule_id}", { path: { schedule_id }, body: { enabled } }),
    ({ enabled }) => (enabled ? "Enabled" : "Disabled"),
  );
  const trigger = useAction((schedule_id: string) => api.post("/api/v1/schedules/{schedule_id}/trigger", { path: { schedule_id } }), () => "Triggered");
  const assistants = useAssistants() ?? [];
  const columns: Column<Schedule>[] = [
    {
      name: "Enabled", width: "66px",
      cell: (schedule) => (
        <span onClick={(event) => event.stopPropagation()}>
          <Switch
            size="xs" aria-label={`Enable ${schedule.name ?? schedule.schedule_id}`} checked={schedule.enabled ?? true} disabled={!mayWrite}
            onChange={(event) => enable.mutate({ schedule_id: schedule.schedule_id, enabled: event.currentTarget.checked })}
          />
        </span>
      ),
    },
    { name: "Schedule", width: "minmax(90px, 1fr)", cell: (schedule) => schedule.name ?? <Id id={schedule.schedule_id} /> },
    { name: "When", width: "minmax(0, 1.500fr)", wide: true, cell: (schedule) => <span title={`${schedule.expression} in ${schedule.timezone ?? "UTC"}`}>{schedule.sentence || schedule.expression}</span> },
    { name: "Target", width: "minmax(0, 1fr)", wide: true, cell: (schedule) => <span className="quiet">{schedule.target}{schedule.assistant_id ? ` · ${nameOf(assistants, schedule.assistant_id)}` : ""}</span> },
    { name: "Fired", width: "56px", end: true, wide: true, cell: (schedule) => <span className="num">{schedule.fired ?? 0}</span> },
    { name: "Failed", width: "56px", end: true, wide: true, cell: (schedule) => <span className="num" style={schedule.failed ? { color: "var(--bad)" } : {}}>{schedule.failed ?? 0}</span> },
    { name: "Last", width: "76px", end: true, wide: true, cell: (schedule) => <span className="quiet"><Ago time={schedule.fired_at} /></span> },
    { name: "Next", width: "76px", end: true, cell: (schedule) => <Ago time={schedule.enabled === false ? null : schedule.next_at} /> },
    {
      name: "Action", width: "92px", end: true,
      cell: (schedule) => mayWrite && (
        <Button
          variant="default" size="compact-xs" aria-label={`Trigger now: ${schedule.name ?? schedule.schedule_id}`}
          onClick={(event) => {
            event.stopPropagation();
            trigger.mutate(schedule.schedule_id);
          }}
        >
          Trigger now
        </Button>
      ),
    },
  ];
  return (
    <>
      <Head title="Schedules"><Views screen="schedules" /></Head>
      <div className="bar">
        <Choices single all="enabled or not" label="State" choices={["enabled", "disabled"]} chosen={state ? [state] : []} onChange={([one]) => setState(one ?? "")} />
        <Choices single all="any target" label="Target" choices={TARGETS} chosen={target ? [target] : []} onChange={([one]) => setTarget(one ?? "")} />
      </div>
      <Table
        label="Schedules" list={list} columns={columns} idOf={(schedule) => schedule.schedule_id}
        linkOf={(schedule) => `/schedules/${encodeURIComponent(schedule.schedule_id)}`}
        empty={
          state || target ? <Empty title="No schedule is like this" text="Take a filter away to see more." />
            : <Empty title="No schedules yet" text="A schedule starts a run of an assistant, a workflow or a rollout at its times. With an agent named `agent`, this makes one:" snippet={SNIPPET} />
        }
      />
    </>
  );
}
