// What an attempt did, in short: its traces, and the errors in them with their messages.
import { Link } from "wouter";
import { api } from "../api/client";
import { useOne } from "../api/queries";
import { linkTo } from "../app/screens";
import { oneLine, plural } from "../lib/format";
import { Card, Status } from "./basics";

/** What is read of a span here; the document leaves spans open. */
interface Span {
  span_id: string;
  parent_id?: string | null;
  trace_id: string;
  name: string;
  status?: { status_code?: string; description?: string | null } | null;
  events?: { attributes?: Record<string, unknown> }[];
}

const READ = 200;
const ERRORS = 5;

export function Traced({ rollout_id, attempt_id }: { rollout_id: string; attempt_id?: string | null | undefined }) {
  const found = useOne(["rollout", "one", rollout_id, "traced", attempt_id ?? ""], (signal) =>
    api.get("/api/v1/rollouts/{rollout_id}/spans", { path: { rollout_id }, query: { attempt_id: attempt_id ?? null, limit: READ }, signal }),
  ).data;
  const spans = (found?.items ?? []) as unknown as Span[];
  if (!found || !spans.length) return null;
  const traces = [...new Set(spans.map((span) => span.trace_id))];
  return (
    <Card title={`Trace of the last attempt (${plural(found.total ?? 0, "span")})`} className="span12" flush>
      <ul className="rows">
        {causes(spans).slice(0, ERRORS).map((span) => (
          <li key={span.span_id}>
            <Link href={`${linkTo("trace", span.trace_id) ?? "/"}?span=${encodeURIComponent(span.span_id)}`} data-cause>
              <Status status="error" />
              <span className="nowrap">{span.name}</span>
              <span className="quiet cut">{oneLine(messageOf(span), 240)}</span>
            </Link>
          </li>
        ))}
        {traces.slice(0, ERRORS).map((trace_id) => (
          <li key={trace_id}><Link href={linkTo("trace", trace_id) ?? "/"}><span className="link">Open the trace</span><span className="quiet mono cut">{trace_id}</span></Link></li>
        ))}
      </ul>
    </Card>
  );
}

const isFailed = (span: Span): boolean => span.status?.status_code === "ERROR";

/** The failed spans that no other failed span is the cause of. */
function causes(spans: readonly Span[]): Span[] {
  const failed = spans.filter(isFailed);
  const parents = new Set(failed.map((span) => span.parent_id));
  return failed.filter((span) => !parents.has(span.span_id));
}

function messageOf(span: Span): unknown {
  const thrown = span.events?.map((event) => event.attributes?.["exception.message"]).find(Boolean);
  return span.status?.description || thrown || "";
}
