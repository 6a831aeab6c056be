// Asks for a token where the server needs one. The screen behind it stays, and is shown again after the login.
import { Button, PasswordInput, Text } from "@mantine/core";
import { type FormEvent, useState } from "react";
import { logIn } from "./session";

export function Login({ onDone }: { onDone: () => void }) {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const login = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      await logIn(token);
      onDone();
    } catch (error) {
      setProblem((error as Error).message);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main className="login">
      <form onSubmit={(event) => void login(event)}>
        <h1>Log in to perdure</h1>
        <Text size="sm" c="dimmed">
          This server needs a token. <code className="mono">perdure token create</code> makes one.
        </Text>
        <PasswordInput
          size="sm"
          label="Token"
          placeholder="pdr_…"
          autoComplete="current-password"
          autoFocus
          value={token}
          error={problem}
          onChange={(event) => setToken(event.currentTarget.value)}
        />
        <Button type="submit" size="sm" loading={busy} disabled={!token.trim()}>Log in</Button>
      </form>
    </main>
  );
}
