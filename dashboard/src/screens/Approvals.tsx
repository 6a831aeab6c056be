import { api, type Schema } from "../api/client";
import { useCursorList } from "../api/queries";
import { useFilter } from "../app/filters";
import { Ago, Empty, Head, Id, Status } from "../components/basics";
import { Choices } from "../components/Choices";
import { type Column, Table } from "../components/Table";
import { Views } from "../components/Views";
import { oneLine } from "../lib/format";

type Approval = Schema<"Approval">;

const STATUSES: Approval["status"][] = ["pending", "approved", "rejected", "expired", "withdrawn"];
const SNIPPET = `name: release
phases:
  - name: plan
    prompt: Plan the release.
  - name: agree
    type: approval
    depends_on: [plan]`;

export default function Approvals() {
  // Without a filter the inbox shows what waits; "any" shows all of them.
  const [chosen, choose] = useFilter("status");
  const status = chosen === "any" ? null : ((chosen || "pending") as Approval["status"]);
  const list = useCursorList(["approval", "list", status], ({ signal, ...page }) =>
    api.get("/api/v1/approvals", { query: { ...page, status }, signal }),
  );
  const columns: Column<Approval>[] = [
    { name: "Status", width: "105px", cell: (approval) => <Status status={approval.status} /> },
    { name: "Asks", width: "minmax(0, 2fr)", cell: (approval) => oneLine(approval.summary) || approval.label },
    { name: "Workflow", width: "minmax(0, 1fr)", wide: true, cell: (approval) => `${approval.workflow_name} · ${approval.label}` },
    { name: "Approval", width: "minmax(0, 1fr)", wide: true, cell: (approval) => <span className="quiet"><Id id={approval.approval_id} /></span> },
    { name: "Expires", width: "80px", end: true, wide: true, cell: (approval) => <span className="quiet"><Ago time={approval.expires_at} /></span> },
    { name: "Asked", width: "80px", end: true, cell: (approval) => <span className="quiet"><Ago time={approval.created_at} /></span> },
  ];
  return (
    <>
      <Head title="Approvals"><Views screen="approvals" /></Head>
      <div className="bar">
        <Choices single label="Status" choices={STATUSES} chosen={status ? [status] : []} onChange={([one]) => choose(one ?? "any")} />
      </div>
      <Table
        label="Approvals" list={list} columns={columns}
        idOf={(approval) => approval.approval_id}
        linkOf={(approval) => `/approvals/${encodeURIComponent(approval.approval_id)}`}
        empty={
          status === "pending" ? <Empty title="Nothing waits for you" text="A phase of the type approval asks here and waits for an answer:" snippet={SNIPPET} />
            : <Empty title="No approval is like this" text="Take the filter away to see more." />
        }
      />
    </>
  );
}
