// The resources that a rollout used, and what their newest version changed.
import { Select } from "@mantine/core";
import { useState } from "react";
import { api } from "../api/client";
import { useOne } from "../api/queries";
import { align } from "../lib/align";
import { Card, Id } from "./basics";
import { Json } from "./Json";

const MOST_LINES = 2000;

export function Resources({ resources_id }: { resources_id: string }) {
  const path = { resources_id };
  const versions = useOne(["resources", "one", resources_id, "versions"], (signal) =>
    api.get("/api/v1/resources/{resources_id}/versions", { path, query: { limit: 100 }, signal }),
  ).data?.items;
  const [chosen, setChosen] = useState<string | null>(null);
  if (!versions?.length) return null;
  const newest = versions[0];
  const before = versions.find((each) => String(each.version) === chosen) ?? versions[1];
  const choices = versions.slice(1).map(({ version }) => ({ value: String(version), label: `from version ${version}` }));
  return (
    <Card
      title={<>Resources <Id id={resources_id} /> <span className="quiet">version {newest?.version}</span></>}
      className="span12"
      side={before && <Select aria-label="Compare with" w={150} data={choices} value={String(before.version)} allowDeselect={false} onChange={setChosen} />}
    >
      {before && newest ? <Diff before={before.resources} after={newest.resources} /> : <Json value={newest?.resources} />}
    </Card>
  );
}

function Diff({ before, after }: { before: unknown; after: unknown }) {
  const [left, right] = [before, after].map((value) => JSON.stringify(value, null, 2).split("\n").slice(0, MOST_LINES)) as [string[], string[]];
  return (
    <div className="diff" tabIndex={0} role="group" aria-label="Difference between versions">
      {align(left, right, (line) => line).map(([removed, added], place) => (
        <div key={place} className={removed === null ? "added" : added === null ? "removed" : ""}>
          {removed === null ? "+ " : added === null ? "− " : "  "}{(removed ?? added ?? "").replaceAll("\\n", "\n")}
        </div>
      ))}
    </div>
  );
}
