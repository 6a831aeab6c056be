// Keys: the shell and the screen in sight say which they take, and `?` lists them.
import { useEffect, useRef } from "react";

type Keys = Record<string, [what: string, action: () => void]>;

const taken: { current: Keys }[] = [];
const CHORD = 900;
let prefix = "";
let prefixTimer: ReturnType<typeof setTimeout> | undefined;

/** Take keys while a component is there: "j", or "g r" for two after one another. The latest component wins. */
export function useKeys(keys: Keys): void {
  const own = useRef(keys);
  own.current = keys;
  useEffect(() => {
    taken.push(own);
    return () => void taken.splice(taken.indexOf(own), 1);
  }, []);
}

export function allKeys(): [string, string][] {
  const found = new Map<string, string>();
  for (const { current } of taken) for (const [key, [what]] of Object.entries(current)) found.set(key, what);
  return [...found];
}

function isTyping(target: EventTarget | null): boolean {
  const element = target as HTMLElement | null;
  return !!element?.closest("input, textarea, select, [contenteditable], [role=dialog]");
}

export function listenForKeys(): () => void {
  const listen = (event: KeyboardEvent) => {
    if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      find("mod+k")?.();
      return;
    }
    if (event.metaKey || event.ctrlKey || event.altKey || isTyping(event.target)) return;
    if (event.key === "Enter" && (event.target as HTMLElement).closest("a, button")) return;
    const action = find(prefix ? `${prefix} ${event.key}` : event.key);
    clearTimeout(prefixTimer);
    prefix = "";
    if (action) {
      event.preventDefault();
      action();
    } else if (allKeys().some(([key]) => key.startsWith(`${event.key} `))) {
      prefix = event.key;
      prefixTimer = setTimeout(() => (prefix = ""), CHORD);
    }
  };
  document.addEventListener("keydown", listen);
  return () => document.removeEventListener("keydown", listen);
}

function find(key: string): (() => void) | undefined {
  return taken.findLast(({ current }) => key in current)?.current[key]?.[1];
}
