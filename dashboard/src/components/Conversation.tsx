// A conversation: who said what, and each call of a tool together with its result.
import { useEffect, useRef, useState } from "react";
import { count, oneLine } from "../lib/format";
import { type Call, type ChatMessage, parsed } from "../lib/messages";
import { Ago } from "./basics";
import { Icon } from "./Icon";
import { Json } from "./Json";
import { LongText } from "./LongText";
import { inform } from "./Notices";

const STEP = 200;
const AROUND = 20;
/** How many messages are in the page at most. */
const MOST = 2000;

/** `focus` is the id of a message that is scrolled to. */
export function Conversation({ messages, isLive, focus }: { messages: readonly ChatMessage[]; isLive?: boolean; focus?: string }) {
  const [more, setMore] = useState(STEP);
  const results = new Map<string, ChatMessage>();
  const called = new Set<string>();
  for (const message of messages) {
    if (message.answers) results.set(message.answers, message);
    for (const call of message.calls) if (call.id) called.add(call.id);
  }
  // A result stands with its call.
  const rows = messages.filter((message) => !(message.answers && called.has(message.answers)));
  const wanted = focus === undefined ? -1 : rows.findIndex((message) => isAbout(message, focus));
  const shown = wanted < 0 ? more : Math.max(more, rows.length - wanted + AROUND);
  const hidden = Math.max(0, rows.length - shown);
  const place = useRef<HTMLElement>(null);
  const hasFocus = wanted >= 0;
  useEffect(() => void place.current?.scrollIntoView({ block: "center" }), [hasFocus, focus]);
  return (
    <div className="talk">
      {hidden > 0 && <button type="button" className="chip" onClick={() => setMore(shown + STEP)}>show {count(Math.min(STEP, hidden))} earlier of {count(hidden)}</button>}
      {rows.slice(hidden, hidden + MOST).map((message, number) => (
        <Said
          key={message.id ?? hidden + number} message={message} results={results} isWaiting={!!isLive}
          {...(hasFocus && hidden + number === wanted ? { place } : {})}
        />
      ))}
      {rows.length - hidden > MOST && <div className="faint">{count(rows.length - hidden - MOST)} later ones are not shown.</div>}
    </div>
  );

  /** A search may have found the result of a call, which stands with its call. */
  function isAbout(message: ChatMessage, id: string): boolean {
    return message.id === id || message.calls.some((call) => call.id !== null && results.get(call.id)?.id === id);
  }
}

function Said({ message, results, isWaiting, place }: { message: ChatMessage; results: ReadonlyMap<string, ChatMessage>; isWaiting: boolean; place?: React.Ref<HTMLElement> }) {
  const { role, text, calls, reasoning } = message;
  return (
    <article ref={place ?? null} className={`said is-${ROLE_CLASSES[role] ?? "other"}${place ? " is-found" : ""}`} data-role={role}>
      <header>
        <b>{message.name && role !== "user" ? `${role} · ${message.name}` : role}</b>
        {message.failed && <span style={{ color: "var(--bad)" }}>failed</span>}
        {message.note && <span className="faint">{message.note}</span>}
        {message.time ? <span className="faint end-cell"><Ago time={message.time} /></span> : null}
      </header>
      {reasoning && <Folded title="Reasoning"><LongText text={reasoning} /></Folded>}
      {text && <LongText text={text} />}
      {calls.map((call, place) => <Called key={call.id ?? place} call={call} result={call.id ? results.get(call.id) : undefined} isWaiting={isWaiting} />)}
      {!text && !calls.length && !reasoning && <span className="faint">It is empty.</span>}
    </article>
  );
}

const ROLE_CLASSES: Record<string, string> = { user: "user", assistant: "assistant", tool: "tool", system: "system" };

function Called({ call, result, isWaiting }: { call: Call; result: ChatMessage | undefined; isWaiting: boolean }) {
  const state = result ? (result.failed ? "failed" : "done") : isWaiting ? "runs" : "no result";
  const colour = { failed: "var(--bad)", done: "var(--ok)", runs: "var(--run)", "no result": "var(--off)" }[state];
  return (
    <Folded
      title={<><span className="dot" style={{ color: colour }} /> <b className="mono">{call.name}</b> <span className="quiet cut mono">{oneLine(call.arguments, 100)}</span><span className="faint nowrap end-cell">{state}</span></>}
      kind="call"
    >
      <div className="faint">Arguments</div>
      <Json value={call.arguments ?? null} />
      {result && <><div className="faint" style={{ marginTop: 8 }}>Result</div><Result result={result} /></>}
    </Folded>
  );
}

function Result({ result }: { result: ChatMessage }) {
  const [whole, setWhole] = useState<string | null>(null);
  const text = whole ?? result.text;
  const value = parsed(text);
  const { more } = result;
  return (
    <>
      {typeof value === "object" && value !== null ? <Json value={value} /> : <LongText text={text || "It is empty."} mono />}
      {more && whole === null && (
        <button type="button" className="chip" onClick={() => void more().then(setWhole, (error: Error) => inform(error.message, "error"))}>read all of it</button>
      )}
    </>
  );
}

/** Something that is unfolded on demand: nothing of it is in the page before. */
export function Folded({ title, kind, children }: { title: React.ReactNode; kind?: string; children: React.ReactNode }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <div className={`folded${kind ? ` is-${kind}` : ""}`}>
      <button type="button" className="folded-title" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <Icon name={isOpen ? "down" : "right"} size={11} />{title}
      </button>
      {isOpen && <div className="folded-inside">{children}</div>}
    </div>
  );
}
