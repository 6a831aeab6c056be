import { Button, Textarea } from "@mantine/core";
import { useState } from "react";
import { api } from "../api/client";
import { useAction, useOne } from "../api/queries";
import { linkTo, type Params } from "../app/screens";
import { useMay } from "../app/session";
import { Card, Facts, Head, Id, Loading, Status, when } from "../components/basics";
import { LongText } from "../components/LongText";
import { Problem } from "../components/Problem";

export default function ApprovalScreen({ params }: { params: Params }) {
  const approval_id = params.approval_id ?? "";
  const path = { approval_id };
  const mayWrite = useMay("write");
  const [text, setText] = useState("");
  const found = useOne(["approval", "one", approval_id], (signal) => api.get("/api/v1/approvals/{approval_id}", { path, signal }));
  const comment = text.trim() || null;
  const approve = useAction(() => api.post("/api/v1/approvals/{approval_id}/approve", { path, body: { comment } }), () => "Approved");
  const reject = useAction(() => api.post("/api/v1/approvals/{approval_id}/reject", { path, body: { reason: comment } }), () => "Rejected");
  const reply = useAction(() => api.post("/api/v1/approvals/{approval_id}/reply", { path, body: { text } }), () => "Replied");
  if (found.error && !found.data) return <Problem error={found.error} id={approval_id} />;
  if (!found.data) return <Loading />;
  const approval = found.data;
  const isBusy = approve.isPending || reject.isPending || reply.isPending;
  return (
    <>
      <Head title={approval.label} label={approval.label} above={["Approvals", "/approvals"]}>
        <Status status={approval.status} />
      </Head>
      <div className="body">
        <div className="grid">
          <div className="stack span8">
          <Card title={approval.kind === "reply" ? "Asks for a reply" : "Asks for an approval"}>
            <LongText text={approval.summary || "It says nothing more."} />
          </Card>
          {approval.artifact && <Card title="What it is about"><LongText text={approval.artifact} mono /></Card>}
          {mayWrite && approval.status === "pending" && (
            <Card title="Your answer">
              <Textarea
                aria-label={approval.kind === "reply" ? "Reply" : "Comment"} autosize minRows={3} maxRows={14} value={text}
                placeholder={approval.kind === "reply" ? "The phase goes on with this text." : "A comment, or the reason; may be empty."}
                onChange={(event) => setText(event.currentTarget.value)}
              />
              <div style={{ display: "flex", gap: 8, marginTop: 10, justifyContent: "flex-end" }}>
                {approval.kind === "reply" && approval.artifact && <Button variant="subtle" disabled={isBusy} onClick={() => setText(approval.artifact ?? "")}>Edit what it is about</Button>}
                <Button variant="default" disabled={isBusy} onClick={() => reject.mutate(undefined)}>Reject</Button>
                {approval.kind === "reply"
                  ? <Button disabled={isBusy || !comment} onClick={() => reply.mutate(undefined)}>Reply</Button>
                  : <Button disabled={isBusy} onClick={() => approve.mutate(undefined)}>Approve</Button>}
              </div>
            </Card>
          )}
          {approval.response && <Card title="Answer"><LongText text={approval.response} /></Card>}
          </div>
          <Card title="Facts" className="span4">
            <Facts
              facts={[
                ["Workflow", approval.workflow_name],
                ["Run", <Id id={approval.workflow_run_id} to={linkTo("workflow_run", approval.workflow_run_id) ?? "/"} />],
                ["Gate", approval.gate],
                ["Approval", <Id id={approval.approval_id} />],
                ["For", approval.assignees.join(", ") || null],
                ["Asked", when(approval.created_at)],
                ["Asked by", approval.requested_by],
                ["Expires", when(approval.expires_at)],
                ["On expiry", approval.expires_at ? approval.on_expiry : null],
                ["Answered", when(approval.responded_at)],
                ["Answered by", approval.responded_by],
                ["With", approval.responded_with && (approval.responded_with_id ? `${approval.responded_with} ${approval.responded_with_id}` : approval.responded_with)],
                ["May be answered by", approval.answer_by?.length ? approval.answer_by.join(", ") : null],
              ]}
            />
          </Card>
        </div>
      </div>
    </>
  );
}
