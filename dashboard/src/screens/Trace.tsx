import { Button, TextInput } from "@mantine/core";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useDeferredValue, useEffect, useMemo, useRef, useState } from "react";
import { api } from "../api/client";
import { useOffsetList, useOne } from "../api/queries";
import { linkTo, type Params } from "../app/screens";
import { Ago, Card, Facts, Head, Id, Loading, Status } from "../components/basics";
import { Icon } from "../components/Icon";
import { Json } from "../components/Json";
import { Problem } from "../components/Problem";
import { count, duration } from "../lib/format";
import { type Bar, type Span, waterfall } from "../lib/waterfall";

/** How many spans are read for one waterfall. */
const MOST = 30_000;
const LIMIT = 1000;
const ROW = 28;
const INDENT = 14;
const MAX_INDENT = 20;

type Full = Span & Record<string, unknown>;

/** What the list keeps of a span: attributes and events are read when a row is opened. */
const light = ({ span_id, parent_id, name, start_time, end_time, status }: Full): Span =>
  ({ span_id, name, parent_id: parent_id ?? null, start_time: start_time ?? null, end_time: end_time ?? null, status: status ?? null });

export default function TraceScreen({ params }: { params: Params }) {
  const trace_id = params.trace_id ?? "";
  const path = { trace_id };
  const found = useOne(["trace", "one", trace_id], (signal) => api.get("/api/v1/traces/{trace_id}", { path, signal }));
  const list = useOffsetList(["trace", "one", trace_id, "spans"], async ({ signal, offset }) => {
    const page = await api.get("/api/v1/traces/{trace_id}/spans", { path, query: { limit: LIMIT, offset }, signal });
    return { ...page, items: (page.items as unknown as Full[]).map(light) };
  });
  const isFull = list.rows.length >= MOST;
  useEffect(() => {
    if (list.hasMore && !list.isRefreshing && !isFull) list.loadMore();
  }, [list, isFull]);
  if (found.error && !found.data) return <Problem error={found.error} id={trace_id} />;
  if (!found.data) return <Loading />;
  const trace = found.data;
  return (
    <>
      <Head title={trace.name} label={trace.name} above={["Traces", "/traces"]}>
        <Status status={trace.errors ? "error" : "ok"} />
      </Head>
      <div className="body">
        <Card title="Facts">
          <Facts
            facts={[
              ["Trace", <Id id={trace.trace_id} />],
              ["Rollout", <Id id={trace.rollout_id} to={linkTo("rollout", trace.rollout_id) ?? "/"} />],
              ["Service", trace.service || null],
              ["Started", <Ago time={trace.start_time} />],
              ["Took", duration(trace.end_time - trace.start_time)],
              ["Spans", `${count(trace.spans)}, ${count(trace.errors)} with an error`],
              ["Tokens", `${count(trace.input_tokens ?? 0)} in, ${count(trace.output_tokens ?? 0)} out`],
              ["Reward", trace.reward],
            ]}
          />
        </Card>
        {isFull && list.hasMore && <div className="quiet">The first {count(MOST)} spans are shown.</div>}
        <Waterfall trace_id={trace_id} spans={list.rows} />
      </div>
    </>
  );
}

function Waterfall({ trace_id, spans }: { trace_id: string; spans: readonly Span[] }) {
  const [text, setText] = useState("");
  const [onlyErrors, setOnlyErrors] = useState(false);
  const [folded, setFolded] = useState<ReadonlySet<string>>(new Set());
  const [open, setOpen] = useState<string | null>(null);
  const wanted = useDeferredValue(text.toLowerCase());
  // The rows of a list are a new array with each drawing; what is in it changes with its length.
  const bars = useMemo(() => waterfall(spans), [spans.length, trace_id]);
  const shown = useMemo(() => {
    if (wanted || onlyErrors) return bars.filter((bar) => (!onlyErrors || bar.failed) && bar.span.name.toLowerCase().includes(wanted));
    if (!folded.size) return bars;
    const rows: Bar<Span>[] = [];
    for (let place = 0; place < bars.length; place += 1) {
      const bar = bars[place] as Bar<Span>;
      rows.push(bar);
      if (folded.has(bar.span.span_id)) place += bar.inside;
    }
    return rows;
  }, [bars, wanted, onlyErrors, folded]);
  const frame = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({ count: shown.length, getScrollElement: () => frame.current, estimateSize: () => ROW, overscan: 10 });
  const fold = (id: string) => {
    const next = new Set(folded);
    if (!next.delete(id)) next.add(id);
    setFolded(next);
  };
  return (
    <Card
      title={`Spans (${count(spans.length)})`} flush
      side={
        <>
          <button type="button" className="chip" aria-pressed={onlyErrors} onClick={() => setOnlyErrors(!onlyErrors)}>errors</button>
          <TextInput aria-label="Search the spans" placeholder="Search" size="xs" leftSection={<Icon name="search" size={13} />} value={text} onChange={(event) => setText(event.currentTarget.value)} />
        </>
      }
    >
      <div ref={frame} className="waterfall" tabIndex={0} role="group" aria-label="Spans">
        <div style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {virtual.getVirtualItems().map((item) => {
            const bar = shown[item.index] as Bar<Span>;
            const { span } = bar;
            return (
              <div key={span.span_id} data-span={span.span_id} className={`fall${open === span.span_id ? " is-open" : ""}`} style={{ transform: `translateY(${item.start}px)` }}>
                <span className="fall-name" style={{ paddingLeft: Math.min(bar.depth, MAX_INDENT) * INDENT }}>
                  {bar.inside > 0
                    ? <button type="button" aria-label={folded.has(span.span_id) ? "Unfold" : "Fold"} onClick={() => fold(span.span_id)}><Icon name={folded.has(span.span_id) ? "right" : "down"} size={11} /></button>
                    : <span className="fall-gap" />}
                  <button type="button" className="cut" style={bar.failed ? { color: "var(--bad)" } : {}} aria-expanded={open === span.span_id} onClick={() => setOpen(open === span.span_id ? null : span.span_id)}>{span.name}</button>
                </span>
                <span className="fall-line" aria-hidden="true">
                  <span style={{ left: `${bar.offset * 100}%`, width: `max(2px, ${bar.width * 100}%)`, background: bar.failed ? "var(--bad)" : "var(--accent)" }} />
                </span>
                <span className="num quiet fall-took">{span.start_time && span.end_time ? duration(span.end_time - span.start_time) : ""}</span>
              </div>
            );
          })}
        </div>
      </div>
      {open !== null && <Opened trace_id={trace_id} span_id={open} close={() => setOpen(null)} />}
    </Card>
  );
}

/** The whole of one span. */
function Opened({ trace_id, span_id, close }: { trace_id: string; span_id: string; close: () => void }) {
  const found = useOne(["trace", "one", trace_id, "span", span_id], (signal) =>
    api.get("/api/v1/traces/{trace_id}/spans", { path: { trace_id }, query: { span_id, limit: 1 }, signal }),
  );
  if (found.error && !found.data) return <Problem error={found.error} />;
  const span = found.data?.items[0];
  return (
    <div className="inside" style={{ borderTop: "1px solid var(--edge)" }}>
      <div style={{ display: "flex", justifyContent: "space-between", marginBottom: 8 }}>
        <Id id={span_id} />
        <Button variant="default" size="xs" onClick={close}>Close</Button>
      </div>
      {span ? <Json value={span} open={2} /> : <Loading />}
    </div>
  );
}
