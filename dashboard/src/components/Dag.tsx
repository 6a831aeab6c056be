// Nodes with what they depend on, in layers: a node stands one layer after the last one that it depends on.
// Edges that lead back, as loops of graphs have them, are drawn beside the nodes.
import { toneColor } from "./basics";

export interface DagNode {
  name: string;
  label: string;
  depends_on: readonly string[];
  /** Shown below the label; empty for a node of which nothing is known. */
  status: string;
  /** Those of `depends_on` that lead here only sometimes. */
  sometimes?: readonly string[];
}

const WIDTH = 156;
const HEIGHT = 40;
const EDGE = 8;
const LOOP = 34;
const MAX_LABEL = 20;
const LIT = new Set(["running", "busy", "interrupted"]);

const keyOf = (from: string, to: string): string => JSON.stringify([from, to]);

/** The edges that close a circle, found from the first node on. */
function edgesBack(nodes: readonly DagNode[], followers: ReadonlyMap<string, readonly string[]>): Set<string> {
  const found = new Set<string>();
  const state = new Map<string, "open" | "done">();
  for (const { name: start } of nodes) {
    if (state.has(start)) continue;
    // A stack instead of recursion, each entry with the next of its followers.
    const path: { name: string; next: number }[] = [{ name: start, next: 0 }];
    state.set(start, "open");
    for (let at = path.at(-1); at; at = path.at(-1)) {
      const to = followers.get(at.name)?.[at.next];
      at.next += 1;
      if (to === undefined) {
        state.set(at.name, "done");
        path.pop();
      } else if (state.get(to) === "open") found.add(keyOf(at.name, to));
      else if (!state.has(to)) {
        state.set(to, "open");
        path.push({ name: to, next: 0 });
      }
    }
  }
  return found;
}

/** The layer of each node. Nodes come in an order in which those that are depended on may stand later. */
function layersOf(nodes: readonly DagNode[], followers: ReadonlyMap<string, readonly string[]>, back: ReadonlySet<string>): Map<string, number> {
  const missing = new Map<string, number>(nodes.map((node) => [node.name, 0]));
  for (const [from, all] of followers) for (const to of all) if (!back.has(keyOf(from, to))) missing.set(to, (missing.get(to) ?? 0) + 1);
  const layers = new Map<string, number>(nodes.map((node) => [node.name, 0]));
  const ready = nodes.filter((node) => missing.get(node.name) === 0).map((node) => node.name);
  for (let place = 0; place < ready.length; place += 1) {
    const name = ready[place] as string;
    for (const next of followers.get(name) ?? []) {
      if (back.has(keyOf(name, next))) continue;
      layers.set(next, Math.max(layers.get(next) ?? 0, (layers.get(name) ?? 0) + 1));
      const left = (missing.get(next) ?? 0) - 1;
      missing.set(next, left);
      if (left === 0) ready.push(next);
    }
  }
  return layers;
}

