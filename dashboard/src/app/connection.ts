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

let isHeld = false;
let isMissed = false;

export const loginNeeded = (): void => {
  if (isHeld) isMissed = true;
  else needsLogin.set(true);
};

/** Keep the page as it is, although the server asks for a login: it shows something once. */
export function holdLogin(): void {
  isHeld = true;
  isMissed = false;
}

/** Ask for the login that was held back, unless the page has logged in since. */
export function releaseLogin(isLoggedIn: boolean): void {
  if (isHeld && isMissed && !isLoggedIn) needsLogin.set(true);
  isHeld = false;
}

/** Load a part of the app. What could not be loaded because the server was away is loaded when it is back. */
export async function loaded<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch (error) {
    if (await answers()) throw error;
    serverIsAway();
    await new Promise<void>((done) => {
      const stop = connection.follow(() => {
        if (connection.get() !== "live") return;
        stop();
        done();
      });
    });
    return loaded(load);
  }
}

async function answers(): Promise<boolean> {
  try {
    return (await fetch(new URL("../healthz", document.baseURI), { cache: "no-store" })).ok;
  } catch {
    return false;
  }
}

async function probe(wait: number): Promise<void> {
  await new Promise((done) => setTimeout(done, wait));
  if (await answers()) {
    waiting = false;
    serverAnswers();
    return;
  }
  void probe(Math.min(wait * 1.5, LONGEST_WAIT));
}
