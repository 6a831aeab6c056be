import { Button } from "@mantine/core";
import { api } from "../api/client";
import { useAction, useOne } from "../api/queries";
import { linkTo, type Params } from "../app/screens";
import { useMay } from "../app/session";
import { Ago, Card, Facts, Head, Id, Loading, Status, when } from "../components/basics";
import { Json } from "../components/Json";
import { Problem } from "../components/Problem";
import { duration, exact, oneLine } from "../lib/format";

const SHOWN = 100;
const HERE = Intl.DateTimeFormat().resolvedOptions().timeZone;

export default function ScheduleScreen({ params }: { params: Params }) {
  const schedule_id = params.schedule_id ?? "";
  const path = { schedule_id };
  const mayWrite = useMay("write");
  const found = useOne(["schedule", "one", schedule_id], (signal) => api.get("/api/v1/schedules/{schedule_id}", { path, signal }));
  const firings = useOne(["schedule", "one", schedule_id, "firings"], (signal) =>
    api.get("/api/v1/schedules/{schedule_id}/firings", { path, query: { limit: SHOWN }, signal }),
  );
  const upcoming = useOne(["schedule", "one", schedule_id, "upcoming"], (signal) => api.get("/api/v1/schedules/{schedule_id}/upcoming", { path, query: { limit: 5 }, signal })).data;
  const trigger = useAction(() => api.post("/api/v1/schedules/{schedule_id}/trigger", { path }), () => "Triggered");
  const enable = useAction((enabled: boolean) => api.patch("/api/v1/schedules/{schedule_id}", { path, body: { enabled } }), ({ enabled }) => (enabled ? "Enabled" : "Disabled"));
  if (found.error && !found.data) return <Problem error={found.error} id={schedule_id} />;
  if (!found.data) return <Loading />;
  const schedule = found.data;
  const isEnabled = schedule.enabled ?? true;
  return (
    <>
      <Head title={schedule.name ?? schedule_id} label={schedule.name ?? schedule_id} above={["Schedules", "/schedules"]}>
        <Status status={isEnabled ? "enabled" : "disabled"} />
        {mayWrite && <Button variant="default" loading={enable.isPending} onClick={() => enable.mutate(!isEnabled)}>{isEnabled ? "Disable" : "Enable"}</Button>}
        {mayWrite && <Button variant="default" loading={trigger.isPending} onClick={() => trigger.mutate(undefined)}>Trigger now</Button>}
      </Head>
      <div className="body">
        <div className="grid">
          <div className="stack span8">
          <Card title="History" flush>
            {firings.data?.items.length ? (
              <ul className="rows">
                {firings.data.items.map((firing, place) => (
                  <li key={`${place} ${firing.fired_at}`}>
                    <div>
                      <Status status={firing.status ?? "fired"} />
                      <Ago time={firing.fired_at} />
                      <span className="quiet">{firing.source}{firing.actor ? ` by ${firing.actor}` : ""}</span>
                      {firing.started_id && <Started id={firing.started_id} target={schedule.target} />}
                      <span className="quiet cut">{oneLine(firing.error ?? firing.skipped)}</span>
                      <span className="quiet num end-cell">{firing.duration === null || firing.duration === undefined ? "" : duration(firing.duration)}</span>
                    </div>
                  </li>
                ))}
              </ul>
            ) : <div className="inside quiet">It has not fired yet.</div>}
          </Card>
          <Card title="Payload"><Json value={schedule.payload} /></Card>
          </div>
          <div className="stack span4">
          <Card title="Next times">
            <div style={{ marginBottom: 8 }} data-sentence>{upcoming?.sentence}{schedule.timezone ? `, in ${schedule.timezone}` : ", in UTC"}</div>
            {!isEnabled && <div className="quiet">It is disabled, and fires at none of these:</div>}
            {(schedule.timezone ?? "UTC") !== HERE && upcoming && upcoming.items.length > 0 && <div className="quiet" style={{ marginBottom: 4 }}>By your clock:</div>}
            <ol className="times">
              {upcoming?.items.map((time) => <li key={time}><span className={isEnabled ? "" : "quiet"}>{exact(time)}</span> <span className="faint"><Ago time={time} /></span></li>)}
            </ol>
            {upcoming?.items.length === 0 && <span className="quiet">It does not fire again.</span>}
          </Card>
          <Card title="Facts">
            <Facts
              facts={[
                ["Schedule", <Id id={schedule.schedule_id} />],
                ["When", <span className="mono">{schedule.expression}</span>],
                ["Time zone", schedule.timezone ?? "UTC"],
                ["Next", when(isEnabled ? schedule.next_at : null)],
                ["Last", when(schedule.fired_at)],
                ["Target", schedule.target],
                ["Assistant", schedule.assistant_id && <Id id={schedule.assistant_id} />],
                ["When missed", schedule.misfire],
                ["When still running", schedule.overlap],
                ["Ends", when(schedule.end_time)],
                ["From", schedule.file ?? schedule.origin],
                ["Error", schedule.error],
              ]}
            />
          </Card>
          </div>
        </div>
      </div>
    </>
  );
}

function Started({ id, target }: { id: string; target: string }) {
  const to = linkTo(target === "workflow" ? "workflow_run" : target, id);
  return <Id id={id} {...(to === null ? {} : { to })} />;
}
