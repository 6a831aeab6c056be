// Why something waits, or how it ended, in a sentence.
import type { ReactNode } from "react";
import { useWhy } from "../api/queries";
import { exact, moment, partsOf, seconds } from "../lib/format";

export function Why({ id, children }: { id: string; children?: ReactNode }) {
  const why = useWhy(id);
  if (!why.data) return null;
  return (
    <div className="card why" data-why={why.data.rule}>
      <span className="break"><Sentence text={why.data.sentence} /></span>
      {children}
    </div>
  );
}

/** A sentence of the server, with times as people here write them. */
export function Sentence({ text }: { text: string }) {
  return partsOf(text).map((part, place) => {
    if (part.kind === "code") return <code key={place} className="mono">{part.text}</code>;
    const time = part.kind === "time" ? seconds(part.text) : null;
    return time === null ? part.text : <time key={place} dateTime={part.text} title={exact(time)}>{moment(time)}</time>;
  });
}
