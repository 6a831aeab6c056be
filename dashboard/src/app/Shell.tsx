// The frame of every screen: navigation, the state of the server, keys.
import { ActionIcon, Menu, Modal, useMantineColorScheme } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { Link, useLocation } from "wouter";
import { feed } from "../api/changes";
import { api, send } from "../api/client";
import { useOne } from "../api/queries";
import { Confirm } from "../components/Confirm";
import { Icon } from "../components/Icon";
import { Notices } from "../components/Notices";
import { connection, needsLogin } from "./connection";
import { Find, openFind } from "./Find";
import { allKeys, listenForKeys, useKeys } from "./keys";
import { SCREENS } from "./screens";
import { chooseNamespace, useMay, useMe } from "./session";
import { remembered, useStore } from "./store";

const KEY_NAMES: Record<string, string> = { "mod+k": "⌘K or Ctrl K" };

export function Shell({ children }: { children: ReactNode }) {
  const [location, navigate] = useLocation();
  const [menu, setMenu] = useState(false);
  const [help, setHelp] = useState(false);
  useEffect(listenForKeys, []);
  useEffect(() => setMenu(false), [location]);
  const places = SCREENS.flatMap(({ path, nav }) => (nav ? [{ path, ...nav }] : []));
  useKeys({
    "mod+k": ["Find anything", () => openFind()],
    "/": ["Find anything", () => openFind()],
    "?": ["List the keys", () => setHelp(true)],
    ...Object.fromEntries(places.map(({ path, title, key }) => [`g ${key}`, [`Go to ${title}`, () => navigate(path)]])),
  });
  return (
    <div className="shell">
      <a href="#main" className="skip" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the content
      </a>
      <nav className={`side${menu ? " is-open" : ""}`} aria-label="Screens">
        <Link href="/" className="brand"><Logo />perdure</Link>
        <button type="button" className="find-button" onClick={() => openFind()}>
          <Icon name="search" size={14} /> Find <kbd>⌘K</kbd>
        </button>
        {["", "Work", "Knowledge", "Operation"].map((section) => {
          const own = places.filter((place) => place.section === section);
          return (
            <div key={section}>
              {section && own.length > 0 && <div className="nav-section">{section}</div>}
              {own.map(({ path, title, icon }) => (
                <Link key={path} href={path} className="nav" aria-current={isCurrent(path, location) ? "page" : undefined}>
                  <Icon name={icon} /> {title}
                  {path === "/approvals" && <Asking />}
                </Link>
              ))}
            </div>
          );
        })}
        <div className="side-foot"><Foot onHelp={() => setHelp(true)} /></div>
      </nav>
      <div className="main" onClick={() => menu && setMenu(false)}>
        <div className="topbar">
          <ActionIcon aria-label="Open the navigation" onClick={(event) => (event.stopPropagation(), setMenu(true))}><Icon name="menu" /></ActionIcon>
          <Link href="/" className="brand" style={{ padding: 0 }}><Logo />perdure</Link>
          <ActionIcon aria-label="Find anything" ml="auto" onClick={() => openFind()}><Icon name="search" /></ActionIcon>
        </div>
        <Away />
        <main id="main" className="screen" tabIndex={-1}>{children}</main>
      </div>
      <Find />
      <Confirm />
      <Notices />
      <Modal opened={help} onClose={() => setHelp(false)} title="Keys" closeButtonProps={{ "aria-label": "Close" }}>
        <dl className="facts">
          {help && allKeys().map(([key, what]) => (
            <div key={key}>
              <dt><kbd>{KEY_NAMES[key] ?? key}</kbd></dt>
              <dd>{what}</dd>
            </div>
          ))}
        </dl>
      </Modal>
    </div>
  );
}

const MOST_ASKING = 99;

/** How many approvals wait for a person. */
function Asking() {
  const waiting = useOne(["approval", "asking"], (signal) => api.get("/api/v1/approvals", { query: { status: "pending", limit: MOST_ASKING + 1 }, signal })).data?.items.length;
  return waiting ? <span className="count" title={`${waiting} waiting`}>{waiting > MOST_ASKING ? `${MOST_ASKING}+` : waiting}</span> : null;
}

const isCurrent = (path: string, location: string): boolean =>
  path === "/" ? location === "/" : location === path || location.startsWith(`${path}/`);

function Logo() {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="#5b5bd6" />
      <path d="M10 24V8h7a5.500 5.500 0 0 1 0 11h-3" fill="none" stroke="#fff" strokeWidth="3" strokeLinecap="round" strokeLinejoin="round" />
    </svg>
  );
}

function Away() {
  if (useStore(connection) === "live") return null;
  return (
    <div className="away" role="alert">
      <span className="dot" /> The server does not answer. This page goes on by itself when it does.
    </div>
  );
}

function Foot({ onHelp }: { onHelp: () => void }) {
  const me = useMe().data;
  const client = useQueryClient();
  const { colorScheme, setColorScheme } = useMantineColorScheme();
  const live = useStore(feed);
  const away = useStore(connection) === "away";
  const next = colorScheme === "dark" ? "light" : "dark";
  const state = away ? "away" : live;
  const colour = { live: "var(--ok)", paused: "var(--off)", connecting: "var(--wait)", away: "var(--bad)" }[state];
  const logout = async () => {
    await send("POST", "/api/v1/logout");
    client.clear();
    needsLogin.set(true);
  };
  return (
    <>
      <Namespaces />
      <div style={{ display: "flex", alignItems: "center", gap: 2, padding: "0 2px" }}>
        <span className="nav cut" style={{ flex: 1, pointerEvents: "none", color: "var(--faint)", fontSize: 12 }} title={me?.actor}>
          <span className="dot" style={{ color: colour }} data-feed={state} />
          {state === "live" ? "Live" : state === "away" ? "Server away" : state === "paused" ? "Paused" : "Connecting"}
        </span>
        <ActionIcon aria-label="Keys" onClick={onHelp}><Icon name="keys" size={15} /></ActionIcon>
        <ActionIcon
          aria-label={`Use ${next} colours`}
          onClick={() => {
            remembered.set("theme", next);
            setColorScheme(next);
          }}
        >
          <Icon name={next === "dark" ? "moon" : "sun"} size={15} />
        </ActionIcon>
        {me && me.actor !== "anonymous" && (
          <ActionIcon aria-label="Log out" onClick={() => void logout()}><Icon name="leave" size={15} /></ActionIcon>
        )}
      </div>
    </>
  );
}

function Namespaces() {
  const me = useMe().data;
  const client = useQueryClient();
  const admin = useMay("admin");
  const all = useOne(["namespaces"], (signal) => api.get("/api/v1/namespaces", { signal }), { enabled: admin });
  const names = [...new Set([...(me?.namespaces ?? all.data?.items ?? []), ...(me ? [me.namespace] : [])])].sort();
  if (names.length < 2) return null;
  return (
    <Menu position="top-start" width={200}>
      <Menu.Target>
        <button type="button" className="find-button" style={{ margin: 0 }} aria-label={`${me?.namespace ?? ""}: choose the namespace`}>
          <span className="cut">{me?.namespace}</span><span style={{ marginLeft: "auto" }}><Icon name="down" size={12} /></span>
        </button>
      </Menu.Target>
      <Menu.Dropdown>
        {names.map((name) => (
          <Menu.Item key={name} onClick={() => (chooseNamespace(name), void client.invalidateQueries())}>{name}</Menu.Item>
        ))}
      </Menu.Dropdown>
    </Menu>
  );
}
