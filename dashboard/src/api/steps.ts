// What is counted of the spans of a trace: kind of step, model, tokens. It is read out of the bodies of spans, so
// only for the pages of spans that somebody looks at.
import { useQueries } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { useNamespace } from "../app/session";
import { api, type Schema } from "./client";

export type Step = Schema<"SpanStep">;

const PAGE = 500;
/** A page is read when it was in sight for so long: whoever scrolls past asks for nothing. */
const SETTLE = 120;

/** The steps of the spans at these places, in the order in which the trace lists its spans. */
export function useSteps(trace_id: string, places: readonly number[]): ReadonlyMap<string, Step> {
  const space = useNamespace();
  const wanted = [...new Set(places.map((place) => Math.floor(place / PAGE)))].sort((one, other) => one - other).join(",");
  const [settled, setSettled] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setSettled(wanted), SETTLE);
    return () => clearTimeout(timer);
  }, [wanted]);
  return useQueries({
    queries: (settled ? settled.split(",") : []).map((page) => ({
      queryKey: ["trace", "one", trace_id, "steps", page, space],
      queryFn: ({ signal }: { signal: AbortSignal }) =>
        api.get("/api/v1/traces/{trace_id}/steps", { path: { trace_id }, query: { limit: PAGE, offset: Number(page) * PAGE }, signal }),
    })),
    combine,
  });
}

const combine = (pages: readonly { data: Schema<"SpanSteps"> | undefined }[]): ReadonlyMap<string, Step> =>
  new Map(pages.flatMap((page) => page.data?.items ?? []).map((step) => [step.span_id, step]));
