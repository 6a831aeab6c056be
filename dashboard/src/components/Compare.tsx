// Two attempts of a rollout side by side, span by span, with the place where they part.
import { Select } from "@mantine/core";
import { useState } from "react";
import { api, type Schema } from "../api/client";
import { useOne } from "../api/queries";
import { duration } from "../lib/format";
import { Card, Loading } from "./basics";
import { Problem } from "./Problem";

type Attempt = Schema<"Attempt">;
type Comparison = Schema<"Comparison">;
type Pair = Comparison["items"][number];
type Span = Schema<"SpanOutline">;

const SHOWN = 200;

export function Compare({ rollout_id, attempts }: { rollout_id: string; attempts: Attempt[] }) {
  const [chosen, setChosen] = useState<[string, string]>([attempts.at(-2)?.attempt_id ?? "", attempts.at(-1)?.attempt_id ?? ""]);
  const [left, right] = chosen;
  const found = useOne(["rollout", "one", rollout_id, "comparison", left, right], (signal) =>
    api.get("/api/v1/rollouts/{rollout_id}/comparison", { path: { rollout_id }, query: { left, right, limit: SHOWN }, signal }),
  );
  const choices = attempts.map((attempt) => ({ value: attempt.attempt_id, label: `Attempt ${attempt.sequence_id} · ${attempt.status}` }));
  const choose = (side: 0 | 1) => (
    <Select
      aria-label={side ? "Right attempt" : "Left attempt"} w={170} data={choices} value={chosen[side]} allowDeselect={false}
      onChange={(value) => value && setChosen(side ? [left, value] : [value, right])}
    />
  );
  return (
    <Card title="Side by side" className="span12" flush side={<>{choose(0)}{choose(1)}</>}>
      {found.error && !found.data ? <Problem error={found.error} /> : found.data ? <Aligned comparison={found.data} /> : <Loading />}
    </Card>
  );
}

function Aligned({ comparison }: { comparison: Comparison }) {
  const { items, total, sentence, first_divergence } = comparison;
  return (
    <>
      <div className="inside quiet">{sentence}</div>
      {items.length > 0 && (
        <div className="compare" data-parting={first_divergence ?? -1}>
          {items.map((pair, place) => (
            <div key={place} className={`pair${place === first_divergence ? " is-parting" : ""}`} data-pair={pair.kind}>
              <Side span={pair.left} pair={pair} side="left" /><Side span={pair.right} pair={pair} side="right" />
            </div>
          ))}
        </div>
      )}
      {total > items.length && <div className="inside faint">The first {items.length} of {total} are shown.</div>}
    </>
  );
}

function Side({ span, pair, side }: { span: Span | null; pair: Pair; side: "left" | "right" }) {
  if (!span) return <span className="side-cell faint">–</span>;
  const took = span.start_time && span.end_time ? duration(span.end_time - span.start_time) : "";
  const differs = pair.differences.map((each) => `${each.field}: ${each[side] ?? "nothing"}`).join(", ");
  return (
    <span className="side-cell">
      <span className="cut" style={span.failed ? { color: "var(--bad)" } : undefined}>{span.name}</span>
      {differs && <span className="quiet cut" title={differs}>{differs}</span>}
      <span className="quiet num nowrap end-cell">{took}</span>
    </span>
  );
}
