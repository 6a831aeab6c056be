// Query hooks that screens share. A key is [kind, "one", id, ...] for one object, else [kind, ...]: see changes.ts.
import {
  type InfiniteData,
  keepPreviousData,
  useInfiniteQuery,
  useMutation,
  useQuery,
  useQueryClient,
} from "@tanstack/react-query";
import { useNamespace } from "../app/session";
import { inform } from "../components/Notices";
import { api, ApiError, type Schema } from "./client";
import { refresh } from "./refresh";

export const PAGE = 100;
const MOST_FIGURES = 1000;

interface OffsetPage<T> {
  items: T[];
  offset: number;
  total: number | null;
}

interface CursorPage<T> {
  items: T[];
  next?: string | null;
  total?: number | null;
}

export interface Listed<T> {
  rows: T[];
  /** How many there are; null where the server does not count them. */
  total: number | null;
  hasMore: boolean;
  loadMore: () => void;
  isLoading: boolean;
  isRefreshing: boolean;
  error: Error | null;
}

/** A list that is read page by page with `offset`. */
export function useOffsetList<T>(
  key: readonly unknown[],
  read: (page: { limit: number; offset: number; signal: AbortSignal }) => Promise<OffsetPage<T>>,
): Listed<T> {
  const space = useNamespace();
  const query = useInfiniteQuery<OffsetPage<T>, Error, InfiniteData<OffsetPage<T>>, readonly unknown[], number>({
    queryKey: [...key, space],
    queryFn: ({ pageParam, signal }) => read({ limit: PAGE, offset: pageParam, signal }),
    initialPageParam: 0,
    getNextPageParam: ({ offset, items, total }) =>
      items.length > 0 && offset + items.length < (total ?? 0) ? offset + items.length : undefined,
    placeholderData: keepPreviousData,
  });
  const pages = query.data?.pages ?? [];
  return { ...listed(query, pages.flatMap((page) => page.items)), total: pages.at(-1)?.total ?? null };
}

/** A list that is read page by page with a cursor; one that may be very long has a total only where it is kept. */
export function useCursorList<T>(
  key: readonly unknown[],
  read: (page: { limit: number; cursor: string | undefined; signal: AbortSignal }) => Promise<CursorPage<T>>,
): Listed<T> {
  const space = useNamespace();
  const query = useInfiniteQuery<
    CursorPage<T>,
    Error,
    InfiniteData<CursorPage<T>>,
    readonly unknown[],
    string | undefined
  >({
    queryKey: [...key, space],
    queryFn: ({ pageParam, signal }) => read({ limit: PAGE, cursor: pageParam, signal }),
    initialPageParam: undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    placeholderData: keepPreviousData,
  });
  const pages = query.data?.pages ?? [];
  return { ...listed(query, pages.flatMap((page) => page.items)), total: pages[0]?.total ?? null };
}

function listed<T>(
  query: {
    hasNextPage: boolean;
    isFetchingNextPage: boolean;
    isLoading: boolean;
    isFetching: boolean;
    error: Error | null;
    fetchNextPage: () => unknown;
  },
  rows: T[],
): Omit<Listed<T>, "total"> {
  return {
    rows,
    hasMore: query.hasNextPage,
    loadMore: () => {
      if (query.hasNextPage && !query.isFetchingNextPage) query.fetchNextPage();
    },
    isLoading: query.isLoading,
    isRefreshing: query.isFetching,
    error: query.error,
  };
}

/** One object, or a fact that is read as a whole. */
export function useOne<T>(
  key: readonly unknown[],
  read: (signal: AbortSignal) => Promise<T>,
  options: { enabled?: boolean; every?: number } = {},
) {
  const space = useNamespace();
  const query = useQuery({
    queryKey: [...key, space],
    queryFn: ({ signal }) => read(signal),
    enabled: options.enabled ?? true,
    refetchInterval: options.every ?? false,
    placeholderData: keepPreviousData,
  });
  // What is gone is not shown any longer, though it was read before.
  const gone = query.error instanceof ApiError && query.error.isMissing;
  return { data: gone ? undefined : query.data, error: query.error };
}

/** An action: it says when it is done or has failed, and reads again what it changed. */
export function useAction<V, R>(act: (value: V) => Promise<R>, said: (result: R, value: V) => string | null) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: act,
    onSuccess: (result, value) => {
      const text = said(result, value);
      if (text) inform(text);
      return refresh(client);
    },
    onError: (error) => inform(error.message, "error"),
  });
}

/** Tokens, cost and reward of the rollouts or runs of a list, by their ids. */
export function useFigures(kind: "rollout" | "run", listed: readonly string[]): ReadonlyMap<string, Schema<"RolloutFigures">> {
  const ids = listed.slice(0, MOST_FIGURES);
  const found = useOne([kind, "figures", ids], (signal) => api.get("/api/v1/figures", { query: { rollout_id: ids }, signal }), { enabled: ids.length > 0 });
  return new Map(found.data?.items.map((each) => [each.rollout_id, each]));
}

export function useWhy(id: string, enabled = true) {
  return useOne(["why", "one", id], (signal) => api.get("/api/v1/why/{id}", { path: { id }, signal }), { enabled });
}
