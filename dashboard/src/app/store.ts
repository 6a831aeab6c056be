// A value that components follow.
import { useSyncExternalStore } from "react";

export class Store<T> {
  private followers = new Set<() => void>();

  constructor(private value: T) {}

  get = (): T => this.value;

  set = (value: T): void => {
    if (Object.is(value, this.value)) return;
    this.value = value;
    this.followers.forEach((follower) => follower());
  };

  follow = (follower: () => void): (() => void) => {
    this.followers.add(follower);
    return () => this.followers.delete(follower);
  };
}

export const useStore = <T>(store: Store<T>): T => useSyncExternalStore(store.follow, store.get);

/** What this browser remembers; a browser that refuses to remember forgets with the tab. */
export const remembered = {
  get(name: string): string | null {
    try {
      return localStorage.getItem(`perdure.${name}`);
    } catch {
      return null;
    }
  },
  set(name: string, value: string | null): void {
    try {
      if (value === null) localStorage.removeItem(`perdure.${name}`);
      else localStorage.setItem(`perdure.${name}`, value);
    } catch {
      // A private window may refuse; the setting then lasts as long as the tab.
    }
  },
};
