// The lines of a workflow's definition, each with the phase that it is a part of.

export interface DefinitionLine {
  text: string;
  /** The phase to which it belongs; null outside of phases. */
  phase: string | null;
}

/** Reads YAML line by line: a phase begins at `- name:` below `phases:`, and lasts while lines are indented. */
export function linesOf(definition: string, phases: ReadonlySet<string>): DefinitionLine[] {
  let phase: string | null = null;
  let indent = -1;
  return definition.split("\n").map((text) => {
    const begins = /^(\s*)-\s+(?:\{\s*)?name:\s*["']?([^"',}\s]+)/.exec(text);
    const margin = /^\s*/.exec(text)?.[0].length ?? 0;
    if (begins && phases.has(begins[2] ?? "")) {
      phase = begins[2] ?? null;
      indent = margin;
    } else if (text.trim() && margin <= indent) {
      // Another item of the same list, or the end of it.
      phase = null;
      indent = text.trimStart().startsWith("-") ? indent : -1;
    }
    return { text, phase: text.trim() ? phase : null };
  });
}

/** A value as YAML. Objects in lists begin with their name. */
export function yamlOf(value: unknown, indent = ""): string {
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return value.map((item) => `\n${indent}- ${yamlOf(item, `${indent}  `).trimStart()}`).join("");
  }
  if (typeof value === "object" && value !== null) {
    const entries = Object.entries(value).sort(([one], [other]) => Number(other === "name") - Number(one === "name"));
    if (!entries.length) return "{}";
    return entries.map(([key, each]) => `\n${indent}${key}:${spaced(yamlOf(each, `${indent}  `))}`).join("");
  }
  if (typeof value === "string") {
    if (value.includes("\n")) return `|\n${value.trimEnd().split("\n").map((line) => indent + line).join("\n")}`;
    return /^[\w./][\w ./()-]*$/.test(value) && !/^(true|false|null|yes|no|on|off|[\d.]+)$/i.test(value) ? value : JSON.stringify(value);
  }
  return String(value);
}

const spaced = (text: string): string => (text.startsWith("\n") ? text : ` ${text}`);
