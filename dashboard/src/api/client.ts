// Requests to the native API, typed by its OpenAPI document (see types.mjs).
import { serverAnswers, serverIsAway, loginNeeded } from "../app/connection";
import { namespace } from "../app/session";
import type { components, paths } from "./schema";

export type Schema<Name extends keyof components["schemas"]> = components["schemas"][Name];

/** The path of the server, below which the dashboard stands at ui/. */
export const SERVER = new URL("..", document.baseURI).pathname.replace(/\/$/, "");

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly requestId: string | null,
  ) {
    super(message);
  }

  get isMissing(): boolean {
    return this.status === 404;
  }
}

/** The server could not be reached at all. */
export class ServerAway extends Error {
  constructor() {
    super("The server does not answer.");
  }
}

type Method = "get" | "post" | "put" | "patch" | "delete";
type PathsWith<M extends Method> = {
  [P in keyof paths]: paths[P] extends Record<M, { responses: unknown }> ? P : never;
}[keyof paths];
type Operation<P extends keyof paths, M extends Method> = paths[P] extends Record<M, infer O> ? O : never;
type Json<Response> = Response extends { content: { "application/json": infer J } } ? J : never;
type Answer<O> = O extends { responses: infer R }
  ? R extends { 200: infer A }
    ? Json<A>
    : R extends { 201: infer A }
      ? Json<A>
      : R extends { 202: infer A }
        ? Json<A>
        : unknown
  : never;
type PathOf<O> = O extends { parameters: { path: infer P } } ? P : undefined;
type QueryOf<O> = O extends { parameters: { query?: infer Q } } ? Partial<NonNullable<Q>> : undefined;
type BodyOf<O> = O extends { requestBody?: infer B }
  ? NonNullable<B> extends { content: { "application/json": infer J } }
    ? J extends object
      ? Partial<J>
      : J
    : undefined
  : undefined;
type Options<O> = (PathOf<O> extends undefined ? { path?: undefined } : { path: PathOf<O> }) & {
  query?: QueryOf<O>;
  body?: BodyOf<O>;
  signal?: AbortSignal;
};
type Arguments<O> = PathOf<O> extends undefined ? [options?: Options<O>] : [options: Options<O>];

export const api = {
  get: <P extends PathsWith<"get">>(path: P, ...[options]: Arguments<Operation<P, "get">>) =>
    send<Answer<Operation<P, "get">>>("GET", path, options),
  post: <P extends PathsWith<"post">>(path: P, ...[options]: Arguments<Operation<P, "post">>) =>
    send<Answer<Operation<P, "post">>>("POST", path, options),
  put: <P extends PathsWith<"put">>(path: P, ...[options]: Arguments<Operation<P, "put">>) =>
    send<Answer<Operation<P, "put">>>("PUT", path, options),
  patch: <P extends PathsWith<"patch">>(path: P, ...[options]: Arguments<Operation<P, "patch">>) =>
    send<Answer<Operation<P, "patch">>>("PATCH", path, options),
  delete: <P extends PathsWith<"delete">>(path: P, ...[options]: Arguments<Operation<P, "delete">>) =>
    send<Answer<Operation<P, "delete">>>("DELETE", path, options),
};

interface Sent {
  path?: unknown;
  query?: unknown;
  body?: unknown;
  signal?: AbortSignal | undefined;
  headers?: Record<string, string>;
}

/** Send a request of any path; what the document describes goes through `api`. */
export async function send<T>(method: string, path: string, options: Sent = {}): Promise<T> {
  const response = await request(method, path, options);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

export async function request(method: string, path: string, options: Sent = {}): Promise<Response> {
  const { body, signal } = options;
  const headers: Record<string, string> = { ...options.headers };
  if (namespace() !== null) headers["X-Perdure-Namespace"] = encodeURI(namespace() ?? "");
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(SERVER + filled(path, options.path) + queryOf(options.query), {
      method,
      headers,
      body: body === undefined ? null : JSON.stringify(body),
      signal: signal ?? null,
      credentials: "same-origin",
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    serverIsAway();
    throw new ServerAway();
  }
  serverAnswers();
  if (response.ok) return response;
  const error = await errorOf(response);
  if (error.status === 401) loginNeeded();
  throw error;
}

async function errorOf(response: Response): Promise<ApiError> {
  const id = response.headers.get("x-request-id");
  try {
    const problem = (await response.json()) as { code?: string; detail?: string; title?: string };
    return new ApiError(response.status, problem.code ?? "error", problem.detail ?? problem.title ?? "", id);
  } catch {
    return new ApiError(response.status, "error", response.statusText || `status ${response.status}`, id);
  }
}

function filled(path: string, values: unknown): string {
  const given = (values ?? {}) as Record<string, unknown>;
  return path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(given[name])));
}

function queryOf(query: unknown): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries((query ?? {}) as Record<string, unknown>)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null && each !== "") parameters.append(name, String(each));
    }
  }
  const text = parameters.toString();
  return text && `?${text}`;
}
