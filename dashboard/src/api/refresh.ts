// Reading again what is shown, because something has changed.
import type { Query, QueryClient } from "@tanstack/react-query";

const awaited = new Set<string>();

/**
 * Read the queries again that `concerns` chooses, or all. One that is read for the first time just now may be
 * answered as it was before the change, and would not be read again: that is done as soon as it has its answer.
 */
export function refresh(client: QueryClient, concerns: (query: Query) => boolean = () => true): Promise<void> {
  for (const query of client.getQueryCache().findAll({ fetchStatus: "fetching", predicate: concerns })) {
    const { queryHash, queryKey, promise } = query;
    if (query.state.data !== undefined || !promise || awaited.has(queryHash)) continue;
    awaited.add(queryHash);
    const again = () => {
      awaited.delete(queryHash);
      return client.invalidateQueries({ queryKey, exact: true });
    };
    void promise.then(again, again);
  }
  return client.invalidateQueries({ predicate: concerns });
}
