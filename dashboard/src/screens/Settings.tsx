import { Button, Checkbox, Modal, Select, TextInput } from "@mantine/core";
import { useState } from "react";
import { api, type Schema } from "../api/client";
import { useAction, useOne } from "../api/queries";
import { holdLogin, releaseLogin } from "../app/connection";
import { logInIfAsked, useMay, useMe } from "../app/session";
import { Ago, Card, Empty, Facts, Head, Id, Loading, Snippet, Status, when } from "../components/basics";
import { confirm } from "../components/Confirm";
import { Problem } from "../components/Problem";
import { bytes, count, duration, plural } from "../lib/format";

type Scope = NonNullable<Schema<"AccessCreateToken">["scopes"]>[number];

const SCOPES: Scope[] = ["read", "write", "worker", "admin"];
const DAY = 86_400;
const LIFETIMES = { "a day": DAY, "30 days": 30 * DAY, "a year": 365 * DAY };
const MOST = 200;

export default function Settings() {
  const me = useMe().data;
  const isAdmin = useMay("admin");
  if (!me) return <Loading />;
  return (
    <>
      <Head title="Settings" />
      <div className="body">
        <div className="grid">
          <Server />
          <Card title="You" className="span5">
            <Facts facts={[["Name", me.actor], ["Scopes", me.scopes.join(", ")], ["Namespace", me.namespace], ["May use", me.namespaces ? me.namespaces.join(", ") : "all namespaces"]]} />
          </Card>
          {isAdmin ? <><Doctor /><Tokens /><Database /><Retention /><Checks /><Audit /></> : <Card className="span12"><Empty title="The rest needs the scope admin" text="Tokens, the database and its upkeep are shown to those who may change them." /></Card>}
        </div>
      </div>
    </>
  );
}

function Server() {
  const info = useOne(["server", "info"], (signal) => api.get("/api/v1/info", { signal })).data;
  const health = useOne(["server", "health"], (signal) => api.get("/api/v1/health", { signal }), { every: 10_000 }).data;
  const scheduler = useOne(["server", "scheduler"], (signal) => api.get("/api/v1/scheduler", { query: { limit: 0 }, signal }), { every: 10_000 }).data;
  return (
    <Card title="Server" className="span7">
      <Facts
        facts={[
          ["State", health && <Status status={health.status} />],
          ["Why", health?.reason],
          ["Running since", when(health?.started_at)],
          ["Process", health?.process_id],
          ["Version", info?.version],
          ["Database", health && <><Status status={health.database} /> {health.engine}</>],
          ["Redis", health?.redis === "unknown" ? "not used" : health?.redis],
          ["Scheduler", scheduler && <Status status={scheduler.state} />],
          ["Protocols", info?.protocols.join(", ")],
          ["gRPC", info?.grpc_ports?.length ? `port ${info.grpc_ports.join(", ")}` : "off"],
          ["LangGraph", info?.langgraph_py_version],
          ["Indexes being built", health?.indexes_being_built?.length ? health.indexes_being_built.join(", ") : null],
        ]}
      />
    </Card>
  );
}

function Tokens() {
  const tokens = useOne(["token", "list"], (signal) => api.get("/api/v1/tokens", { signal }));
  const [isCreating, setCreating] = useState(false);
  const revoke = useAction((token_id: string) => api.delete("/api/v1/tokens/{token_id}", { path: { token_id } }), () => "Revoked");
  const now = Date.now() / 1000;
  const items = tokens.data?.items ?? [];
  return (
    <Card title="Tokens" className="span12" flush side={<Button variant="default" onClick={() => setCreating(true)}>Create a token</Button>}>
      {tokens.error && !tokens.data ? <Problem error={tokens.error} /> : (
        <ul className="rows">
          {items.slice(-MOST).map((token) => {
            const isOver = !!token.revoke_time || (!!token.expire_time && token.expire_time < now);
            return (
              <li key={token.token_id}>
                <div className="token" data-token={token.token_id}>
                  <Status status={token.revoke_time ? "revoked" : isOver ? "expired" : "active"} />
                  <span className="cut">{token.name}</span>
                  <span className="quiet nowrap"><Id id={token.token_id} /></span>
                  <span className="quiet cut">{token.scopes.join(", ")} · {token.namespaces.join(", ")}</span>
                  <span className="quiet nowrap end-cell">{token.last_used_time ? <>used <Ago time={token.last_used_time} /></> : "never used"}</span>
                  {token.expire_time && !isOver && <span className="quiet nowrap">ends <Ago time={token.expire_time} /></span>}
                  {!isOver && (
                    <Button
                      size="compact-xs" variant="default" aria-label={`Revoke ${token.name}`}
                      onClick={() => confirm({ title: `Revoke the token ${token.name}?`, text: "Whoever uses it is refused from now on.", action: "Revoke it", danger: true, then: () => revoke.mutate(token.token_id) })}
                    >
                      Revoke
                    </Button>
                  )}
                </div>
              </li>
            );
          })}
          {tokens.data && !items.length && <li><div className="quiet">There are no tokens: whoever reaches this server may use it, unless it has a key.</div></li>}
        </ul>
      )}
      <Create isOpen={isCreating} isFirst={!!tokens.data && !items.length} close={() => setCreating(false)} />
    </Card>
  );
}

