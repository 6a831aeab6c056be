import { Button, TextInput } from "@mantine/core";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useDeferredValue, useEffect, useMemo, useRef, useState } from "react";
import { api, type Schema } from "../api/client";
import { useAction, useOffsetList, useOne } from "../api/queries";
import { type Step, useSteps } from "../api/steps";
import { useFilter } from "../app/filters";
import { useKeys } from "../app/keys";
import { linkTo, type Params } from "../app/screens";
import { Card, copyText, Facts, Head, Id, Loading, Status, when } from "../components/basics";
import { Conversation } from "../components/Conversation";
import { Icon } from "../components/Icon";
import { Json } from "../components/Json";
import { Problem } from "../components/Problem";
import { compact, count, dollars, duration } from "../lib/format";
import type { ChatMessage } from "../lib/messages";
import { type Bar, type Span, waterfall } from "../lib/waterfall";

/** How many spans are read for one waterfall. */
const MOST = 30_000;
const LIMIT = 1000;
const ROW = 28;
const INDENT = 14;
const MAX_INDENT = 20;
/** Where times stand above the bars, as parts of the whole. */
const TICKS = [0, 0.25, 0.5, 0.75, 1];

/** The colours of kinds of step: calls of models, tools, agents; the others are grey. */
const KIND_TONES: Record<string, string> = { llm: "tone-violet", embedding: "tone-violet", tool: "tone-run", retriever: "tone-run", agent: "tone-ok", reward: "tone-wait", guardrail: "tone-wait", evaluator: "tone-wait" };

/** How many spans are read for the conversation of a trace. */
const MOST_CALLS = 1000;

/** What is read of a whole span; the document leaves spans open. */
interface Full {
  status?: { description?: string | null };
}

export default function TraceScreen({ params }: { params: Params }) {
  const trace_id = params.trace_id ?? "";
  const path = { trace_id };
  const found = useOne(["trace", "one", trace_id], (signal) => api.get("/api/v1/traces/{trace_id}", { path, signal }));
  // Attributes and events are read when a row is opened.
  const list = useOffsetList(["trace", "one", trace_id, "outline"], ({ signal, offset }) =>
    api.get("/api/v1/traces/{trace_id}/outline", { path, query: { limit: LIMIT, offset }, signal }),
  );
  const [view, setView] = useFilter("view");
  const copy = useAction(async () => copyText(JSON.stringify(await allSpans(trace_id), null, 2)), () => null);
  const save = useAction(async () => download(`trace-${trace_id}.json`, JSON.stringify(await allSpans(trace_id), null, 2)), () => "Saved");
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
        <Button variant="default" leftSection={<Icon name="copy" size={14} />} loading={copy.isPending} onClick={() => copy.mutate(undefined)}>Copy as JSON</Button>
        <Button variant="default" leftSection={<Icon name="save" size={14} />} loading={save.isPending} onClick={() => save.mutate(undefined)}>Export</Button>
      </Head>
      <div className="bar">
        <div role="group" aria-label="View" style={{ display: "flex", gap: 6 }}>
          <button type="button" className="chip" aria-pressed={view !== "chat"} onClick={() => setView("")}>waterfall</button>
          <button type="button" className="chip" aria-pressed={view === "chat"} onClick={() => setView("chat")}>chat</button>
        </div>
      </div>
      <div className="body">
        <Card>
          <Facts
            strip
            facts={[
              ["Trace", <Id id={trace.trace_id} />],
              ["Rollout", <Id id={trace.rollout_id} to={linkTo("rollout", trace.rollout_id) ?? "/"} />],
              ["Service", trace.service || null],
              ["Started", when(trace.start_time)],
              ["Took", duration(trace.end_time - trace.start_time)],
              ["Spans", trace.errors ? `${count(trace.spans)}, ${count(trace.errors)} with an error` : count(trace.spans)],
              ["Tokens", (trace.input_tokens ?? 0) + (trace.output_tokens ?? 0) ? `${count(trace.input_tokens ?? 0)} in, ${count(trace.output_tokens ?? 0)} out` : null],
              ["Cost", trace.cost == null ? null : dollars(trace.cost)],
              ["Reward", trace.reward],
            ]}
          />
        </Card>
        {isFull && list.hasMore && <div className="quiet">The first {count(MOST)} spans are shown.</div>}
        {view === "chat" ? <Chat trace_id={trace_id} /> : <Waterfall trace_id={trace_id} spans={list.rows} took={trace.end_time - trace.start_time} />}
      </div>
    </>
  );
}

