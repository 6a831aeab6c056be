// Messages of chats in one form, whichever library wrote them: LangChain or the OpenAI API.
import { oneLine } from "./format";

export interface Call {
  id: string | null;
  name: string;
  arguments: unknown;
}

export interface ChatMessage {
  id: string | null;
  role: string;
  text: string;
  calls: Call[];
  /** The call that a message of a tool answers. */
  answers: string | null;
  name: string | null;
  failed: boolean;
  reasoning?: string;
  time?: number | null;
  note?: string;
  /** What lines of one message have in common. */
  part?: string | null;
  /** Reads all of a text that was cut. */
  more?: () => Promise<string>;
}

type Open = Record<string, unknown>;

const ROLES: Record<string, string> = {
  human: "user", HumanMessage: "user", HumanMessageChunk: "user",
  ai: "assistant", AIMessage: "assistant", AIMessageChunk: "assistant", model: "assistant",
  ToolMessage: "tool", ToolMessageChunk: "tool", function: "tool",
  SystemMessage: "system", SystemMessageChunk: "system", developer: "system",
};

const isOpen = (value: unknown): value is Open => typeof value === "object" && value !== null && !Array.isArray(value);
const textOrNull = (value: unknown): string | null => (typeof value === "string" ? value : null);

/** An input on one line: of a conversation what was said last. */
export function briefly(input: unknown, length?: number): string {
  const last = messagesIn(input)?.at(-1);
  return oneLine(last ? last.text : input, length);
}

/** The list of messages in the values of a state, if it has one. */
export function messagesIn(values: unknown): ChatMessage[] | null {
  const list = Array.isArray(values) ? values : isOpen(values) ? values.messages : null;
  if (!Array.isArray(list) || !list.every(isMessage)) return null;
  return list.map(messageOf);
}

const isMessage = (value: unknown): value is Open => isOpen(value) && ("role" in value || "type" in value) && ("content" in value || "parts" in value || "tool_calls" in value);

export function messageOf(given: Open): ChatMessage {
  const said = textOrNull(given.role) ?? textOrNull(given.type) ?? "";
  const parts = partsOf(given.content ?? given.parts);
  const calls = [...parts.calls, ...(Array.isArray(given.tool_calls) ? given.tool_calls.filter(isOpen).map(callOf) : [])];
  return {
    id: textOrNull(given.id),
    role: ROLES[said] ?? said,
    text: parts.text,
    calls: calls.filter((call, place) => call.id === null || calls.findIndex((each) => each.id === call.id) === place),
    answers: textOrNull(given.tool_call_id) ?? parts.answers,
    name: textOrNull(given.name),
    failed: given.status === "error" || given.is_error === true,
    ...(parts.reasoning ? { reasoning: parts.reasoning } : {}),
  };
}

function callOf(given: Open): Call {
  const inner = isOpen(given.function) ? given.function : given;
  return {
    id: textOrNull(given.id),
    name: textOrNull(inner.name) ?? "tool",
    arguments: parsed(inner.arguments ?? inner.args ?? inner.input),
  };
}

/** JSON that stands in a text, as a value; another text stays one. */
export function parsed(value: unknown): unknown {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value) as unknown;
  } catch {
    return value;
  }
}

function partsOf(content: unknown): { text: string; calls: Call[]; answers: string | null; reasoning: string } {
  if (typeof content === "string") return { text: content, calls: [], answers: null, reasoning: "" };
  const texts: string[] = [];
  const thoughts: string[] = [];
  const calls: Call[] = [];
  let answers: string | null = null;
  for (const part of Array.isArray(content) ? content : content === null || content === undefined ? [] : [content]) {
    if (typeof part === "string") texts.push(part);
    else if (!isOpen(part)) texts.push(JSON.stringify(part));
    else if (part.type === "tool_use" || part.type === "tool_call") calls.push(callOf(part));
    else if (part.type === "tool_result" || part.type === "tool_call_response") {
      answers = textOrNull(part.tool_use_id) ?? textOrNull(part.id);
      texts.push(partsOf(part.content ?? part.response ?? part.result).text);
    } else if (part.type === "thinking" || part.type === "reasoning") thoughts.push(textOrNull(part.thinking) ?? textOrNull(part.text) ?? textOrNull(part.content) ?? "");
    else texts.push(textOrNull(part.text) ?? textOrNull(part.content) ?? `[${textOrNull(part.type) ?? JSON.stringify(part)}]`);
  }
  return { text: texts.join("\n"), calls, answers, reasoning: thoughts.join("\n") };
}

/** A piece of a message that grows is added to what is known of it. */
export function grown(known: ChatMessage | undefined, piece: ChatMessage): ChatMessage {
  if (!known) return piece;
  const fresh = piece.calls.filter((call) => call.id !== null && !known.calls.some((each) => each.id === call.id));
  return { ...known, text: known.text + piece.text, calls: [...known.calls, ...fresh] };
}
