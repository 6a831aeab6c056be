import { Button } from "@mantine/core";
import { api, type Schema } from "../api/client";
import { useAction, useCursorList } from "../api/queries";
import { useFilter } from "../app/filters";
import { useMay } from "../app/session";
import { Ago, Empty, Head, Id, Status } from "../components/basics";
import { Choices } from "../components/Choices";
import { confirm } from "../components/Confirm";
import { Icon } from "../components/Icon";
import { type Column, Table } from "../components/Table";
import { Views } from "../components/Views";
import { oneLine, plural } from "../lib/format";

type Effect = Schema<"Effect">;

const STATUSES: Effect["status"][] = ["pending", "dead", "delivered"];

export default function Outbox() {
  const mayWrite = useMay("write");
  const [status, setStatus] = useFilter("status");
  const list = useCursorList(["effect", "list", status], ({ signal, ...page }) =>
    api.get("/api/v1/outbox", { query: { ...page, status: (status || null) as Effect["status"] | null }, signal }),
  );
  const retry = useAction((effect_id: string) => api.post("/api/v1/outbox/{effect_id}/retry", { path: { effect_id } }), () => "It is delivered again");
  const retryAll = useAction(() => api.post("/api/v1/outbox/retry", { body: {} }), ({ retried }) => `Delivered again: ${plural(retried, "effect")}`);
  const columns: Column<Effect>[] = [
    { name: "Status", width: "105px", cell: (effect) => <Status status={effect.status} /> },
    { name: "Consumer", width: "minmax(80px, 140px)", cell: (effect) => effect.consumer },
    { name: "Subject", width: "minmax(0, 1fr)", wide: true, cell: (effect) => <span className="quiet"><Id id={effect.subject} /></span> },
    { name: "Target, or the last error", width: "minmax(0, 2fr)", wide: true, cell: (effect) => <span className="quiet" style={effect.last_error ? { color: "var(--bad)" } : {}}>{oneLine(effect.last_error ?? effect.target)}</span> },
    { name: "Attempts", width: "66px", end: true, wide: true, cell: (effect) => <span className="num">{effect.attempts}</span> },
    { name: "Created", width: "72px", end: true, cell: (effect) => <span className="quiet"><Ago time={effect.created_at} /></span> },
    {
      name: "Action", width: "70px", end: true,
      cell: (effect) => mayWrite && effect.status === "dead" && <Button variant="default" size="compact-xs" aria-label={`Retry ${effect.id}`} onClick={() => retry.mutate(effect.id)}>Retry</Button>,
    },
  ];
  return (
    <>
      <Head title="Outbox">
        <Views screen="outbox" />
        {mayWrite && (
          <Button
            variant="default" leftSection={<Icon name="retry" size={14} />} loading={retryAll.isPending}
            onClick={() => confirm({ title: "Deliver all dead letters again?", action: "Deliver them", then: () => retryAll.mutate(undefined) })}
          >
            Retry all dead letters
          </Button>
        )}
      </Head>
      <div className="bar"><Choices single label="Status" choices={STATUSES} chosen={status ? [status] : []} onChange={([one]) => setStatus(one ?? "")} /></div>
      <Table
        label="Outbox" list={list} columns={columns} idOf={(effect) => effect.id}
        empty={status ? <Empty title="No delivery is like this" text="Take the filter away to see more." /> : <Empty title="Nothing to deliver" text="Webhooks and other effects of what happened are delivered from here, again and again until they arrive." />}
      />
    </>
  );
}
