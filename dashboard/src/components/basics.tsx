// Small parts that every screen uses.
import { ActionIcon, Loader } from "@mantine/core";
import { type ReactNode, useEffect, useState } from "react";
import { Link } from "wouter";
import { Store, useStore } from "../app/store";
import { ago, compact, count, duration, exact } from "../lib/format";
import { Icon } from "./Icon";
import { inform } from "./Notices";

type Tone = "ok" | "bad" | "run" | "wait" | "off" | "violet";

/** The tone of every status of every kind. A status that is not listed is shown in grey. */
const TONES: Record<string, Tone> = {
  succeeded: "ok", success: "ok", done: "ok", completed: "ok", approved: "ok", delivered: "ok", idle: "ok", enabled: "ok", ok: "ok", replied: "ok",
  failed: "bad", error: "bad", timeout: "bad", dead: "bad", rejected: "bad", unresponsive: "bad", degraded: "bad",
  running: "run", busy: "run", preparing: "run", delivering: "run", active: "run", dispatched: "run",
  queuing: "wait", requeuing: "wait", pending: "wait", waiting: "wait", paused: "wait", queued: "wait", draining: "wait", expired: "wait",
  interrupted: "violet", rollback: "violet",
};
const LIVE = new Set(["running", "busy", "preparing", "delivering"]);

/** A status as a word and a colour; `tone` is another status whose colour it has. */
export function Status({ status, tone = status }: { status: string; tone?: string | undefined }) {
  return (
    <span className={`badge tone-${TONES[tone] ?? "off"}${LIVE.has(status) ? " is-live" : ""}`} data-status={status}>
      <span className="dot" />
      {status}
    </span>
  );
}

export const toneColor = (status: string): string => `var(--${TONES[status] ?? "off"})`;

export function copyText(text: string): void {
  const done = () => inform("Copied");
  // The clipboard is only there for pages that came over TLS or from this machine.
  if (navigator.clipboard) {
    navigator.clipboard.writeText(text).then(done, (error: Error) => inform(error.message, "error"));
    return;
  }
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  done();
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  return (
    <ActionIcon
      size={20}
      className="copy"
      aria-label={label}
      onClick={(event) => {
        event.stopPropagation();
        event.preventDefault();
        copyText(text);
      }}
    >
      <Icon name="copy" size={13} />
    </ActionIcon>
  );
}

/** An id that can be copied; with `to` it is a link. */
export function Id({ id, to }: { id: string; to?: string }) {
  return (
    <span className="id">
      {to === undefined ? (
        <span className="mono cut" title={id}>{id}</span>
      ) : (
        <Link href={to} className="mono cut" title={id} onClick={(event) => event.stopPropagation()}>{id}</Link>
      )}
      <CopyButton text={id} label={`Copy ${id}`} />
    </span>
  );
}

const clock = new Store(Date.now() / 1000);
setInterval(() => document.visibilityState === "visible" && clock.set(Date.now() / 1000), 1000);
/** The time in seconds, once a second. */
export const useNow = () => useStore(clock);

/** A time, in seconds or as ISO 8601. */
export function Ago({ time: given }: { time: number | string | null | undefined }) {
  const now = useNow();
  if (given === null || given === undefined) return <span className="faint">–</span>;
  const time = typeof given === "string" ? Date.parse(given) / 1000 : given;
  return (
    <time dateTime={new Date(time * 1000).toISOString()} title={exact(time)} className="num nowrap">
      {ago(time, now)}
    </time>
  );
}

/** How long something took, or takes until now. */
export function Took({ from, to }: { from: number | null | undefined; to: number | null | undefined }) {
  const now = useNow();
  if (from === null || from === undefined) return <span className="faint">–</span>;
  return <span className="num nowrap">{duration(Math.max(0, (to ?? now) - from))}</span>;
}

/** The tokens of a row, in and out. */
export function Tokens({ of: figures }: { of: { input_tokens: number; output_tokens: number } | undefined }) {
  const sum = figures ? figures.input_tokens + figures.output_tokens : 0;
  return figures && sum > 0 ? <span className="num quiet" title={`${count(figures.input_tokens)} in, ${count(figures.output_tokens)} out`}>{compact(sum)}</span> : null;
}

/** Whether there is nothing in a value that is shown as JSON. */
export const isEmpty = (value: unknown): boolean =>
  value === null || value === undefined || (typeof value === "object" && Object.values(value).every(isEmpty));

export function Card(props: { title?: ReactNode; side?: ReactNode; className?: string; children: ReactNode; flush?: boolean }) {
  return (
    <section className={`card ${props.className ?? ""}`}>
      {props.title !== undefined && (
        <header>
          <h2>{props.title}</h2>
          {props.side}
        </header>
      )}
      {props.flush ? props.children : <div className="inside">{props.children}</div>}
    </section>
  );
}

export function Figure(props: { label: ReactNode; value: ReactNode; note?: ReactNode; to?: string; className?: string }) {
  const inside = (
    <>
      <div className="label">{props.label}</div>
      <div className="value">{props.value}</div>
      <div className="note">{props.note}</div>
    </>
  );
  const name = `card figure ${props.className ?? "span3"}`;
  return props.to === undefined ? <div className={name}>{inside}</div> : <Link href={props.to} className={name}>{inside}</Link>;
}

/** What is known of an object; what is not is left out. As a strip they stand beside one another. */
export function Facts({ facts, strip = false }: { facts: [string, ReactNode][]; strip?: boolean }) {
  const known = facts.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return (
    <dl className={strip ? "facts is-strip" : "facts"}>
      {known.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A time among facts, if there is one. */
export const when = (time: number | string | null | undefined): ReactNode => (time === null || time === undefined ? null : <Ago time={time} />);

export function Loading() {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 150);
    return () => clearTimeout(timer);
  }, []);
  return <div className="empty" aria-busy="true">{late && <Loader size="sm" type="dots" color="gray" aria-label="Loading" />}</div>;
}

/** What a list shows that has nothing yet: what it would show, and a snippet that makes the first one appear. */
export function Empty(props: { title: string; text?: ReactNode; snippet?: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <h2>{props.title}</h2>
      {props.text && <div>{props.text}</div>}
      {props.snippet && <Snippet code={props.snippet} />}
      {props.children}
    </div>
  );
}

export function Snippet({ code, label = "Copy the snippet" }: { code: string; label?: string }) {
  return (
    <div className="snippet">
      <pre className="code" tabIndex={0}>{code}</pre>
      <CopyButton text={code} label={label} />
    </div>
  );
}

/** The head of a screen: a title, and what belongs beside it. */
export function Head(props: { title: ReactNode; above?: [string, string]; children?: ReactNode; label?: string }) {
  useEffect(() => {
    const name = props.label ?? (typeof props.title === "string" ? props.title : "");
    document.title = name ? `${name} · perdure` : "perdure";
  }, [props.title, props.label]);
  return (
    <header className="head">
      {props.above && (
        <>
          <Link href={props.above[1]} className="crumb">{props.above[0]}</Link>
          <span className="faint" aria-hidden="true">/</span>
        </>
      )}
      <h1 className="cut">{props.title}</h1>
      <span className="grow" />
      {props.children}
    </header>
  );
}
