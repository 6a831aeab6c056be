// The saved views of a screen: its filters under a name, shared with everybody in the namespace.
import { ActionIcon, Button, Menu, TextInput } from "@mantine/core";
import { useState } from "react";
import { useSearchParams } from "wouter";
import { api } from "../api/client";
import { useAction, useOne } from "../api/queries";
import { useMay } from "../app/session";
import { Icon } from "./Icon";

export function Views({ screen }: { screen: string }) {
  const mayWrite = useMay("write");
  const [parameters, setParameters] = useSearchParams();
  const [name, setName] = useState("");
  const views = useOne(["view", "list"], (signal) => api.get("/api/v1/views", { signal })).data?.items.filter((view) => view.screen === screen) ?? [];
  const save = useAction(
    (name: string) => api.put("/api/v1/views", { body: { name, screen, query: parameters.toString() } }),
    (view) => `Saved: ${view.name}`,
  );
  const remove = useAction(
    ({ name, shared }: { name: string; shared: boolean }) => api.delete("/api/v1/views", { query: { name, screen, shared } }),
    (_, view) => `Deleted: ${view.name}`,
  );
  if (!mayWrite && !views.length) return null;
  return (
    <Menu position="bottom-end" width={260}>
      <Menu.Target><Button variant="default">Views{views.length ? ` (${views.length})` : ""}</Button></Menu.Target>
      <Menu.Dropdown>
        {views.map((view) => (
          <Menu.Item
            key={`${view.shared} ${view.name}`} onClick={() => setParameters(new URLSearchParams(view.query))}
            rightSection={
              mayWrite && (
                <ActionIcon
                  component="span" variant="subtle" aria-label={`Delete ${view.name}`}
                  onClick={(event) => { event.stopPropagation(); remove.mutate(view); }}
                >
                  <Icon name="cancel" size={14} />
                </ActionIcon>
              )
            }
          >
            {view.name}
          </Menu.Item>
        ))}
        {mayWrite && (
          <form
            className="inside"
            onSubmit={(event) => { event.preventDefault(); if (name.trim()) save.mutate(name.trim(), { onSuccess: () => setName("") }); }}
          >
            <TextInput
              aria-label="Name of a new view" placeholder="Save these filters as…" maxLength={100} value={name}
              onChange={(event) => setName(event.currentTarget.value)}
            />
          </form>
        )}
      </Menu.Dropdown>
    </Menu>
  );
}
