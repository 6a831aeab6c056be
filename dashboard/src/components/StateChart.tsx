// The state machine of rollouts, with the states that one was in, for how long, and the way it took.
import type { Schema } from "../api/client";
import { duration, exact } from "../lib/format";
import { Ago, Status, Took, useNow } from "./basics";

type Path = Schema<"RolloutPath">;
type PathState = Schema<"PathState">;

interface Place {
  x: number;
  y: number;
}

const PLACES: Record<string, Place> = {
  queuing: { x: 60, y: 30 },
  preparing: { x: 210, y: 30 },
  running: { x: 360, y: 30 },
  requeuing: { x: 210, y: 98 },
  succeeded: { x: 510, y: 30 },
  failed: { x: 510, y: 78 },
  cancelled: { x: 510, y: 126 },
};
const EDGES: [string, string, string][] = [
  ["queuing", "preparing", "M104 30H166"],
  ["preparing", "running", "M254 30H316"],
  ["running", "succeeded", "M404 30H466"],
  ["running", "failed", "M400 42C430 62 440 78 466 78"],
  ["running", "requeuing", "M350 42C330 86 290 98 254 98"],
  ["requeuing", "preparing", "M210 86V44"],
  ["running", "cancelled", "M385 42C410 106 430 126 466 126"],
  ["queuing", "cancelled", "M60 42C60 136 200 131 466 128"],
];
const KNOWN = new Set(EDGES.map(([from, to]) => `${from} ${to}`));
/** The y of the states in the first line, which have their times above them. */
const TOP = 36;
const SHOWN = 60;

/** A line for a rare step, such as from preparing to failed: it leaves below and arrives at the side. */
const arc = (from: Place, to: Place): string =>
  from.x === to.x ? `M${from.x + 24} ${from.y + 12}V${to.y - 12}` : `M${from.x + 30} ${from.y + 12}C${from.x + 80} ${to.y + 22} ${to.x - 110} ${to.y} ${to.x - 44} ${to.y}`;

export function StateChart({ path }: { path: Path }) {
  const states = path.items.map((each) => each.status);
  const visited = new Set<string>(states);
  const steps = new Set(states.slice(1).map((to, index) => `${states[index]} ${to}`));
  const current = states.at(-1);
  const spent = useSpent(path.items);
  return (
    <svg viewBox="0 -8 570 164" style={{ width: "100%", maxWidth: 660, display: "block" }} role="img" aria-label={`States: ${states.join(", then ")}`}>
      {[...steps].filter((step) => !KNOWN.has(step)).map((step) => {
        const [from, to] = step.split(" ").map((state) => PLACES[state]);
        return from && to && <path key={step} d={arc(from, to)} fill="none" stroke="var(--accent)" strokeWidth={2} />;
      })}
      {EDGES.map(([from, to, line]) => {
        const taken = steps.has(`${from} ${to}`);
        return <path key={line} d={line} fill="none" stroke={taken ? "var(--accent)" : "var(--edge-strong)"} strokeWidth={taken ? 2 : 1.2} strokeDasharray={taken ? undefined : "3 3"} />;
      })}
      {Object.entries(PLACES).map(([state, { x, y }]) => (
        <g key={state} data-visited={visited.has(state)}>
          <rect
            x={x - 44} y={y - 12} width={88} height={24} rx={12}
            fill={state === current ? "var(--accent)" : visited.has(state) ? "var(--selected)" : "var(--surface)"}
            stroke={visited.has(state) ? "var(--accent)" : "var(--edge-strong)"}
          />
          <text x={x} y={y + 4} textAnchor="middle" fontSize="11.5" fill={state === current ? "var(--surface)" : visited.has(state) ? "var(--text)" : "var(--faint)"}>
            {state}
          </text>
          {spent.has(state) && <text x={x} y={y > TOP ? y + 25 : y - 18} textAnchor="middle" fontSize="10" fill="var(--quiet)">{spent.get(state)}</text>}
        </g>
      ))}
    </svg>
  );
}

/** How long it was in each state that it left, or is in. */
function useSpent(items: readonly PathState[]): Map<string, string> {
  const now = useNow();
  const sums = new Map<string, [seconds: number, times: number]>();
  items.forEach((each, place) => {
    const isLast = place === items.length - 1;
    if (each.since === null || each.since === undefined || (isLast && ENDS.has(each.status))) return;
    const [seconds, times] = sums.get(each.status) ?? [0, 0];
    sums.set(each.status, [seconds + Math.max(0, (each.until ?? now) - each.since), times + 1]);
  });
  return new Map([...sums].map(([state, [seconds, times]]) => [state, `${duration(seconds)}${times > 1 ? ` · ${times}×` : ""}`]));
}

const ENDS = new Set(["succeeded", "failed", "cancelled"]);

/** The same path as a list: when, what, and why. */
export function StateList({ path }: { path: Path }) {
  return (
    <>
      <ol className="rows states">
        {path.items.slice(-SHOWN).map((each, place) => (
          <li key={place}>
            <div>
              <span className="tag-cell wide"><Status status={each.run_status ?? each.status} /></span>
              <span className="quiet break">{each.cause}</span>
              <span className="quiet nowrap end-cell">
                {each.until != null && <><Took from={each.since} to={each.until} /> · </>}
                {each.since != null && (each.exact ? <Ago time={each.since} /> : <span title={`about ${exact(each.since)}`}>about <Ago time={each.since} /></span>)}
              </span>
            </div>
          </li>
        ))}
      </ol>
      {(path.left_out > 0 || path.unknown.length > 0) && <div className="inside faint">{[path.left_out ? `${path.left_out} earlier states are left out.` : "", ...path.unknown].filter(Boolean).join(" ")}</div>}
    </>
  );
}
