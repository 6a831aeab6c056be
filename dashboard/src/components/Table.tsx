// A list of any length: only the rows in sight are in the page. j and k move, Enter opens, x selects.
import { Checkbox } from "@mantine/core";
import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { useLocation } from "wouter";
import type { Listed } from "../api/queries";
import { useKeys } from "../app/keys";
import { count } from "../lib/format";
import { Loading } from "./basics";
import { Problem } from "./Problem";

export interface Column<T> {
  name: string;
  /** A width of CSS grid, such as "120px" or "minmax(0, 2fr)". */
  width: string;
  cell: (row: T) => ReactNode;
  /** Left out on a phone. */
  wide?: boolean;
  end?: boolean;
}

interface TableProps<T> {
  label: string;
  list: Listed<T>;
  columns: Column<T>[];
  idOf: (row: T) => string;
  linkOf?: (row: T) => string;
  /** Shown instead of the list when it has nothing. */
  empty: ReactNode;
  /** What can be done with the rows that are selected; without it nothing can be selected. */
  bulk?: (selected: T[], clear: () => void) => ReactNode;
}

const ROW = 38;
const AHEAD = 30;

export function Table<T>(props: TableProps<T>) {
  const { list, idOf, linkOf, bulk } = props;
  const { rows } = list;
  const frame = useRef<HTMLDivElement>(null);
  const [, navigate] = useLocation();
  const [current, setCurrent] = useState(-1);
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const narrow = useNarrow();
  const columns = narrow ? props.columns.filter((column) => !column.wide) : props.columns;
  const virtual = useVirtualizer({ count: rows.length, getScrollElement: () => frame.current, estimateSize: () => ROW, overscan: 12 });
  const items = virtual.getVirtualItems();
  const lastSeen = items.at(-1)?.index ?? 0;
  useEffect(() => {
    if (list.hasMore && lastSeen > rows.length - AHEAD) list.loadMore();
  }, [list, lastSeen, rows.length]);

  const move = (step: number) => {
    const next = Math.max(0, Math.min(rows.length - 1, current + step));
    setCurrent(next);
    virtual.scrollToIndex(next);
  };
  const toggle = (id: string) => {
    const next = new Set(selected);
    if (!next.delete(id)) next.add(id);
    setSelected(next);
  };
  const at = rows[current];
  useKeys({
    j: ["Next row", () => move(1)],
    k: ["Previous row", () => move(-1)],
    ...(linkOf ? { Enter: ["Open the row", () => at !== undefined && navigate(linkOf(at))] } : {}),
    ...(bulk ? { x: ["Select the row", () => at !== undefined && toggle(idOf(at))] } : {}),
    ...(selected.size ? { Escape: ["Clear the selection", () => setSelected(new Set())] } : {}),
  });

  if (list.error && !rows.length) return <Problem error={list.error} />;
  if (list.isLoading) return <Loading />;
  if (!rows.length) return <>{props.empty}</>;
  const template = [...(bulk ? ["18px"] : []), ...columns.map((column) => column.width)].join(" ");
  const chosen = rows.filter((row) => selected.has(idOf(row)));
  return (
    <>
      <div ref={frame} className="table" role="table" aria-label={props.label} aria-rowcount={list.total ?? rows.length} tabIndex={0}>
        <div role="rowgroup">
          <div className="heads" role="row" style={{ gridTemplateColumns: template }}>
            {bulk && (
              <span role="columnheader">
                <Checkbox
                  aria-label="Select all rows that are loaded"
                  checked={chosen.length === rows.length}
                  indeterminate={chosen.length > 0 && chosen.length < rows.length}
                  onChange={(event) => setSelected(new Set(event.currentTarget.checked ? rows.map(idOf) : []))}
                />
              </span>
            )}
            {columns.map((column) => (
              <span key={column.name} role="columnheader" className={column.end ? "end" : ""}>{column.name}</span>
            ))}
          </div>
        </div>
        <div role="rowgroup" style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {items.map((item) => {
            const row = rows[item.index] as T;
            const id = idOf(row);
            return (
              <div
                key={id}
                role="row"
                aria-rowindex={item.index + 1}
                aria-selected={bulk ? selected.has(id) : undefined}
                data-row={id}
                className={`row${item.index === current ? " is-current" : ""}`}
                style={{ gridTemplateColumns: template, transform: `translateY(${item.start}px)` }}
                onClick={(event) => {
                  if (!linkOf || getSelection()?.toString()) return;
                  if (event.metaKey || event.ctrlKey) window.open(`.${linkOf(row)}`, "_blank", "noopener");
                  else navigate(linkOf(row));
                }}
              >
                {bulk && (
                  <span role="cell" onClick={(event) => event.stopPropagation()}>
                    <Checkbox aria-label={`Select ${id}`} checked={selected.has(id)} onChange={() => toggle(id)} />
                  </span>
                )}
                {columns.map((column) => (
                  <span key={column.name} role="cell" className={column.end ? "end" : ""}>{column.cell(row)}</span>
                ))}
              </div>
            );
          })}
        </div>
      </div>
      {bulk && chosen.length > 0 && (
        <div className="bulk" role="toolbar" aria-label="Actions for the selected rows">
          <span className="num">{count(chosen.length)} selected</span>
          {bulk(chosen, () => setSelected(new Set()))}
        </div>
      )}
      <footer className="table-foot">
        <span className="num">
          {list.total === null ? `${count(rows.length)}${list.hasMore ? ", more below" : " in all"}` : `${count(rows.length)} of ${count(list.total)}`}
        </span>
        {list.error && <span style={{ color: "var(--bad)" }}>{list.error.message}</span>}
      </footer>
    </>
  );
}

const narrowScreen = matchMedia("(max-width: 860px)");

function useNarrow(): boolean {
  const [narrow, setNarrow] = useState(narrowScreen.matches);
  useEffect(() => {
    const change = () => setNarrow(narrowScreen.matches);
    narrowScreen.addEventListener("change", change);
    return () => narrowScreen.removeEventListener("change", change);
  }, []);
  return narrow;
}
