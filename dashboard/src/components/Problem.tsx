// What is shown in the place of something that could not be read.
import { Button } from "@mantine/core";
import { ApiError, ServerAway } from "../api/client";
import { openFind } from "../app/Find";
import { Empty } from "./basics";

export function Problem({ error, id }: { error: Error; id?: string }) {
  if (error instanceof ApiError && error.isMissing) return <Missing {...(id === undefined ? {} : { id })} text={error.message} />;
  if (error instanceof ServerAway) return <Empty title="The server does not answer" text="This page goes on by itself when it does." />;
  const request = error instanceof ApiError && error.requestId ? ` (request ${error.requestId})` : "";
  return <Empty title="This could not be read" text={`${error.message}${request}`} />;
}

/** The page of an id that does not exist, from which anything can be found. */
export function Missing({ id, text }: { id?: string; text?: string }) {
  return (
    <Empty title="There is nothing here" text={text ?? "This page does not exist."}>
      <Button variant="default" onClick={() => openFind(id ?? "")}>Find something else</Button>
    </Empty>
  );
}
