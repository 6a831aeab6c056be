// Finds anything by its id or the first characters of it, and any screen by its name. Opened with ⌘K or /.
import { Modal, TextInput } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { useLocation } from "wouter";
import { api, type Schema } from "../api/client";
import { Icon, type IconName } from "../components/Icon";
import { linkTo, SCREENS } from "./screens";
import { useNamespace } from "./session";
import { Store, useStore } from "./store";

type Found = Schema<"IdMatch">;

interface Choice {
  key: string;
  to: string;
  title: string;
  note: string;
  icon: IconName;
}

const opened = new Store<string | null>(null);
export const openFind = (text = ""): void => opened.set(text);

export function Find() {
  const initial = useStore(opened);
  return (
    <Modal.Root opened={initial !== null} onClose={() => opened.set(null)} size="lg" yOffset="12vh" transitionProps={{ duration: 80 }}>
      <Modal.Overlay backgroundOpacity={0.45} blur={2} />
      <Modal.Content aria-label="Find anything" radius="lg">
        <Modal.Body p={0}>{initial !== null && <Search initial={initial} />}</Modal.Body>
      </Modal.Content>
    </Modal.Root>
  );
}

function Search({ initial }: { initial: string }) {
  const [text, setText] = useState(initial);
  const [current, setCurrent] = useState(0);
  const [, navigate] = useLocation();
  const space = useNamespace();
  const word = text.trim();
  const found = useQuery({
    queryKey: ["find", word, space],
    queryFn: ({ signal }) => api.get("/api/v1/find", { query: { q: word }, signal }),
    enabled: word.length >= 2,
    staleTime: 2000,
  });
  const choices = [...screensNamed(word), ...(word.length >= 2 ? (found.data?.items ?? []).flatMap(choiceOf) : [])];
  useEffect(() => setCurrent(0), [word, choices.length]);
  const open = (choice: Choice | undefined) => {
    if (!choice) return;
    opened.set(null);
    navigate(choice.to);
  };
  return (
    <div>
      <TextInput
        data-autofocus
        size="md"
        variant="unstyled"
        px="md"
        leftSection={<Icon name="search" />}
        placeholder="An id, the first characters of one, or a screen"
        aria-label="Find anything"
        role="combobox"
        aria-expanded={choices.length > 0}
        aria-controls="found"
        aria-activedescendant={choices[current] ? `found-${current}` : undefined}
        value={text}
        onChange={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
          if (step) {
            event.preventDefault();
            setCurrent((before) => Math.max(0, Math.min(choices.length - 1, before + step)));
          }
          if (event.key === "Enter") open(choices[current]);
        }}
      />
      <div className="find-list" id="found" role="listbox" aria-label="Found">
        {choices.map((choice, index) => (
          <div
            key={choice.key}
            id={`found-${index}`}
            role="option"
            aria-selected={index === current}
            className="find-item"
            onMouseMove={() => setCurrent(index)}
            onClick={() => open(choice)}
          >
            <Icon name={choice.icon} />
            <span className="cut">{choice.title}</span>
            <span className="faint nowrap" style={{ marginLeft: "auto" }}>{choice.note}</span>
          </div>
        ))}
        {!choices.length && !found.isFetching && <div className="find-item quiet">Nothing begins with this.</div>}
      </div>
    </div>
  );
}

function screensNamed(word: string): Choice[] {
  return SCREENS.flatMap(({ path, nav }) =>
    nav && nav.title.toLowerCase().includes(word.toLowerCase())
      ? [{ key: path, to: path, title: nav.title, note: "screen", icon: nav.icon }]
      : [],
  );
}

function choiceOf({ kind, id, title, status, parent_id }: Found): Choice[] {
  const to = linkTo(kind, id) ?? (kind === "attempt" && parent_id ? linkTo("rollout", parent_id) : null);
  if (to === null) return [];
  const icon = SCREENS.find((screen) => screen.nav && to.startsWith(`${screen.path}/`) && screen.path !== "/")?.nav?.icon;
  return [{ key: `${kind} ${id}`, to, title: title ? `${title} · ${id}` : id, note: [status, kind].filter(Boolean).join(" · "), icon: icon ?? "right" }];
}
