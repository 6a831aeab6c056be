// The rows of a waterfall, from spans in the order of their start. Everything is computed once, in O(n).

/** What is read of a span here. */
export interface Span {
  span_id: string;
  parent_id: string | null;
  name: string;
  start_time: number | null;
  end_time: number | null;
  failed: boolean;
}

export interface Bar<S extends Span> {
  span: S;
  depth: number;
  /** Where it begins and how long it is, as parts of the whole. */
  offset: number;
  width: number;
  failed: boolean;
  /** How many rows below belong to it. */
  inside: number;
}

export function waterfall<S extends Span>(spans: readonly S[]): Bar<S>[] {
  const known = new Set<string>();
  let first = Infinity;
  let last = -Infinity;
  for (const span of spans) {
    known.add(span.span_id);
    const start = span.start_time ?? span.end_time;
    if (start === null || start === undefined) continue;
    if (start < first) first = start;
    const end = span.end_time ?? start;
    if (end > last) last = end;
  }
  const whole = Math.max(last - first, 1e-9);
  const children = new Map<string, S[]>();
  const roots: S[] = [];
  for (const span of spans) {
    const parent = span.parent_id;
    if (parent && known.has(parent) && parent !== span.span_id) {
      const siblings = children.get(parent);
      if (siblings) siblings.push(span);
      else children.set(parent, [span]);
    } else roots.push(span);
  }
  const bars: Bar<S>[] = [];
  const visited = new Set<S>();
  // A stack instead of recursion: chains may be as deep as there are spans.
  const walk = (tops: readonly S[]) => {
    const stack = tops.toReversed().map((span) => ({ span, depth: 0, place: -1 }));
    for (let at = stack.pop(); at; at = stack.pop()) {
      if (at.place >= 0) {
        (bars[at.place] as Bar<S>).inside = bars.length - at.place - 1;
        continue;
      }
      const { span, depth } = at;
      if (visited.has(span)) continue;
      visited.add(span);
      const start = span.start_time ?? first;
      bars.push({
        span, depth, inside: 0,
        offset: (start - first) / whole,
        width: Math.max(0, ((span.end_time ?? start) - start) / whole),
        failed: span.failed,
      });
      const below = children.get(span.span_id);
      if (!below) continue;
      stack.push({ span, depth, place: bars.length - 1 });
      for (let place = below.length - 1; place >= 0; place -= 1) stack.push({ span: below[place] as S, depth: depth + 1, place: -1 });
    }
  };
  walk(roots);
  // Spans that are parents of one another in a circle have no root; they are shown too.
  if (visited.size < spans.length) walk(spans.filter((span) => !visited.has(span)));
  return bars;
}
