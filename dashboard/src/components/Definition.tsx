// The YAML of a workflow, with the phases marked that run, wait or have failed.
import { useEffect, useRef } from "react";
import type { Schema } from "../api/client";
import { CopyButton, toneColor } from "./basics";

const MOST_LINES = 2000;
const TONES: Record<string, string> = { running: "run", waiting: "wait", ready: "wait", failed: "bad" };

export function Definition({ yaml, statuses }: { yaml: Schema<"DefinitionText">; statuses: Readonly<Record<string, string>> }) {
  const lines = yaml.text.trimEnd().split("\n");
  const phaseAt = new Map<number, string>();
  for (const { phase, first, last } of yaml.phases) for (let line = first; line <= last; line += 1) phaseAt.set(line, phase);
  const marked = lines.findIndex((_, place) => TONES[statuses[phaseAt.get(place + 1) ?? ""] ?? ""]);
  const frame = useRef<HTMLDivElement>(null);
  // What runs now is in sight when the page opens.
  useEffect(() => {
    const line = frame.current?.querySelector<HTMLElement>(".is-marked");
    if (frame.current && line) frame.current.scrollTop = Math.max(0, line.offsetTop - frame.current.offsetTop - 40);
  }, [marked]);
  return (
    <div className="definition-frame">
      <CopyButton text={yaml.text} label="Copy the definition" />
      <div ref={frame} className="definition" tabIndex={0} role="group" aria-label="Definition">
        {lines.slice(0, MOST_LINES).map((line, place) => {
          const phase = phaseAt.get(place + 1);
          const status = phase === undefined ? undefined : statuses[phase];
          const tone = status === undefined ? undefined : TONES[status];
          return (
            <div key={place} {...(tone && status ? { "data-phase": phase, "data-state": status, style: { borderLeftColor: toneColor(status) }, className: `is-marked tone-${tone}` } : {})}>
              {line || " "}
            </div>
          );
        })}
        {lines.length > MOST_LINES && <div className="faint">The first {MOST_LINES} lines are shown.</div>}
      </div>
    </div>
  );
}
