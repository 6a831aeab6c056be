// Why something waits, or how it ended, in a sentence.
import type { ReactNode } from "react";
import { useWhy } from "../api/queries";

export function Why({ id, children }: { id: string; children?: ReactNode }) {
  const why = useWhy(id);
  if (!why.data) return null;
  return (
    <div className="card why" data-why={why.data.rule}>
      <span className="break">{why.data.sentence}</span>
      {children}
    </div>
  );
}
