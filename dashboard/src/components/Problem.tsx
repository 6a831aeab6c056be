// What is shown in the place of something that could not be read.
import { Button, TextInput } from "@mantine/core";
import { useState } from "react";
import { Link } from "wouter";
import { ApiError, ServerAway } from "../api/client";
import { openFind } from "../app/Find";
import { Empty } from "./basics";
import { Icon } from "./Icon";

export function Problem({ error, id }: { error: Error; id?: string }) {
  if (error instanceof ApiError && error.isMissing) return <Missing {...(id === undefined ? {} : { id })} text={error.message} />;
  if (error instanceof ServerAway) return <Empty title="The server does not answer" text="This page goes on by itself when it does." />;
  const request = error instanceof ApiError && error.requestId ? ` (request ${error.requestId})` : "";
  return <Empty title="This could not be read" text={`${error.message}${request}`} />;
}

/** The page of an id that does not exist, from which anything can be found. */
export function Missing({ id, text }: { id?: string; text?: string }) {
  const [wanted, setWanted] = useState(id ?? "");
  return (
    <Empty title="There is nothing here" text={text ?? "This page does not exist."}>
      <form
        className="missing"
        onSubmit={(event) => {
          event.preventDefault();
          openFind(wanted.trim());
        }}
      >
        <TextInput
          size="sm" aria-label="Find something else" placeholder="An id, the first characters of one, or a screen" leftSection={<Icon name="search" size={14} />}
          value={wanted} onChange={(event) => setWanted(event.currentTarget.value)}
        />
        <Button type="submit" size="sm">Find</Button>
      </form>
      <Link href="/" className="link">Go to Home</Link>
    </Empty>
  );
}
