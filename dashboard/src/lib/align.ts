// Lays two lists side by side: what they have in common stands on one line.
export type Pair<T> = [left: T | null, right: T | null];

/** The longest common subsequence by `keyOf`; both lists are to have at most some thousand items. */
export function align<T>(left: T[], right: T[], keyOf: (item: T) => string): Pair<T>[] {
  const [rows, columns] = [left.length, right.length];
  const [leftKeys, rightKeys] = [left.map(keyOf), right.map(keyOf)];
  const width = columns + 1;
  const best = new Uint16Array((rows + 1) * width);
  for (let i = rows - 1; i >= 0; i--) {
    for (let j = columns - 1; j >= 0; j--) {
      best[i * width + j] =
        leftKeys[i] === rightKeys[j]
          ? (best[(i + 1) * width + j + 1] ?? 0) + 1
          : Math.max(best[(i + 1) * width + j] ?? 0, best[i * width + j + 1] ?? 0);
    }
  }
  const pairs: Pair<T>[] = [];
  let [i, j] = [0, 0];
  while (i < rows || j < columns) {
    if (i < rows && j < columns && leftKeys[i] === rightKeys[j]) pairs.push([left[i++] as T, right[j++] as T]);
    else if (j >= columns || (i < rows && (best[(i + 1) * width + j] ?? 0) >= (best[i * width + j + 1] ?? 0))) pairs.push([left[i++] as T, null]);
    else pairs.push([null, right[j++] as T]);
  }
  return pairs;
}