export function Dag({ nodes, label, isVertical = false }: { nodes: readonly DagNode[]; label: string; isVertical?: boolean }) {
  const known = new Set(nodes.map((node) => node.name));
  const followers = new Map<string, string[]>();
  for (const node of nodes) {
    for (const from of new Set(node.depends_on)) {
      if (!known.has(from)) continue;
      const all = followers.get(from);
      if (all) all.push(node.name);
      else followers.set(from, [node.name]);
    }
  }
  const back = edgesBack(nodes, followers);
  const layers = layersOf(nodes, followers, back);
  const rows: string[][] = [];
  for (const node of nodes) (rows[layers.get(node.name) ?? 0] ??= []).push(node.name);
  const most = Math.max(1, ...rows.map((row) => row.length));
  const [along, across] = isVertical ? [HEIGHT + 32, WIDTH + 18] : [WIDTH + 50, HEIGHT + 18];
  const loop = back.size ? LOOP : 0;
  const places = new Map<string, { x: number; y: number }>();
  rows.forEach((row, layer) =>
    row.forEach((name, place) => {
      const far = EDGE + layer * along;
      // A vertical drawing is centred; a horizontal one reads from its top.
      const aside = EDGE + loop + (place + (isVertical ? (most - row.length) / 2 : 0)) * across;
      places.set(name, isVertical ? { x: aside, y: far } : { x: far, y: aside });
    }),
  );
  const long = EDGE * 2 + Math.max(1, rows.length) * along - (isVertical ? 32 : 50);
  const broad = EDGE * 2 + most * across - 18 + loop * 2;
  const [width, height] = isVertical ? [broad, long] : [long, broad];
  const pathOf = (from: { x: number; y: number }, to: { x: number; y: number }, leadsBack: boolean): string => {
    if (isVertical) {
      if (leadsBack) {
        const isLeft = from.x < to.x;
        const side = isLeft ? 0 : WIDTH;
        const [x1, y1, x2, y2] = [from.x + side, from.y + HEIGHT / 2, to.x + side, to.y + HEIGHT / 2];
        const out = isLeft ? Math.min(x1, x2) - LOOP : Math.max(x1, x2) + LOOP;
        return `M${x1} ${y1}C${out} ${y1} ${out} ${y2} ${x2} ${y2}`;
      }
      const [x1, y1, x2, y2] = [from.x + WIDTH / 2, from.y + HEIGHT, to.x + WIDTH / 2, to.y];
      return `M${x1} ${y1}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}`;
    }
    if (leadsBack) {
      const [x1, y1, x2, y2] = [from.x + WIDTH / 2, from.y + HEIGHT, to.x + WIDTH / 2, to.y + HEIGHT];
      const out = Math.max(y1, y2) + LOOP;
      return `M${x1} ${y1}C${x1} ${out} ${x2} ${out} ${x2} ${y2}`;
    }
    const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
    return `M${x1} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`;
  };
  return (
    <div className="dag" tabIndex={0} role="group" aria-label={label}>
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={nodes.map((node) => (node.status ? `${node.label}: ${node.status}` : node.label)).join(", ")}>
        <defs>
          <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
            <path d="M0 0.500 7 4 0 7.500z" fill="var(--edge-strong)" />
          </marker>
        </defs>
        {nodes.flatMap((node) =>
          [...new Set(node.depends_on)].map((name) => {
            const from = places.get(name);
            const to = places.get(node.name);
            if (!from || !to) return null;
            const dash = node.sometimes?.includes(name) ? { strokeDasharray: "4 4" } : {};
            return <path key={`${name} ${node.name}`} d={pathOf(from, to, back.has(keyOf(name, node.name)))} fill="none" stroke="var(--edge-strong)" strokeWidth={1.4} markerEnd="url(#arrow)" {...dash} />;
          }),
        )}
        {nodes.map((node) => {
          const { x, y } = places.get(node.name) ?? { x: 0, y: 0 };
          const color = node.status === "pending" ? "var(--off)" : toneColor(node.status);
          const isLit = LIT.has(node.status);
          const text = node.label.length > MAX_LABEL ? `${node.label.slice(0, MAX_LABEL - 1)}…` : node.label;
          return (
            <g key={node.name} data-node={node.name} data-state={node.status} className={isLit ? "is-lit" : ""}>
              <title>{node.status ? `${node.label}: ${node.status}` : node.label}</title>
              <rect x={x} y={y} width={WIDTH} height={HEIGHT} rx={8} fill="var(--surface)" stroke={node.status ? color : "var(--edge-strong)"} strokeWidth={isLit ? 2.2 : 1.2} />
              {node.status ? (
                <>
                  <circle cx={x + 14} cy={y + HEIGHT / 2} r={4} fill={color} />
                  <text x={x + 26} y={y + 17} fontSize="12.5" fill="var(--text)">{text}</text>
                  <text x={x + 26} y={y + 31} fontSize="10.5" fill="var(--quiet)">{node.status}</text>
                </>
              ) : <text x={x + WIDTH / 2} y={y + HEIGHT / 2 + 4} textAnchor="middle" fontSize="12.5" fill="var(--text)">{text}</text>}
            </g>
          );
        })}
      </svg>
    </div>
  );
}
