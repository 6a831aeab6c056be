// Whether the server answers, and whether it asks for a login. A server that comes back is noticed by itself.
import { Store } from "./store";

export type Connection = "live" | "away";

export const connection = new Store<Connection>("live");
export const needsLogin = new Store(false);
const FIRST_WAIT = 500;
const LONGEST_WAIT = 5000;
let onReturn: () => void = () => undefined;
let waiting = false;

export function whenServerReturns(action: () => void): void {
  onReturn = action;
}

export function serverAnswers(): void {
  if (connection.get() === "away") {
    connection.set("live");
    onReturn();
  }
}

export function serverIsAway(): void {
  connection.set("away");
  if (!waiting) {
    waiting = true;
    void probe(FIRST_WAIT);
  }
}

export const loginNeeded = (): void => needsLogin.set(true);

async function probe(wait: number): Promise<void> {
  await new Promise((done) => setTimeout(done, wait));
  try {
    const response = await fetch(new URL("../healthz", document.baseURI), { cache: "no-store" });
    if (response.ok) {
      waiting = false;
      serverAnswers();
      return;
    }
  } catch {
    // Still away: asked again below.
  }
  void probe(Math.min(wait * 1.5, LONGEST_WAIT));
}
