// Short messages in the corner: what an action did, or why it failed.
import { Store, useStore } from "../app/store";

interface Notice {
  id: number;
  text: string;
  tone: "done" | "error";
}

const notices = new Store<Notice[]>([]);
let last = 0;

export function inform(text: string, tone: Notice["tone"] = "done"): void {
  const notice = { id: ++last, text, tone };
  notices.set([...notices.get().slice(-3), notice]);
  setTimeout(() => notices.set(notices.get().filter((each) => each !== notice)), tone === "error" ? 10_000 : 4000);
}

export function Notices() {
  return (
    <div className="notice-area" role="status" aria-live="polite">
      {useStore(notices).map((notice) => (
        <div key={notice.id} className="notice">
          <span className="dot" style={{ color: notice.tone === "error" ? "var(--bad)" : "var(--ok)" }} />
          {notice.text}
        </div>
      ))}
    </div>
  );
}
