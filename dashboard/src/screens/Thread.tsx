import { Button, Modal, Select } from "@mantine/core";
import { useEffect, useRef, useState } from "react";
import { useLocation } from "wouter";
import { api, ApiError, type Schema } from "../api/client";
import { useAction, useOne } from "../api/queries";
import { type Live, useRunStream, withGrowing } from "../api/runStream";
import { useFilter } from "../app/filters";
import { linkTo, type Params } from "../app/screens";
import { useMay } from "../app/session";
import { Ago, Card, Head, Id, isEmpty, Loading, Status, Took } from "../components/basics";
import { type Asked, Composer, STREAM_MODES, useAssistants } from "../components/Composer";
import { confirm } from "../components/Confirm";
import { Conversation } from "../components/Conversation";
import { Dag } from "../components/Dag";
import { Icon } from "../components/Icon";
import { Interrupts } from "../components/Interrupts";
import { Json } from "../components/Json";
import { Problem } from "../components/Problem";
import { JsonField } from "../components/SchemaForm";
import { oneLine } from "../lib/format";
import { messagesIn } from "../lib/messages";
import { LIVE_RUNS } from "./Runs";

type Run = Schema<"Run">;
type Checkpoint = Schema<"Checkpoint">;

const MOST_STATES = 500;
const MOST_RUNS = 50;
const MOST_NODES = 200;

