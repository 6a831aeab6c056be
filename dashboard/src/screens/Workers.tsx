import { Link } from "wouter";
import { api, type Schema } from "../api/client";
import { useOffsetList, useOne } from "../api/queries";
import { useFilterList } from "../app/filters";
import { Ago, Empty, Head, Id, Status } from "../components/basics";
import { Choices } from "../components/Choices";
import { type Column, Table } from "../components/Table";
import { Views } from "../components/Views";
import { count, plural } from "../lib/format";
import { linkTo } from "../app/screens";

type Worker = Schema<"WorkerDetails">;

const SNIPPET = `perdure worker --url ${location.origin} my_agents.py`;

export default function Workers() {
  const [statuses, setStatuses] = useFilterList("status");
  const list = useOffsetList(["worker", "list", statuses], (page) =>
    api.get("/api/v1/workers", {
      query: { ...page, status: statuses as Worker["status"][], sort_by: "last_heartbeat_time", sort_order: "desc" },
      signal: page.signal,
    }),
  );
  const stats = useOne(["overview", "stats"], (signal) => api.get("/api/v1/stats", { signal }), { every: 5000 });
  const alive = (stats.data?.workers ?? {}) as Record<string, number>;
  const columns: Column<Worker>[] = [
    { name: "Status", width: "100px", cell: (worker) => <Status status={worker.stopped_at ? "stopped" : worker.draining_since ? "draining" : worker.status} /> },
    { name: "Worker", width: "minmax(120px, 1fr)", cell: (worker) => <Id id={worker.worker_id} /> },
    {
      name: "Holds", width: "minmax(0, 1.500fr)", wide: true,
      cell: ({ held }) => (
        <span className="quiet">
          {held.length > 0 && <span className="num">{held.length} · </span>}
          {held.slice(0, 3).map((each, index) => (
            <span key={each.attempt_id}>
              {index > 0 && ", "}
              <Link className="mono" href={linkTo(each.kind === "run" ? "run" : "rollout", each.rollout_id) ?? "/"} onClick={(event) => event.stopPropagation()}>{each.rollout_id}</Link>
            </span>
          ))}
        </span>
      ),
    },
    { name: "Last claim", width: "90px", end: true, wide: true, cell: (worker) => <span className="quiet"><Ago time={worker.last_dequeue_time} /></span> },
    { name: "Heartbeat", width: "90px", end: true, cell: (worker) => <span className="quiet"><Ago time={worker.last_heartbeat_time} /></span> },
  ];
  return (
    <>
      <Head title="Workers"><Views screen="workers" /></Head>
      {Object.keys(alive).length > 0 && list.rows.length > 0 && (
        <div className="bar" style={{ border: 0, paddingBottom: 0 }}>
          <span className="quiet">{count(alive.alive ?? 0)} alive, {count(alive.active ?? 0)} of {plural(alive.max ?? 0, "slot")} busy</span>
        </div>
      )}
      <div className="bar"><Choices label="Status" choices={["busy", "idle", "unknown"]} chosen={statuses} onChange={setStatuses} /></div>
      <Table
        label="Workers" list={list} columns={columns}
        idOf={(worker) => worker.worker_id}
        linkOf={(worker) => `/workers/${encodeURIComponent(worker.worker_id)}`}
        empty={
          statuses.length ? <Empty title="No worker is like this" text="Take a filter away to see more." />
            : <Empty title="No workers yet" text="A worker claims what is queued and executes it. This starts one:" snippet={SNIPPET} />
        }
      />
    </>
  );
}

