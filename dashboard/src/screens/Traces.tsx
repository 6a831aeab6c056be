import { TextInput } from "@mantine/core";
import { api, type Schema } from "../api/client";
import { useCursorList } from "../api/queries";
import { useFilter, useTypedFilter } from "../app/filters";
import { Ago, Empty, Head, Id, Status } from "../components/basics";
import { Choices } from "../components/Choices";
import { Icon } from "../components/Icon";
import { type Column, Table } from "../components/Table";
import { Views } from "../components/Views";
import { compact, count, duration } from "../lib/format";

type Trace = Schema<"Trace">;

export default function Traces() {
  const [outcome, setOutcome] = useFilter("outcome");
  const [typed, setTyped, name] = useTypedFilter("name");
  const error = outcome === "error" || null;
  const list = useCursorList(["trace", "list", outcome, name], ({ signal, ...page }) =>
    api.get("/api/v1/traces", { query: { ...page, error, name_contains: name || null }, signal }),
  );
  const columns: Column<Trace>[] = [
    { name: "Outcome", width: "90px", cell: (trace) => <Status status={trace.errors ? "error" : "ok"} /> },
    { name: "Name", width: "minmax(0, 1.500fr)", cell: (trace) => trace.name },
    { name: "Service", width: "minmax(0, 120px)", wide: true, cell: (trace) => <span className="quiet">{trace.service}</span> },
    { name: "Trace", width: "minmax(0, 1fr)", wide: true, cell: (trace) => <span className="quiet"><Id id={trace.trace_id} /></span> },
    { name: "Spans", width: "64px", end: true, cell: (trace) => <span className="num">{count(trace.spans)}</span> },
    { name: "Errors", width: "58px", end: true, wide: true, cell: (trace) => <span className="num" style={trace.errors ? { color: "var(--bad)" } : {}}>{trace.errors || ""}</span> },
    { name: "Tokens", width: "64px", end: true, wide: true, cell: (trace) => <span className="num quiet">{tokens(trace)}</span> },
    { name: "Took", width: "72px", end: true, cell: (trace) => <span className="num">{duration(trace.end_time - trace.start_time)}</span> },
    { name: "Started", width: "72px", end: true, wide: true, cell: (trace) => <span className="quiet"><Ago time={trace.start_time} /></span> },
  ];
  return (
    <>
      <Head title="Traces"><Views screen="traces" /></Head>
      <div className="bar">
        <Choices single label="Outcome" choices={["error"]} chosen={outcome ? [outcome] : []} onChange={([one]) => setOutcome(one ?? "")} />
        <TextInput
          aria-label="Part of the name of a span" placeholder="Part of a name" leftSection={<Icon name="search" size={13} />} w={190} ml="auto"
          value={typed} onChange={(event) => setTyped(event.currentTarget.value)}
        />
      </div>
      <Table
        label="Traces" list={list} columns={columns}
        idOf={(trace) => trace.trace_id}
        linkOf={(trace) => `/traces/${encodeURIComponent(trace.trace_id)}`}
        empty={
          outcome || name ? <Empty title="No trace is like this" text="Take a filter away to see more." />
            : <Empty title="No traces yet" text="Agents send their spans here over OTLP:" snippet={`export OTEL_EXPORTER_OTLP_ENDPOINT=${location.origin}`} />
        }
      />
    </>
  );
}

function tokens(trace: Trace): string {
  const sum = (trace.input_tokens ?? 0) + (trace.output_tokens ?? 0);
  return sum ? compact(sum) : "";
}
