// JSON as a tree: nothing is rendered that is folded, and long texts and lists are cut until somebody wants them.
import { ActionIcon, Group } from "@mantine/core";
import { useState } from "react";
import { plural } from "../lib/format";
import { copyText } from "./basics";
import { Icon } from "./Icon";

const MAX_TEXT = 600;
const MAX_ITEMS = 100;

export function Json({ value, open = 2 }: { value: unknown; open?: number }) {
  return (
    <div style={{ position: "relative" }}>
      <Group style={{ position: "absolute", right: 0, top: 0, zIndex: 1 }}>
        <ActionIcon aria-label="Copy as JSON" onClick={() => copyText(JSON.stringify(value, null, 2))}>
          <Icon name="copy" size={14} />
        </ActionIcon>
      </Group>
      <div className="json" tabIndex={0} role="group" aria-label="JSON">
        <Node value={value} depth={0} open={open} tail="" />
      </div>
    </div>
  );
}

interface NodeProps {
  name?: string;
  value: unknown;
  depth: number;
  open: number;
  tail: string;
}

function Node({ name, value, depth, open, tail }: NodeProps) {
  const label = name === undefined ? null : <><span className="key">{JSON.stringify(name)}</span>: </>;
  if (typeof value === "object" && value !== null) {
    return <Branch label={label} value={value} depth={depth} open={open} tail={tail} />;
  }
  return (
    <div className="line" style={{ "--depth": depth } as React.CSSProperties}>
      {label}
      <Leaf value={value} />
      {tail}
    </div>
  );
}

function Branch(props: { label: React.ReactNode; value: object; depth: number; open: number; tail: string }) {
  const { label, value, depth, tail } = props;
  const [isOpen, setOpen] = useState(depth < props.open);
  const [shown, setShown] = useState(MAX_ITEMS);
  const list = Array.isArray(value);
  const entries = list ? value.map((item, index) => [String(index), item] as const) : Object.entries(value);
  const [begin, end] = list ? ["[", "]"] : ["{", "}"];
  const line = { "--depth": depth } as React.CSSProperties;
  if (!entries.length) return <div className="line" style={line}>{label}{begin}{end}{tail}</div>;
  if (!isOpen) {
    return (
      <div className="line" style={line}>
        {label}
        <button type="button" onClick={() => setOpen(true)} aria-expanded={false}>
          {begin} {list ? plural(entries.length, "item") : entries.slice(0, 4).map(([key]) => key).join(", ")}
          {!list && entries.length > 4 ? ", …" : ""} {end}
        </button>
        {tail}
      </div>
    );
  }
  return (
    <>
      <div className="line" style={line}>
        {label}
        <button type="button" onClick={() => setOpen(false)} aria-expanded={true} aria-label="Fold">{begin}</button>
      </div>
      {entries.slice(0, shown).map(([key, item], index) => (
        <Node key={key} {...(list ? {} : { name: key })} value={item} depth={depth + 1} open={props.open} tail={index < entries.length - 1 ? "," : ""} />
      ))}
      {entries.length > shown && (
        <div className="line" style={{ "--depth": depth + 1 } as React.CSSProperties}>
          <button type="button" onClick={() => setShown(shown + 1000)}>show more of {entries.length}</button>
        </div>
      )}
      <div className="line" style={line}>{end}{tail}</div>
    </>
  );
}

function Leaf({ value }: { value: unknown }) {
  const [all, setAll] = useState(false);
  if (typeof value === "number") return <span className="number">{String(value)}</span>;
  if (typeof value !== "string") return <span className="word">{String(value)}</span>;
  if (value.length <= MAX_TEXT || all) return <span className="string">{JSON.stringify(value)}</span>;
  return (
    <span className="string">
      {JSON.stringify(value.slice(0, MAX_TEXT)).slice(0, -1)}…{" "}
      <button type="button" onClick={() => setAll(true)}>show all {value.length.toLocaleString("en")} characters</button>
    </span>
  );
}