export default function ThreadScreen({ params }: { params: Params }) {
  const thread_id = params.thread_id ?? "";
  const path = { thread_id };
  const mayWrite = useMay("write");
  const [, navigate] = useLocation();
  const [at, setAt] = useFilter("at");
  // What is being deleted is not read again.
  const [gone, setGone] = useState(false);
  const kept = { enabled: !gone };
  const found = useOne(["thread", "one", thread_id], (signal) => api.get("/api/v1/threads/{thread_id}", { path, signal }), kept);
  const runs = useOne(["run", "of thread", thread_id], (signal) => api.get("/api/v1/threads/{thread_id}/runs", { path, query: { limit: MOST_RUNS }, signal }), kept).data?.items;
  const states = useOne(["thread", "one", thread_id, "history"], (signal) =>
    api.get("/api/v1/threads/{thread_id}/history", { path, query: { limit: MOST_STATES, values: false }, signal }), kept,
  ).data?.items;
  const shown = useOne(
    ["thread", "one", thread_id, "state", at],
    (signal) => api.get("/api/v1/threads/{thread_id}/state", { path, query: { checkpoint_id: at || null }, signal }),
    kept,
  );
  const assistants = useAssistants() ?? [];
  const [chosen, choose] = useState<string | null>(null);
  const run = runs?.find((each) => LIVE_RUNS.includes(each.status)) ?? null;
  const live = useRunStream(at ? null : (run?.run_id ?? null));
  const start = useAction(
    (asked: Asked) => api.post("/api/v1/runs", { body: { ...asked, thread_id, ...(at ? { checkpoint_id: at } : {}) } }),
    () => null,
  );
  const stop = useAction((run_id: string) => api.post("/api/v1/runs/{run_id}/cancel", { path: { run_id } }), () => "Stopped");
  const copy = useAction(() => api.post("/api/v1/threads/{thread_id}/copy", { path }), () => "Copied");
  const remove = useAction(
    async () => {
      setGone(true);
      await api.delete("/api/v1/threads/{thread_id}", { path }).catch((error: unknown) => {
        setGone(false);
        throw error;
      });
      navigate("/threads");
    },
    () => "Deleted",
  );
  if (found.error && !found.data) return <Problem error={found.error} id={thread_id} />;
  if (!found.data) return <Loading />;
  const thread = found.data;
  const state = shown.data ?? null;
  const isBusy = run !== null;
  const named = thread.metadata.assistant_id;
  const assistant_id = chosen ?? runs?.[0]?.assistant_id ?? (typeof named === "string" ? named : (assistants[0]?.assistant_id ?? ""));
  const last = runs?.find((each) => each.assistant_id === assistant_id)?.kwargs;
  const configured = { ...(last?.context ? { context: last.context } : {}), ...(last?.config && Object.keys(last.config).length ? { config: last.config } : {}) };
  // A run that goes on is configured as the one before it.
  const ask = (asked: Partial<Asked>) =>
    start.mutate(
      { assistant_id, ...configured, stream_mode: STREAM_MODES, multitask_strategy: "enqueue", inherit_metadata: true, ...asked },
      { onSuccess: () => setAt("") },
    );
  const isPast = at !== "" && at !== states?.[0]?.checkpoint_id;
  const canGoOn = mayWrite && !isBusy && !!state?.next?.length && (isPast || !thread.interrupts?.length);
  return (
    <>
      <Head title={<Id id={thread_id} />} label={thread_id} above={["Threads", "/threads"]}>
        <Status status={thread.status} />
        {mayWrite && run && <Button variant="default" leftSection={<Icon name="cancel" size={14} />} loading={stop.isPending} onClick={() => stop.mutate(run.run_id)}>Stop</Button>}
        {mayWrite && (
          <Button variant="default" leftSection={<Icon name="copy" size={14} />} loading={copy.isPending} onClick={() => copy.mutate(undefined, { onSuccess: (made) => navigate(linkTo("thread", made.thread_id) ?? "/") })}>
            Copy
          </Button>
        )}
        {mayWrite && (
          <Button
            variant="default" loading={remove.isPending}
            onClick={() => confirm({ title: "Delete this thread?", text: "Its states and runs are deleted too. Traces stay.", action: "Delete it", danger: true, then: () => remove.mutate(undefined) })}
          >
            Delete
          </Button>
        )}
      </Head>
      <div className="studio">
        <div className="studio-talk">
          <Talk values={state?.values} live={live} runs={runs ?? []} isBusy={isBusy && !isPast} />
          {thread.error && !isPast && <div className="card studio-note" style={{ color: "var(--bad)" }}><b>{thread.error.error}</b> <span className="break">{oneLine(thread.error.message, 600)}</span></div>}
          {mayWrite && !isPast && !isBusy && !!thread.interrupts?.length && (
            <Interrupts interrupts={thread.interrupts} isBusy={start.isPending} onAnswer={(resume) => ask({ command: { resume } })} />
          )}
          {mayWrite && (
            <Composer
              assistants={assistants} assistant_id={assistant_id} onAssistant={choose} isBusy={start.isPending} onSend={ask} last={configured}
              note={isPast ? `Goes on from step ${state?.step ?? ""}` : isBusy ? "Waits for the run before it" : ""}
            />
          )}
        </div>
        <div className="studio-side">
          <History states={states ?? []} at={at} setAt={setAt} state={state}>
            {canGoOn && <Button variant="default" loading={start.isPending} onClick={() => ask({ input: null })}>Go on from here</Button>}
            {mayWrite && state && !isBusy && <Edit thread_id={thread_id} state={state} assistant_id={assistant_id} onDone={(goOn) => (setAt(""), goOn && ask({ input: null }))} />}
          </History>
          {assistant_id && <Graph assistant_id={assistant_id} state={state} live={live} isBusy={isBusy && !isPast} isWaiting={!isPast && !!thread.interrupts?.length} />}
          <Card title={at ? `State of step ${state?.step ?? ""}` : "State"}>
            {state ? <Json value={state.values ?? null} open={1} /> : <span className="quiet">It has no state yet.</span>}
          </Card>
          {live.told.length > 0 && <Events live={live} />}
          <Runs runs={runs ?? []} />
          {!isEmpty(thread.metadata) && <Card title="Metadata"><Json value={thread.metadata} open={1} /></Card>}
        </div>
      </div>
    </>
  );
}