function Create({ isOpen, isFirst, close }: { isOpen: boolean; isFirst: boolean; close: () => void }) {
  const me = useMe().data;
  const closesServer = isFirst && me?.actor === "anonymous";
  const [name, setName] = useState("");
  const [chosenScopes, setScopes] = useState<Scope[] | null>(null);
  const scopes: Scope[] = chosenScopes ?? (closesServer ? ["admin"] : ["read"]);
  const [namespaces, setNamespaces] = useState("");
  const [chosenLifetime, setLifetime] = useState<keyof typeof LIFETIMES | null>();
  // The only administrator must not end by itself.
  const lifetime = chosenLifetime === undefined ? (closesServer ? null : "30 days") : chosenLifetime;
  const [secret, setSecret] = useState<string | null>(null);
  const [login, setLogin] = useState<"not needed" | "done" | "failed">("not needed");
  const named = namespaces.split(",").map((each) => each.trim()).filter(Boolean);
  const create = useAction(
    async () => {
      // After the first token the server asks this page for one: its secret is shown before anything else.
      holdLogin();
      const made = await api.post("/api/v1/tokens", {
        body: {
          name: name.trim(), scopes, expires_in: lifetime === null ? null : LIFETIMES[lifetime],
          namespaces: named.length ? named : null,
        },
      });
      setSecret(made.secret);
      if (made.first && closesServer) setLogin((await logInIfAsked(made.secret)) ? "done" : "failed");
      return made;
    },
    () => null,
  );
  const leave = () => {
    releaseLogin(login === "done");
    setSecret(null);
    setScopes(null);
    setLifetime(undefined);
    setLogin("not needed");
    setName("");
    close();
  };
  return (
    <Modal opened={isOpen} onClose={leave} title="Create a token" closeButtonProps={{ "aria-label": "Close" }}>
      {secret === null ? (
        <form
          style={{ display: "grid", gap: 12 }}
          onSubmit={(event) => {
            event.preventDefault();
            create.mutate(undefined, { onError: () => releaseLogin(false) });
          }}
        >
          {closesServer && (
            <div className="quiet">
              It is the first token: every caller needs one from then on, so it must have the scope admin. This page logs in with it.
            </div>
          )}
          <TextInput label="Name" data-autofocus required value={name} onChange={(event) => setName(event.currentTarget.value)} />
          <Checkbox.Group label="Scopes" value={scopes} onChange={(chosen) => setScopes(chosen as Scope[])}>
            <div style={{ display: "flex", gap: 14, marginTop: 4 }}>{SCOPES.map((scope) => <Checkbox key={scope} value={scope} label={scope} />)}</div>
          </Checkbox.Group>
          <TextInput label="Namespaces" description="With commas between them; * is every one." placeholder={me?.namespace ?? "default"} value={namespaces} onChange={(event) => setNamespaces(event.currentTarget.value)} />
          <Select label="Ends after" placeholder="Never" clearable data={Object.keys(LIFETIMES)} value={lifetime} onChange={(value) => setLifetime(value as keyof typeof LIFETIMES | null)} />
          <div style={{ display: "flex", justifyContent: "flex-end", gap: 8 }}>
            <Button variant="default" onClick={leave}>Leave it</Button>
            <Button type="submit" disabled={!name.trim() || !scopes.length} loading={create.isPending}>Create</Button>
          </div>
        </form>
      ) : (
        <div style={{ display: "grid", gridTemplateColumns: "minmax(0, 1fr)", gap: 12 }}>
          <div>This is the secret of the token. It is shown this once.</div>
          <div data-secret><Snippet code={secret} label="Copy the secret" /></div>
          {login === "done" && <div className="quiet">This page is logged in with it.</div>}
          {login === "failed" && <div className="quiet">Every caller needs a token now, and this page could not log in with it. Copy the secret before you close this.</div>}
          <div style={{ display: "flex", justifyContent: "flex-end" }}><Button onClick={leave}>Done</Button></div>
        </div>
      )}
    </Modal>
  );
}

