// The table of screens. To add one: a file in screens/ with a default export, and an entry here.
import { type ComponentType, lazy, type LazyExoticComponent } from "react";
import type { IconName } from "../components/Icon";
import { loaded } from "./connection";

export type Params = Record<string, string>;
type ScreenComponent = ComponentType<{ params: Params }>;

interface Screen {
  /** As wouter writes it, such as /rollouts/:rollout_id. */
  path: string;
  component: LazyExoticComponent<ScreenComponent>;
  /** Its place in the navigation; screens of one object have none. */
  nav?: { title: string; icon: IconName; section: "" | "Work" | "Knowledge" | "Operation"; key: string };
}

const screen = (path: string, load: () => Promise<{ default: ScreenComponent }>, nav?: Screen["nav"]): Screen => ({
  path,
  component: lazy(() => loaded(load)),
  ...(nav ? { nav } : {}),
});

export const SCREENS: Screen[] = [
  screen("/", () => import("../screens/Home"), { title: "Home", icon: "home", section: "", key: "h" }),
  screen("/rollouts", () => import("../screens/Rollouts"), { title: "Rollouts", icon: "rollouts", section: "Work", key: "r" }),
  screen("/rollouts/:rollout_id", () => import("../screens/Rollout")),
  screen("/runs", () => import("../screens/Runs"), { title: "Runs", icon: "runs", section: "Work", key: "u" }),
  screen("/runs/:run_id", () => import("../screens/Run")),
  screen("/threads", () => import("../screens/Threads"), { title: "Threads", icon: "threads", section: "Work", key: "d" }),
  screen("/threads/:thread_id", () => import("../screens/Thread")),
  screen("/chat", () => import("../screens/Chat"), { title: "Chat", icon: "chat", section: "Work", key: "c" }),
  screen("/traces", () => import("../screens/Traces"), { title: "Traces", icon: "traces", section: "Work", key: "t" }),
  screen("/traces/:trace_id", () => import("../screens/Trace")),
  screen("/workflow-runs", () => import("../screens/WorkflowRuns"), { title: "Workflows", icon: "workflows", section: "Work", key: "f" }),
  screen("/workflow-runs/:workflow_run_id", () => import("../screens/WorkflowRun")),
  screen("/workflows", () => import("../screens/Workflows")),
  screen("/approvals", () => import("../screens/Approvals"), { title: "Approvals", icon: "approvals", section: "Work", key: "a" }),
  screen("/approvals/:approval_id", () => import("../screens/Approval")),
  screen("/sessions", () => import("../screens/Sessions"), { title: "Sessions", icon: "sessions", section: "Knowledge", key: "e" }),
  screen("/sessions/:session_id", () => import("../screens/Session")),
  screen("/memory", () => import("../screens/Memory"), { title: "Memory", icon: "memory", section: "Knowledge", key: "m" }),
  screen("/memory/:node_id", () => import("../screens/Memory")),
  screen("/schedules", () => import("../screens/Schedules"), { title: "Schedules", icon: "schedules", section: "Operation", key: "s" }),
  screen("/schedules/:schedule_id", () => import("../screens/Schedule")),
  screen("/outbox", () => import("../screens/Outbox"), { title: "Outbox", icon: "outbox", section: "Operation", key: "o" }),
  screen("/workers", () => import("../screens/Workers"), { title: "Workers", icon: "workers", section: "Operation", key: "w" }),
  screen("/workers/:worker_id", () => import("../screens/Worker")),
  screen("/settings", () => import("../screens/Settings"), { title: "Settings", icon: "settings", section: "Operation", key: "," }),
];

/**
 * Where an object of a kind is shown. `find` answers with these kinds, and screens link to one another by them.
 * An id may hold any character, so it is always quoted.
 */
const PLACES: Record<string, string> = {
  rollout: "/rollouts/",
  run: "/runs/",
  thread: "/threads/",
  session: "/sessions/",
  worker: "/workers/",
  schedule: "/schedules/",
  trace: "/traces/",
  workflow_run: "/workflow-runs/",
  approval: "/approvals/",
};

export function linkTo(kind: string, id: string): string | null {
  const place = PLACES[kind];
  return place === undefined ? null : place + encodeURIComponent(id);
}
