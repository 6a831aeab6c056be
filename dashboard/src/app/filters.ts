// Filters live in the URL, so that a link shows what its sender saw.
import { useCallback, useEffect, useState } from "react";
import { useSearchParams } from "wouter";

export function useFilter(name: string): [string, (value: string) => void] {
  const [parameters, setParameters] = useSearchParams();
  const set = useCallback(
    (value: string) =>
      setParameters(
        (before) => {
          const next = new URLSearchParams(before);
          if (value) next.set(name, value);
          else next.delete(name);
          return next;
        },
        { replace: true },
      ),
    [name, setParameters],
  );
  return [parameters.get(name) ?? "", set];
}

/** A filter of several words, written as `status=failed,running`. */
export function useFilterList(name: string): [string[], (values: string[]) => void] {
  const [text, setText] = useFilter(name);
  return [text ? text.split(",") : [], (values) => setText(values.join(","))];
}

/** A filter that is typed: the URL follows when the typing pauses. */
export function useTypedFilter(name: string): [string, (value: string) => void, string] {
  const [stored, store] = useFilter(name);
  const [typed, setTyped] = useState(stored);
  useEffect(() => setTyped(stored), [stored]);
  useEffect(() => {
    if (typed === stored) return;
    const timer = setTimeout(() => store(typed), 250);
    return () => clearTimeout(timer);
  }, [typed, stored, store]);
  return [typed, setTyped, stored];
}