/** The messages of a state; what has none is shown as what its runs were asked. */
function Talk({ values, live, runs, isBusy }: { values: unknown; live: Live; runs: readonly Run[]; isBusy: boolean }) {
  const end = useRef<HTMLDivElement>(null);
  const stored = messagesIn(values);
  const messages = isBusy ? withGrowing(live.messages ?? stored ?? [], live) : stored;
  const length = messages?.reduce((sum, message) => sum + message.text.length + message.calls.length, messages.length) ?? runs.length;
  useEffect(() => void end.current?.scrollIntoView({ block: "end" }), [length]);
  return (
    <div className="studio-scroll" tabIndex={0} role="log" aria-label="Conversation">
      {messages?.length ? <Conversation messages={messages} isLive={isBusy} />
        : runs.length ? <div className="talk">{runs.toReversed().map((run) => <Asking key={run.run_id} run={run} />)}{values !== undefined && values !== null && !isBusy && <article className="said is-assistant"><header><b>output</b></header><Json value={values} /></article>}</div>
        : <div className="empty">Nothing has been said here yet.</div>}
      {isBusy && <div className="quiet studio-busy"><span className="badge tone-run is-live"><span className="dot" />{[...(live.nodes ?? [])].join(", ") || "running"}</span></div>}
      <div ref={end} />
    </div>
  );
}

function Asking({ run }: { run: Run }) {
  return (
    <article className="said is-user">
      <header><b>input</b><Status status={run.status} /><span className="faint end-cell"><Ago time={run.created_at} /></span></header>
      <Json value={run.kwargs.command ?? run.kwargs.input ?? null} />
    </article>
  );
}

function History({ states, at, setAt, state, children }: { states: readonly Checkpoint[]; at: string; setAt: (id: string) => void; state: Checkpoint | null; children: React.ReactNode }) {
  if (!states.length) return null;
  const place = at ? states.findIndex((each) => each.checkpoint_id === at) : 0;
  const last = states.length - 1;
  const source = typeof state?.metadata?.source === "string" ? state.metadata.source : "";
  return (
    <Card title={`History (${states.length}${states.length === MOST_STATES ? "+" : ""})`} side={at ? <button type="button" className="chip" onClick={() => setAt("")}>latest</button> : null}>
      <input
        type="range" className="slider" aria-label="Step of the history" min={0} max={last} step={1} value={place < 0 ? last : last - place} disabled={!last}
        aria-valuetext={state ? `Step ${state.step}` : ""}
        onChange={(event) => {
          const next = last - Number(event.currentTarget.value);
          setAt(next === 0 ? "" : (states[next]?.checkpoint_id ?? ""));
        }}
      />
      <div className="studio-step">
        <span>Step {state?.step ?? "–"}</span>
        <span className="quiet">{source}</span>
        {state?.next?.length ? <span className="quiet cut">next: {state.next.join(", ")}</span> : <span className="quiet">at its end</span>}
        <span className="faint end-cell"><Ago time={state?.created_at} /></span>
      </div>
      <div style={{ display: "flex", gap: 8, flexWrap: "wrap" }}>{children}</div>
    </Card>
  );
}

function useDrawing(assistant_id: string) {
  return useOne(["assistant", "one", assistant_id, "graph"], (signal) => api.get("/api/v1/assistants/{assistant_id}/graph", { path: { assistant_id }, signal }));
}

const nameOf = (node: Record<string, unknown>): string => String(node.id ?? "");

function Graph({ assistant_id, state, live, isBusy, isWaiting }: { assistant_id: string; state: Checkpoint | null; live: Live; isBusy: boolean; isWaiting: boolean }) {
  const drawn = useDrawing(assistant_id);
  if (drawn.error && !drawn.data) {
    const isUnknown = drawn.error instanceof ApiError && (drawn.error.isMissing || drawn.error.code === "agent_unavailable");
    return <Card title="Graph"><span className="quiet">{isUnknown ? "Nobody has told yet how this agent is drawn." : drawn.error.message}</span></Card>;
  }
  if (!drawn.data) return null;
  const next = new Set(state?.next ?? []);
  const running = isBusy ? (live.nodes ?? next) : new Set<string>();
  const statusOf = (name: string): string => (running.has(name) ? "running" : !isBusy && next.has(name) ? (isWaiting ? "interrupted" : "next") : "");
  const { nodes, edges } = drawn.data;
  return (
    <Card title="Graph">
      <Dag
        label="The graph of the assistant" isVertical
        nodes={nodes.slice(0, MOST_NODES).map((node) => {
          const name = nameOf(node);
          const inward = edges.filter((edge) => String(edge.target) === name);
          return {
            name, label: name.replace(/^__(start|end)__$/, "$1"), status: statusOf(name),
            depends_on: inward.map((edge) => String(edge.source)),
            sometimes: inward.filter((edge) => edge.conditional === true).map((edge) => String(edge.source)),
          };
        })}
      />
    </Card>
  );
}

