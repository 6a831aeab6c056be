// The definition of a workflow, with the phases marked that run, wait or have failed.
import { useMemo } from "react";
import { linesOf, yamlOf } from "../lib/definition";
import { toneColor } from "./basics";

const MOST_LINES = 2000;
const MARKED = new Set(["running", "waiting", "failed", "ready"]);

export function Definition({ definition, statuses }: { definition: unknown; statuses: Readonly<Record<string, string>> }) {
  const text = useMemo(() => yamlOf(definition).trimStart(), [definition]);
  const lines = linesOf(text, new Set(Object.keys(statuses)));
  return (
    <div className="definition" tabIndex={0} role="group" aria-label="Definition">
      {lines.slice(0, MOST_LINES).map(({ text: line, phase }, place) => {
        const status = phase === null ? undefined : statuses[phase];
        const isMarked = status !== undefined && MARKED.has(status);
        return (
          <div key={place} {...(isMarked ? { "data-phase": phase, "data-state": status, style: { borderLeftColor: toneColor(status) }, className: `is-marked tone-${status === "failed" ? "bad" : status === "running" ? "run" : "wait"}` } : {})}>
            {line || " "}
          </div>
        );
      })}
      {lines.length > MOST_LINES && <div className="faint">The first {MOST_LINES} lines are shown.</div>}
    </div>
  );
}
