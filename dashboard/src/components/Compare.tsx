// Two attempts of a rollout side by side, span by span, with the place where they part.
import { Select } from "@mantine/core";
import { useState } from "react";
import { api, type Schema } from "../api/client";
import { useOne } from "../api/queries";
import { align } from "../lib/align";
import { duration, plural } from "../lib/format";
import { Card, Loading } from "./basics";

type Attempt = Schema<"Attempt">;

/** What is read of a span here; the document leaves spans open. */
interface Span {
  span_id: string;
  name: string;
  start_time?: number | null;
  end_time?: number | null;
  status?: { status_code?: string; description?: string | null } | null;
}

const MOST = 1000;
const SHOWN = 200;

export function Compare({ rollout_id, attempts }: { rollout_id: string; attempts: Attempt[] }) {
  const [chosen, setChosen] = useState<[number, number]>([attempts.length - 2, attempts.length - 1]);
  const [left, right] = chosen.map((place) => attempts[place]?.attempt_id ?? "") as [string, string];
  const [one, other] = [useSpans(rollout_id, left), useSpans(rollout_id, right)];
  const choices = attempts.map((attempt, place) => ({ value: String(place), label: `Attempt ${attempt.sequence_id} · ${attempt.status}` }));
  const choose = (side: 0 | 1) => (
    <Select
      aria-label={side ? "Right attempt" : "Left attempt"} w={170} data={choices} value={String(chosen[side])} allowDeselect={false}
      onChange={(value) => setChosen(side ? [chosen[0], Number(value)] : [Number(value), chosen[1]])}
    />
  );
  return (
    <Card title="Side by side" className="span12" flush side={<>{choose(0)}{choose(1)}</>}>
      {one && other ? <Aligned left={one} right={other} /> : <Loading />}
    </Card>
  );
}

function useSpans(rollout_id: string, attempt_id: string): Span[] | undefined {
  return useOne(["rollout", "one", rollout_id, "spans", attempt_id], (signal) =>
    api.get("/api/v1/rollouts/{rollout_id}/spans", { path: { rollout_id }, query: { attempt_id, limit: MOST }, signal }),
  ).data?.items as unknown as Span[] | undefined;
}

function Aligned({ left, right }: { left: Span[]; right: Span[] }) {
  const pairs = align(left, right, keyOf);
  const parting = pairs.findIndex(([one, other]) => one === null || other === null);
  if (!pairs.length) return <div className="inside quiet">Neither attempt has spans.</div>;
  return (
    <>
      <div className="inside quiet">
        {parting < 0 ? "Both attempts did the same." : `They are alike for ${plural(parting, "span")}, and part at “${(pairs[parting]?.[0] ?? pairs[parting]?.[1])?.name}”.`}
      </div>
      <div className="compare" data-parting={parting}>
        {pairs.slice(0, SHOWN).map(([one, other], place) => (
          <div key={place} className={`pair${place === parting ? " is-parting" : ""}`}>
            <Side span={one} /><Side span={other} />
          </div>
        ))}
      </div>
      {pairs.length > SHOWN && <div className="inside faint">The first {SHOWN} of {pairs.length} are shown.</div>}
    </>
  );
}

const isError = (span: Span): boolean => span.status?.status_code === "ERROR";
const keyOf = (span: Span): string => `${span.name} ${isError(span)}`;

function Side({ span }: { span: Span | null }) {
  if (!span) return <span className="side-cell faint">–</span>;
  const took = span.start_time && span.end_time ? duration(span.end_time - span.start_time) : "";
  return (
    <span className="side-cell">
      <span className="cut" style={isError(span) ? { color: "var(--bad)" } : undefined}>{span.name}</span>
      <span className="quiet num nowrap">{took}</span>
    </span>
  );
}
