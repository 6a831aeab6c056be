// What a run asks a person, answered in place. An answer that is JSON is sent as such, any other as a text.
import { Button, Textarea } from "@mantine/core";
import { useState } from "react";
import type { Schema } from "../api/client";
import { parsed } from "../lib/messages";
import { Json } from "./Json";
import { LongText } from "./LongText";

type Interrupt = Schema<"Interrupt">;

export function Interrupts({ interrupts, isBusy, onAnswer }: { interrupts: readonly Interrupt[]; isBusy: boolean; onAnswer: (resume: unknown) => void }) {
  const [answers, setAnswers] = useState<Record<string, string>>({});
  const isComplete = interrupts.every(({ id }) => (answers[id] ?? "").trim());
  const submit = () => {
    const given = Object.fromEntries(interrupts.map(({ id }) => [id, parsed((answers[id] ?? "").trim())]));
    const [only] = interrupts;
    onAnswer(interrupts.length === 1 && only ? given[only.id] : given);
  };
  return (
    <form
      className="card studio-note asks" aria-label="Answer"
      onSubmit={(event) => {
        event.preventDefault();
        if (isComplete) submit();
      }}
    >
      {interrupts.map((interrupt) => (
        <div key={interrupt.id}>
          <Question value={interrupt.value} />
          <Textarea
            aria-label="Answer" autosize minRows={1} maxRows={8} mt={8} placeholder="Your answer, as a text or JSON" value={answers[interrupt.id] ?? ""}
            onChange={(event) => setAnswers({ ...answers, [interrupt.id]: event.currentTarget.value })}
          />
        </div>
      ))}
      <div style={{ display: "flex", justifyContent: "flex-end", marginTop: 8 }}><Button type="submit" disabled={!isComplete} loading={isBusy}>Answer</Button></div>
    </form>
  );
}

/** A question is a text, or an object with one; the rest of it is shown as JSON. */
function Question({ value }: { value: unknown }) {
  if (typeof value === "string") return <LongText text={value} />;
  const asked = typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  const key = ["question", "message", "description", "text"].find((name) => typeof asked[name] === "string");
  if (key === undefined) return <Json value={value ?? null} />;
  const rest = Object.fromEntries(Object.entries(asked).filter(([name]) => name !== key));
  return <><LongText text={String(asked[key])} />{Object.keys(rest).length > 0 && <Json value={rest} open={1} />}</>;
}
