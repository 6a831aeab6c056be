// What is done with the selected rows of a list of work: those that run are cancelled, those that ended run again.
import { Button } from "@mantine/core";
import { plural } from "../lib/format";
import { confirm } from "./Confirm";

interface BulkProps {
  noun: string;
  live: string[];
  ended: string[];
  cancelText: string;
  cancel: (ids: string[]) => void;
  retry: (ids: string[]) => void;
}

export function Bulk({ noun, live, ended, cancelText, cancel, retry }: BulkProps) {
  return (
    <>
      <Button
        variant="default" disabled={!ended.length}
        onClick={() => confirm({ title: `Run ${plural(ended.length, noun)} again?`, action: "Run again", then: () => retry(ended) })}
      >
        Retry {ended.length || ""}
      </Button>
      <Button
        variant="default" disabled={!live.length}
        onClick={() => confirm({ title: `Cancel ${plural(live.length, noun)}?`, text: cancelText, action: "Cancel them", danger: true, then: () => cancel(live) })}
      >
        Cancel {live.length || ""}
      </Button>
    </>
  );
}
