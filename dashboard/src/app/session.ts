// Who uses the dashboard, and in which namespace.
import { useQuery } from "@tanstack/react-query";
import { api, ApiError, send } from "../api/client";
import { needsLogin } from "./connection";
import { remembered, Store, useStore } from "./store";

const chosen = new Store<string | null>(remembered.get("namespace"));

/** The chosen namespace; null is the one that the server chooses. */
export const namespace = chosen.get;
export const useNamespace = () => useStore(chosen);

export function chooseNamespace(name: string | null): void {
  remembered.set("namespace", name);
  chosen.set(name);
}

/** How often this page has logged in. */
export const logins = new Store(0);

export async function logIn(token: string): Promise<void> {
  // The namespace of an earlier login may be out of the reach of this one.
  chooseNamespace(null);
  await send("POST", "/api/v1/login", { headers: { Authorization: `Bearer ${token.trim()}` } });
  needsLogin.set(false);
  logins.set(logins.get() + 1);
}

/** Log in with a new token if the server asks for one since it exists; whether this page may go on. */
export async function logInIfAsked(token: string): Promise<boolean> {
  try {
    await api.get("/api/v1/me");
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 401)) return true;
    return logIn(token).then(() => true, () => false);
  }
  return true;
}

export function useMe() {
  return useQuery({ queryKey: ["me"], queryFn: () => api.get("/api/v1/me"), staleTime: 60_000 });
}

/** Whether the caller may do what needs a scope. Nothing is offered that the server would refuse. */
export function useMay(scope: "read" | "write" | "worker" | "admin"): boolean {
  const scopes = useMe().data?.scopes ?? [];
  return scopes.includes(scope) || scopes.includes("admin");
}
