// The state machine of rollouts, with the states that one was in and the way it took.
interface Place {
  x: number;
  y: number;
}

const PLACES: Record<string, Place> = {
  queuing: { x: 60, y: 30 },
  preparing: { x: 210, y: 30 },
  running: { x: 360, y: 30 },
  requeuing: { x: 210, y: 90 },
  succeeded: { x: 510, y: 30 },
  failed: { x: 510, y: 75 },
  cancelled: { x: 510, y: 120 },
};
const EDGES: [string, string, string][] = [
  ["queuing", "preparing", "M104 30H166"],
  ["preparing", "running", "M254 30H316"],
  ["running", "succeeded", "M404 30H466"],
  ["running", "failed", "M400 42C430 60 440 75 466 75"],
  ["running", "requeuing", "M350 42C330 80 290 90 254 90"],
  ["requeuing", "preparing", "M210 78V44"],
  ["running", "cancelled", "M385 42C410 100 430 120 466 120"],
  ["queuing", "cancelled", "M60 42C60 130 200 125 466 122"],
];

export function StateChart({ path }: { path: string[] }) {
  const visited = new Set(path);
  const steps = new Set(path.slice(1).map((to, index) => `${path[index]} ${to}`));
  const current = path.at(-1);
  return (
    <svg viewBox="0 0 570 146" style={{ width: "100%", maxWidth: 640, display: "block" }} role="img" aria-label={`States: ${path.join(", then ")}`}>
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
        </g>
      ))}
    </svg>
  );
}
