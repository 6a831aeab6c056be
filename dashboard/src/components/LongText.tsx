// A text that somebody wrote, with its lines; a long one is cut until somebody wants all of it.
import { useState } from "react";
import { count } from "../lib/format";

const MAX_TEXT = 4000;

export function LongText({ text, mono }: { text: string; mono?: boolean }) {
  const [all, setAll] = useState(false);
  const isCut = text.length > MAX_TEXT && !all;
  return (
    <div className={mono ? "break mono" : "break"}>
      {isCut ? `${text.slice(0, MAX_TEXT)}… ` : text}
      {isCut && <button type="button" className="chip" onClick={() => setAll(true)}>show all {count(text.length)} characters</button>}
    </div>
  );
}