function Database() {
  const stats = useOne(["server", "database"], (signal) => api.get("/api/v1/db/stats", { signal }));
  if (stats.error && !stats.data) return <Card title="Database" className="span6"><Problem error={stats.error} /></Card>;
  const held = (stats.data?.items ?? []).filter((each) => each.rows > 0).sort((one, other) => other.rows - one.rows);
  return (
    <Card title="Database" className="span6">
      {stats.data && (
        <Facts
          facts={[
            ["Engine", stats.data.engine],
            ["Size", bytes(stats.data.bytes)],
            ...held.map((each): [string, string] => [each.kind.replaceAll("_", " "), plural(each.rows, "row")]),
          ]}
        />
      )}
    </Card>
  );
}

function Retention() {
  const due = useOne(["server", "retention"], (signal) => api.post("/api/v1/db/gc", { body: { dry_run: true }, signal }));
  const sweep = useAction(() => api.post("/api/v1/db/gc", { body: { dry_run: false } }), (done) => `Deleted: ${plural(done.items.reduce((sum, each) => sum + each.deleted, 0), "row")}`);
  const many = due.data?.items.reduce((sum, each) => sum + each.deleted, 0) ?? 0;
  return (
    <Card
      title="Retention" className="span6"
      side={
        <Button
          variant="default" disabled={!many} loading={sweep.isPending}
          onClick={() => confirm({ title: `Delete ${plural(many, "row")} now?`, text: "They are older than the settings keep them, and would be deleted within the hour.", action: "Delete them", danger: true, then: () => sweep.mutate(undefined) })}
        >
          Delete now
        </Button>
      }
    >
      {due.error && !due.data ? <Problem error={due.error} />
        : <Facts facts={(due.data?.items ?? []).map((each) => [each.kind.replaceAll("_", " "), `${each.days === null ? "kept for ever" : each.days < 1 ? duration(each.days * DAY) : plural(Math.round(each.days * 100) / 100, "day")}${each.deleted ? ` · ${count(each.deleted)} due` : ""}`])} />}
    </Card>
  );
}

/** A note is worth a look and breaks nothing. */
const DOCTOR_TONES: Record<string, string> = { note: "waiting" };

/** What `perdure doctor` finds, on the server itself. */
function Doctor() {
  const found = useOne(["server", "doctor"], (signal) => api.get("/api/v1/doctor", { signal }));
  return (
    <Card title="Health" className="span12" flush side={<span className="quiet">as `perdure doctor` sees it</span>}>
      {found.error && !found.data ? <Problem error={found.error} /> : (
        <ul className="rows" data-doctor>
          {found.data?.items.map((check) => (
            <li key={check.name}>
              <div>
                <span className="tag-cell"><Status status={check.state} tone={DOCTOR_TONES[check.state] ?? check.state} /></span>
                <span className="name-cell">{check.name}</span>
                <span className="quiet">{check.found}</span>
              </div>
            </li>
          ))}
        </ul>
      )}
    </Card>
  );
}

/** What must be true of the database, looked at when somebody asks. */
function Checks() {
  const [isAsked, setAsked] = useState(false);
  const found = useOne(["server", "verify"], (signal) => api.get("/api/v1/db/verify", { signal }), { enabled: isAsked });
  return (
    <Card title="Checks of the database" className="span12" flush side={<Button variant="default" loading={isAsked && !found.data && !found.error} onClick={() => setAsked(true)}>Check it</Button>}>
      {found.error && !found.data ? <Problem error={found.error} /> : found.data ? (
        <ul className="rows">
          {found.data.items.map((each) => (
            <li key={each.check}><div><Status status={each.ok ? "ok" : "error"} /><span>{each.check.replaceAll("_", " ")}</span><span className="quiet cut">{each.sentence ?? ""}</span></div></li>
          ))}
        </ul>
      ) : <div className="inside quiet">Reads all of the database, and changes nothing.</div>}
    </Card>
  );
}

function Audit() {
  const audit = useOne(["server", "audit"], (signal) => api.get("/api/v1/audit", { query: { limit: 50 }, signal }), { every: 30_000 });
  return (
    <Card title="Who did what" className="span12" flush>
      <ul className="rows">
        {audit.data?.items.map((entry) => (
          <li key={entry.id}>
            <div>
              <span className="nowrap">{entry.actor}</span>
              <span className="quiet nowrap">{entry.action.replaceAll("_", " ")}</span>
              <span className="quiet cut mono">{entry.object}{entry.count > 1 ? ` and ${entry.count - 1} more` : ""}</span>
              <span className="quiet nowrap end-cell"><Ago time={entry.time} /></span>
            </div>
          </li>
        ))}
        {audit.data?.items.length === 0 && <li><div className="quiet">Nothing has been done yet.</div></li>}
      </ul>
    </Card>
  );
}
