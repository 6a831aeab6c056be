// Who uses the dashboard, and in which namespace.
import { useQuery } from "@tanstack/react-query";
import { api } from "../api/client";
import { remembered, Store, useStore } from "./store";

const chosen = new Store<string | null>(remembered.get("namespace"));

/** The chosen namespace; null is the one that the server chooses. */
export const namespace = chosen.get;
export const useNamespace = () => useStore(chosen);

export function chooseNamespace(name: string | null): void {
  remembered.set("namespace", name);
  chosen.set(name);
}

export function useMe() {
  return useQuery({ queryKey: ["me"], queryFn: () => api.get("/api/v1/me"), staleTime: 60_000 });
}

/** Whether the caller may do what needs a scope. Nothing is offered that the server would refuse. */
export function useMay(scope: "read" | "write" | "worker" | "admin"): boolean {
  const scopes = useMe().data?.scopes ?? [];
  return scopes.includes(scope) || scopes.includes("admin");
}
