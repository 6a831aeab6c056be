import { TextInput } from "@mantine/core";
import { useLocation } from "wouter";
import { api, type Schema } from "../api/client";
import { useAction, useCursorList, useFigures } from "../api/queries";
import { useFilterList, useTypedFilter } from "../app/filters";
import { useMay } from "../app/session";
import { Ago, Empty, Head, Id, Status, Tokens, Took } from "../components/basics";
import { Bulk } from "../components/Bulk";
import { Choices } from "../components/Choices";
import { Icon } from "../components/Icon";
import { JsonDialog } from "../components/JsonDialog";
import { type Column, Table } from "../components/Table";
import { Views } from "../components/Views";
import { oneLine, plural } from "../lib/format";

type Rollout = Schema<"ShownRollout">;
type RolloutStatus = Rollout["status"];

export const ENDED: readonly string[] = ["succeeded", "failed", "cancelled"];
const STATUSES: RolloutStatus[] = ["queuing", "preparing", "running", "succeeded", "failed", "cancelled", "requeuing"];

const SNIPPET = `import asyncio
from perdure import LightningStoreClient

async def main():
    store = LightningStoreClient("${location.origin}")
    rollout = await store.enqueue_rollout({"task": "say hello"})
    print(rollout.rollout_id)

asyncio.run(main())`;

const rolloutLink = (id: string): string => `/rollouts/${encodeURIComponent(id)}`;

export default function Rollouts() {
  const [statuses, setStatuses] = useFilterList("status");
  const [typed, setTyped, contains] = useTypedFilter("id");
  const mayWrite = useMay("write");
  const list = useCursorList(["rollout", "list", statuses, contains], (page) =>
    api.get("/api/v1/rollouts", {
      query: { ...page, status: statuses as RolloutStatus[], contains: contains || null },
      signal: page.signal,
    }),
  );
  const figuresOf = useFigures("rollout", list.rows.map((rollout) => rollout.rollout_id));
  const cancel = useBulk("cancel");
  const retry = useBulk("retry");
  const columns: Column<Rollout>[] = [
    { name: "Status", width: "110px", cell: (rollout) => <Status status={rollout.status} /> },
    { name: "Rollout", width: "minmax(140px, 0.5fr)", cell: (rollout) => <Id id={rollout.rollout_id} /> },
    { name: "Input", width: "minmax(0, 2fr)", wide: true, cell: (rollout) => <span className="quiet">{oneLine(rollout.input)}</span> },
    { name: "Worker", width: "minmax(0, 120px)", wide: true, cell: (rollout) => <span className="quiet">{rollout.attempt?.worker_id ?? ""}</span> },
    {
      name: "Attempt", width: "64px", wide: true, end: true,
      cell: (rollout) => <span className="num quiet">{rollout.attempt ? `${rollout.attempt.sequence_id}/${rollout.config?.max_attempts ?? 1}` : ""}</span>,
    },
    {
      name: "Tokens", width: "64px", wide: true, end: true,
      cell: ({ rollout_id }) => <Tokens of={figuresOf.get(rollout_id)} />,
    },
    {
      name: "Reward", width: "60px", wide: true, end: true,
      cell: ({ rollout_id }) => <span className="num">{figuresOf.get(rollout_id)?.reward?.toFixed(2) ?? ""}</span>,
    },
    { name: "Took", width: "72px", end: true, wide: true, cell: (rollout) => <Took from={rollout.attempt?.start_time} to={rollout.end_time ?? rollout.attempt?.end_time} /> },
    { name: "Started", width: "72px", end: true, cell: (rollout) => <span className="quiet"><Ago time={rollout.start_time} /></span> },
  ];
  return (
    <>
      <Head title="Rollouts"><Views screen="rollouts" />{mayWrite && <NewRollout />}</Head>
      <div className="bar">
        <Choices label="Status" choices={STATUSES} chosen={statuses} onChange={setStatuses} />
        <TextInput
          aria-label="Part of the id" placeholder="Part of the id" leftSection={<Icon name="search" size={13} />} w={190} ml="auto"
          value={typed} onChange={(event) => setTyped(event.currentTarget.value)}
        />
      </div>
      <Table
        label="Rollouts"
        list={list}
        columns={columns}
        idOf={(rollout) => rollout.rollout_id}
        linkOf={(rollout) => rolloutLink(rollout.rollout_id)}
        empty={
          statuses.length || contains ? (
            <Empty title="No rollout is like this" text="Take a filter away to see more." />
          ) : (
            <Empty title="No rollouts yet" text="A rollout is a unit of work: queued, claimed by a worker, retried, traced. This makes the first:" snippet={SNIPPET} />
          )
        }
        {...(mayWrite
          ? {
              bulk: (selected: Rollout[], clear: () => void) => (
                <Bulk
                  noun="rollout" cancelText="Their workers are told to stop. A cancelled rollout can be retried."
                  live={selected.filter((each) => !ENDED.includes(each.status)).map((each) => each.rollout_id)}
                  ended={selected.filter((each) => ENDED.includes(each.status)).map((each) => each.rollout_id)}
                  cancel={(ids) => cancel.mutate(ids, { onSuccess: clear })}
                  retry={(ids) => retry.mutate(ids, { onSuccess: clear })}
                />
              ),
            }
          : {})}
      />
    </>
  );
}

function NewRollout() {
  const [, go] = useLocation();
  const enqueue = useAction((input: unknown) => api.post("/api/v1/rollouts", { body: { input } as Schema<"EnqueueRolloutRequest"> }), (made) => `Queued: ${made.rollout_id}`);
  return (
    <JsonDialog
      title="Queue a rollout" about="A worker that claims rollouts gets this input." field="Input" example={{ task: "say hello" }} action="Queue it" isBusy={enqueue.isPending}
      start={(input, done) => enqueue.mutate(input ?? null, { onSuccess: (made) => (done(), go(rolloutLink(made.rollout_id))) })}
    >
      New rollout
    </JsonDialog>
  );
}

/** How many rollouts one request takes. */
const MOST = 1000;

/** Do the same with many rollouts, and tell how many it was done with. */
function useBulk(action: "cancel" | "retry") {
  const done = { cancel: "Cancelled", retry: "Queued again" }[action];
  return useAction(
    async (ids: string[]) => {
      let changed = 0;
      for (let start = 0; start < ids.length; start += MOST) {
        const answer = await api.post(`/api/v1/rollouts/${action}`, { body: { rollout_ids: ids.slice(start, start + MOST) } });
        changed += answer.items.filter((each) => each.status).length;
      }
      return changed;
    },
    (number, ids) => `${done}: ${plural(number, "rollout")}${number < ids.length ? `; ${ids.length - number} had moved on meanwhile` : ""}`,
  );
}