/** Changes a state: what was changed is given to the graph, as if a node had written it. */
function Edit({ thread_id, state, assistant_id, onDone }: { thread_id: string; state: Checkpoint; assistant_id: string; onDone: (goOn: boolean) => void }) {
  const [isOpen, setOpen] = useState(false);
  const [values, setValues] = useState<unknown>(undefined);
  const [isValid, setValid] = useState(true);
  const [node, setNode] = useState<string | null>(null);
  const nodes = (useDrawing(assistant_id).data?.nodes ?? []).map(nameOf).filter((name) => name && !/^__(start|end)__$/.test(name));
  const save = useAction(
    () => api.post("/api/v1/threads/{thread_id}/graph-state", { path: { thread_id }, body: { values: changed(state.values, values), as_node: node, checkpoint_id: state.checkpoint_id } }),
    () => "A new state was made",
  );
  const submit = (goOn: boolean) =>
    save.mutate(undefined, {
      onSuccess: () => {
        setOpen(false);
        onDone(goOn);
      },
    });
  return (
    <>
      <Button
        variant="default"
        onClick={() => {
          setValues(state.values);
          setValid(true);
          setOpen(true);
        }}
      >
        Edit and fork
      </Button>
      <Modal opened={isOpen} onClose={() => setOpen(false)} title={`Edit the state of step ${state.step}`} size="xl" closeButtonProps={{ "aria-label": "Close" }}>
        <p className="quiet" style={{ marginTop: 0 }}>A new state follows this one; this one stays. Only what you change is written.</p>
        {isOpen && <JsonField label="Values" value={state.values ?? {}} onChange={setValues} onValid={setValid} minRows={12} />}
        {nodes.length > 0 && <Select mt="sm" label="As if written by" placeholder="The graph decides" clearable data={nodes} value={node} onChange={setNode} />}
        <div style={{ display: "flex", gap: 8, justifyContent: "flex-end", marginTop: 14 }}>
          <Button variant="default" disabled={!isValid} loading={save.isPending} onClick={() => submit(false)}>Save</Button>
          <Button disabled={!isValid} loading={save.isPending} onClick={() => submit(true)}>Save and go on</Button>
        </div>
      </Modal>
    </>
  );
}

/** The keys of an object that differ; of anything else the whole. */
function changed(before: unknown, after: unknown): unknown {
  const isPlain = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);
  if (!isPlain(before) || !isPlain(after)) return after;
  return Object.fromEntries(Object.entries(after).filter(([key, value]) => JSON.stringify(before[key]) !== JSON.stringify(value)));
}

function Events({ live }: { live: Live }) {
  return (
    <Card title="Live events" flush>
      <ul className="rows studio-events" tabIndex={0} aria-label="Live events">
        {live.told.toReversed().map((event) => (
          <li key={event.number}><div><span className="mono nowrap">{event.name}</span><span className="quiet cut mono">{oneLine(event.data, 200)}</span></div></li>
        ))}
      </ul>
    </Card>
  );
}

function Runs({ runs }: { runs: readonly Run[] }) {
  if (!runs.length) return null;
  return (
    <Card title={`Runs (${runs.length}${runs.length === MOST_RUNS ? "+" : ""})`} flush>
      <ul className="rows">
        {runs.map((run) => (
          <li key={run.run_id}>
            <div>
              <Status status={run.status} />
              <Id id={run.run_id} to={linkTo("run", run.run_id) ?? "/"} />
              <span className="quiet nowrap end-cell"><Took from={run.created_at} to={run.ended_at ?? (LIVE_RUNS.includes(run.status) ? null : run.updated_at)} /></span>
              <span className="quiet"><Ago time={run.created_at} /></span>
            </div>
          </li>
        ))}
      </ul>
    </Card>
  );
}