/** All spans of a trace with what they hold, as far as one page can have them. */
async function allSpans(trace_id: string): Promise<unknown[]> {
  const spans: unknown[] = [];
  for (let offset = 0; offset < MOST; offset += LIMIT) {
    const page = await api.get("/api/v1/traces/{trace_id}/spans", { path: { trace_id }, query: { limit: LIMIT, offset } });
    spans.push(...page.items);
    if (spans.length >= (page.total ?? 0)) break;
  }
  return spans;
}

function download(name: string, text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** What was said in the model calls of a trace, each message once. */
function Chat({ trace_id }: { trace_id: string }) {
  const found = useOne(["trace", "one", trace_id, "calls"], (signal) =>
    api.get("/api/v1/traces/{trace_id}/messages", { path: { trace_id }, query: { limit: MOST_CALLS }, signal }),
  );
  const messages = useMemo(() => (found.data?.items ?? []).map(shown), [found.data]);
  if (found.error && !found.data) return <Problem error={found.error} />;
  if (!found.data) return <Loading />;
  return (
    <Card title={`Conversation (${count(messages.length)})`}>
      {messages.length ? <Conversation messages={messages} /> : <span className="quiet">No span of this trace tells what a model was asked or said.</span>}
      {(found.data.total ?? 0) > MOST_CALLS && <div className="faint">The first {count(MOST_CALLS)} spans were read.</div>}
    </Card>
  );
}

type Said = Schema<"SpanMessage">;

/** A message as a conversation shows it. */
const shown = (said: Said): ChatMessage => ({
  id: null,
  role: said.role,
  text: said.text ?? "",
  calls: (said.calls ?? []).map(({ id, name, arguments: given }) => ({ id: id ?? null, name, arguments: given })),
  answers: said.answers ?? null,
  name: said.name ?? null,
  failed: said.failed ?? false,
  ...(said.reasoning ? { reasoning: said.reasoning } : {}),
});

function Waterfall({ trace_id, spans, took }: { trace_id: string; spans: readonly Span[]; took: number }) {
  const [text, setText] = useState("");
  const [onlyErrors, setOnlyErrors] = useState(false);
  const [errorsFirst, setErrorsFirst] = useState(false);
  const [folded, setFolded] = useState<ReadonlySet<string>>(new Set());
  const [current, setCurrent] = useState(-1);
  const [opened, setOpened] = useFilter("span");
  const open = opened || null;
  const setOpen = (span_id: string | null) => setOpened(span_id ?? "");
  const wanted = useDeferredValue(text.toLowerCase());
  // The rows of a list are a new array with each drawing; what is in it changes with its length.
  const bars = useMemo(() => waterfall(spans), [spans.length, trace_id]);
  const shown = useMemo(() => {
    if (wanted || onlyErrors) return bars.filter((bar) => (!onlyErrors || bar.failed) && bar.span.name.toLowerCase().includes(wanted));
    if (errorsFirst) return [...bars.filter((bar) => bar.failed), ...bars.filter((bar) => !bar.failed)];
    if (!folded.size) return bars;
    const rows: Bar<Span>[] = [];
    for (let place = 0; place < bars.length; place += 1) {
      const bar = bars[place] as Bar<Span>;
      rows.push(bar);
      if (folded.has(bar.span.span_id)) place += bar.inside;
    }
    return rows;
  }, [bars, wanted, onlyErrors, errorsFirst, folded]);
  const frame = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({ count: shown.length, getScrollElement: () => frame.current, estimateSize: () => ROW, overscan: 10 });
  const places = useMemo(() => new Map(spans.map((span, place) => [span.span_id, place])), [spans.length, trace_id]);
  const steps = useSteps(trace_id, virtual.getVirtualItems().map((item) => places.get(shown[item.index]?.span.span_id ?? "") ?? 0));
  const move = (step: number) => {
    const next = Math.max(0, Math.min(shown.length - 1, current + step));
    setCurrent(next);
    virtual.scrollToIndex(next);
  };
  useKeys({
    j: ["Next span", () => move(1)],
    k: ["Previous span", () => move(-1)],
    Enter: ["Open the span", () => shown[current] && setOpen(shown[current].span.span_id)],
    ...(open === null ? {} : { Escape: ["Close the span", () => setOpen(null)] }),
  });
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
          <button type="button" className="chip" aria-pressed={errorsFirst} onClick={() => setErrorsFirst(!errorsFirst)}>errors first</button>
          <TextInput aria-label="Search the spans" placeholder="Search" size="xs" leftSection={<Icon name="search" size={13} />} value={text} onChange={(event) => setText(event.currentTarget.value)} />
        </>
      }
    >
      <div className="fall-heads" aria-hidden="true">
        <span>Span</span>
        <span className="fall-ticks num">{TICKS.map((part) => <span key={part}>{part ? duration(took * part) : "0"}</span>)}</span>
        <span className="fall-took">Took</span>
      </div>
      <div ref={frame} className="waterfall" tabIndex={0} role="group" aria-label="Spans" style={{ height: Math.max(ROW, virtual.getTotalSize()) }}>
        <div style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {virtual.getVirtualItems().map((item) => {
            const bar = shown[item.index] as Bar<Span>;
            const { span } = bar;
            return (
              <div key={span.span_id} data-span={span.span_id} className={`fall${open === span.span_id ? " is-open" : ""}${item.index === current ? " is-current" : ""}`} style={{ transform: `translateY(${item.start}px)` }}>
                <span className="fall-name" style={{ paddingLeft: Math.min(bar.depth, MAX_INDENT) * INDENT }}>
                  {bar.inside > 0
                    ? <button type="button" aria-label={folded.has(span.span_id) ? "Unfold" : "Fold"} onClick={() => fold(span.span_id)}><Icon name={folded.has(span.span_id) ? "right" : "down"} size={11} /></button>
                    : <span className="fall-gap" />}
                  <button type="button" className="cut" style={bar.failed ? { color: "var(--bad)" } : {}} aria-expanded={open === span.span_id} onClick={() => setOpen(open === span.span_id ? null : span.span_id)}>{span.name}</button>
                  <StepOf step={steps.get(span.span_id)} />
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

/** The kind of step that a span is, and what a model call took. */
function StepOf({ step }: { step: Step | undefined }) {
  if (!step) return null;
  const tokens = step.input_tokens + step.output_tokens;
  const cost = step.cost == null ? "" : `, ${dollars(step.cost)}`;
  return (
    <span className="fall-step" data-step={step.kind}>
      {step.kind && <span className={`kind ${KIND_TONES[step.kind] ?? "tone-off"}`} title={step.model || step.kind}>{step.kind}</span>}
      {tokens > 0 && <span className="num quiet" title={`${count(step.input_tokens)} tokens in, ${count(step.output_tokens)} out${cost}`}>{compact(tokens)}<span className="fall-unit"> tokens</span></span>}
      {step.reward != null && <span className="num quiet">{step.reward}</span>}
    </span>
  );
}

/** The whole of one span. */
function Opened({ trace_id, span_id, close }: { trace_id: string; span_id: string; close: () => void }) {
  const found = useOne(["trace", "one", trace_id, "span", span_id], (signal) =>
    api.get("/api/v1/traces/{trace_id}/spans", { path: { trace_id }, query: { span_id, limit: 1 }, signal }),
  );
  const said = useOne(["trace", "one", trace_id, "span", span_id, "messages"], (signal) =>
    api.get("/api/v1/traces/{trace_id}/messages", { path: { trace_id }, query: { span_id, limit: 1 }, signal }),
  );
  if (found.error && !found.data) return <Problem error={found.error} />;
  const span = found.data?.items[0];
  const failure = (span as unknown as Full | undefined)?.status?.description;
  const messages = (said.data?.items ?? []).map(shown);
  return (
    <div className="inside" style={{ borderTop: "1px solid var(--edge)" }}>
      <div style={{ display: "flex", justifyContent: "space-between", marginBottom: 8 }}>
        <Id id={span_id} />
        <Button variant="default" size="xs" onClick={close}>Close</Button>
      </div>
      {failure && <div className="failure break">{failure}</div>}
      {messages.length > 0 && <div style={{ marginBottom: 12 }}><Conversation messages={messages} /></div>}
      {span ? <Json value={span} open={2} /> : <Loading />}
    </div>
  );
}
