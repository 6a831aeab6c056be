// Why something waits, or how it ended, in a sentence.
import { useWhy } from "../api/queries";

export function Why({ id }: { id: string }) {
  const why = useWhy(id);
  if (!why.data) return null;
  return (
    <div className="card" style={{ padding: "10px 14px" }} data-why={why.data.rule}>
      <span className="break">{why.data.sentence}</span>
    </div>
  );
}
