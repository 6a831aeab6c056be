// Nodes with their dependencies, in layers: a node stands one layer after the last one that it depends on.
import { toneColor } from "./basics";

export interface DagNode {
  name: string;
  label: string;
  depends_on: readonly string[];
  status: string;
}

const WIDTH = 156;
const HEIGHT = 40;
const COLUMN = 206;
const ROW = 58;
const EDGE = 8;
const MAX_LABEL = 20;

/** The layer of each node. Nodes come in an order in which those that are depended on may stand later. */
function layersOf(nodes: readonly DagNode[]): Map<string, number> {
  const known = new Map(nodes.map((node) => [node.name, node]));
  const followers = new Map<string, string[]>();
  const missing = new Map<string, number>();
  for (const node of nodes) {
    const before = node.depends_on.filter((name) => known.has(name));
    missing.set(node.name, before.length);
    for (const name of before) followers.set(name, [...(followers.get(name) ?? []), node.name]);
  }
  const layers = new Map<string, number>(nodes.map((node) => [node.name, 0]));
  const ready = nodes.filter((node) => missing.get(node.name) === 0).map((node) => node.name);
  for (let place = 0; place < ready.length; place += 1) {
    const name = ready[place] as string;
    for (const next of followers.get(name) ?? []) {
      layers.set(next, Math.max(layers.get(next) ?? 0, (layers.get(name) ?? 0) + 1));
      const left = (missing.get(next) ?? 0) - 1;
      missing.set(next, left);
      if (left === 0) ready.push(next);
    }
  }
  return layers;
}

export function Dag({ nodes, label }: { nodes: readonly DagNode[]; label: string }) {
  const layers = layersOf(nodes);
  const filled: number[] = [];
  const places = new Map<string, { x: number; y: number }>();
  for (const node of nodes) {
    const layer = layers.get(node.name) ?? 0;
    const row = filled[layer] ?? 0;
    filled[layer] = row + 1;
    places.set(node.name, { x: EDGE + layer * COLUMN, y: EDGE + row * ROW });
  }
  const width = EDGE * 2 + Math.max(1, filled.length) * COLUMN - (COLUMN - WIDTH);
  const height = EDGE * 2 + Math.max(1, ...filled) * ROW - (ROW - HEIGHT);
  return (
    <div className="dag" tabIndex={0} role="group" aria-label={label}>
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={nodes.map((node) => `${node.label}: ${node.status}`).join(", ")}>
        {nodes.flatMap((node) =>
          node.depends_on.map((name) => {
            const from = places.get(name);
            const to = places.get(node.name);
            if (!from || !to) return null;
            const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
            const middle = (x1 + x2) / 2;
            return <path key={`${name} ${node.name}`} d={`M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`} fill="none" stroke="var(--edge-strong)" strokeWidth={1.4} />;
          }),
        )}
        {nodes.map((node) => {
          const { x, y } = places.get(node.name) ?? { x: 0, y: 0 };
          const color = toneColor(node.status);
          return (
            <g key={node.name} data-node={node.name} data-state={node.status}>
              <title>{`${node.label}: ${node.status}`}</title>
              <rect x={x} y={y} width={WIDTH} height={HEIGHT} rx={8} fill="var(--surface)" stroke={color} strokeWidth={node.status === "running" ? 2.2 : 1.2} />
              <circle cx={x + 14} cy={y + HEIGHT / 2} r={4} fill={color} />
              <text x={x + 26} y={y + 17} fontSize="12.5" fill="var(--text)">{node.label.length > MAX_LABEL ? `${node.label.slice(0, MAX_LABEL - 1)}…` : node.label}</text>
              <text x={x + 26} y={y + 31} fontSize="10.5" fill="var(--quiet)">{node.status}</text>
            </g>
          );
        })}
      </svg>
    </div>
  );
}
