// Times are seconds since 1970, as the API gives them.
const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

export function duration(seconds: number): string {
  if (seconds < 0) return duration(-seconds);
  if (seconds < 0.001) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < MINUTE) return `${Math.round(seconds)} s`;
  if (seconds < HOUR) return two(seconds, MINUTE, "min", 1, "s");
  if (seconds < DAY) return two(seconds, HOUR, "h", MINUTE, "min");
  return two(seconds, DAY, "d", HOUR, "h");
}

function two(seconds: number, large: number, one: string, small: number, other: string): string {
  const first = Math.floor(seconds / large);
  const second = Math.floor((seconds % large) / small);
  return second ? `${first} ${one} ${second} ${other}` : `${first} ${one}`;
}

export function ago(time: number, now: number): string {
  const seconds = now - time;
  if (Math.abs(seconds) < 1) return "now";
  const rough = Math.abs(seconds);
  const [amount, unit] =
    rough < MINUTE ? [rough, "s"] : rough < HOUR ? [rough / MINUTE, "min"] : rough < DAY ? [rough / HOUR, "h"] : [rough / DAY, "d"];
  const text = `${Math.floor(amount)} ${unit}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

export const exact = (time: number): string =>
  new Date(time * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });

export const count = (number: number): string => number.toLocaleString("en");

export function compact(number: number): string {
  return Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(number);
}

export function bytes(number: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let rest = number;
  let unit = 0;
  while (rest >= 1000 && unit < units.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  return `${rest < 10 && unit ? rest.toFixed(1) : Math.round(rest)} ${units[unit]}`;
}

/** A value on one line, for lists: the texts of an object without the marks of JSON. */
export function oneLine(value: unknown, length = 160): string {
  if (value === null || value === undefined) return "";
  const flat = typeof value === "object" && !Array.isArray(value) ? Object.entries(value) : null;
  const text = flat ? flat.map(([key, each]) => `${key}: ${inner(each, length)}`).join(" · ") : inner(value, length);
  return text.length > length ? `${text.slice(0, length)}…` : text;
}

function inner(value: unknown, length: number): string {
  return typeof value === "string" ? value.slice(0, length + 1) : (JSON.stringify(value) ?? "").slice(0, length + 1);
}

export const plural = (number: number, one: string, many = `${one}s`): string =>
  `${count(number)} ${number === 1 ? one : many}`;

/** A cost in US dollars; small ones with more digits. */
export function dollars(value: number): string {
  return value && Math.abs(value) < 1 ? `$${value.toPrecision(2)}` : `$${value.toFixed(2)}`;
}

/** A time that the API gives as ISO 8601. */
export const seconds = (time: string | null | undefined): number | null => (time ? Date.parse(time) / 1000 : null);

/** What the server calls a phase while a workflow run waits for a person. */
export const WAITING = "waiting_approval";
export const inWords = (phase: string | null | undefined): string => (phase === WAITING ? "waits for an approval" : (phase ?? ""));

const TIME_OR_CODE = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z|`[^`]+`)/;

/** A sentence of the server in parts: text, times, and what is to be typed as it stands. */
export function partsOf(sentence: string): { kind: "text" | "time" | "code"; text: string }[] {
  return sentence.split(TIME_OR_CODE).filter(Boolean).map((text) => {
    if (text.startsWith("`") && text.length > 2 && text.endsWith("`")) return { kind: "code", text: text.slice(1, -1) };
    return { kind: TIME_OR_CODE.test(text) ? "time" : "text", text };
  });
}

/** A moment as people here write it: the time alone if it is of today. */
export function moment(time: number, now = Date.now()): string {
  const date = new Date(time * 1000);
  const isToday = date.toDateString() === new Date(now).toDateString();
  return isToday ? date.toLocaleTimeString(undefined, { timeStyle: "medium" }) : exact(time);
}
