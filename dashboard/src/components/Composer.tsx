// Talks to an assistant: a text where it takes messages, else a form or JSON, with its configuration as a form.
import { Button, Select, Textarea } from "@mantine/core";
import { useState } from "react";
import { api, type Schema } from "../api/client";
import { useOne } from "../api/queries";
import { parsed } from "../lib/messages";
import { Icon } from "./Icon";
import { type JsonSchema, propertiesOf, SchemaForm, type Values } from "./SchemaForm";

type Assistant = Schema<"Assistant">;
type RunRequest = Schema<"RunRequest">;
/** What a run is asked for with, beside its thread. */
export type Asked = Pick<RunRequest, "assistant_id"> & Partial<RunRequest>;

const MOST = 1000;
/** What the page shows of a run while it lasts. */
export const STREAM_MODES = ["values", "updates", "messages-tuple", "custom", "tasks"];

export function useAssistants(): Assistant[] | undefined {
  return useOne(["assistant", "list"], (signal) => api.get("/api/v1/assistants", { query: { limit: MOST }, signal })).data?.items;
}

/** The name of an assistant, or its id where it is not known. */
export const nameOf = (assistants: readonly Assistant[], assistant_id: string): string =>
  assistants.find((each) => each.assistant_id === assistant_id)?.name || assistant_id;

interface ComposerProps {
  assistants: Assistant[];
  assistant_id: string;
  onAssistant: (assistant_id: string) => void;
  onSend: (asked: Asked) => void;
  isBusy: boolean;
  /** How the last run was configured; the next one is configured alike unless somebody changes it. */
  last?: Pick<Asked, "context" | "config">;
  /** What stands beside the button, such as from where a run goes on. */
  note?: React.ReactNode;
}

export function Composer({ assistants, assistant_id, onAssistant, onSend, isBusy, last, note }: ComposerProps) {
  const assistant = assistants.find((each) => each.assistant_id === assistant_id);
  const [text, setText] = useState("");
  const [fields, setFields] = useState<Values>({});
  const [settings, setSettings] = useState<Record<string, Values>>({});
  const [isConfiguring, setConfiguring] = useState(false);
  const schemas = useOne(
    ["assistant", "one", assistant_id, "schemas"],
    (signal) => api.get("/api/v1/assistants/{assistant_id}/schemas", { path: { assistant_id }, signal }),
    { enabled: assistant !== undefined },
  ).data;
  const takes = (schemas?.input_schema ?? null) as JsonSchema | null;
  const inputs = propertiesOf(takes);
  const isChat = inputs.some(([name]) => name === "messages");
  const isForm = !isChat && inputs.length > 0;
  const inContext = propertiesOf(schemas?.context_schema as JsonSchema | null).length > 0;
  const configured = ((inContext ? schemas?.context_schema : schemas?.config_schema) ?? null) as JsonSchema | null;
  const own = settings[assistant_id] ?? ((inContext ? last?.context : last?.config?.configurable) as Values | null | undefined) ?? {};
  const send = () => {
    if (!assistant || isBusy) return;
    const input = isForm ? fields : isChat ? { messages: [{ role: "user", content: text }] } : text.trim() ? parsed(text) : null;
    const options = !Object.keys(own).length ? {} : inContext ? { context: own } : { config: { configurable: own } };
    onSend({ assistant_id, input, ...options, stream_mode: STREAM_MODES, multitask_strategy: "enqueue", inherit_metadata: true });
    setText("");
  };
  const isEmpty = isChat && !text.trim();
  return (
    <form
      className="composer" aria-label="Talk to an assistant"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      {isConfiguring && configured && propertiesOf(configured).length > 0 && (
        <section className="composer-config" aria-label="Configuration">
          <SchemaForm
            key={assistant_id} schema={configured} values={own} onChange={(values) => setSettings({ ...settings, [assistant_id]: values })}
            defaults={(inContext ? assistant?.context : (assistant?.config?.configurable as Values | undefined)) ?? {}}
          />
        </section>
      )}
      {isForm && takes ? <SchemaForm key={assistant_id} schema={takes} values={fields} onChange={setFields} /> : (
        <Textarea
          aria-label={isChat ? "Message" : "Input"} autosize minRows={2} maxRows={12} value={text} variant="unstyled" size="sm"
          placeholder={isChat ? "Write a message. Enter sends it, Shift and Enter begin a line." : "The input as JSON, or a text. Enter sends it."}
          onChange={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
            event.preventDefault();
            if (!isEmpty) send();
          }}
        />
      )}
      <div className="composer-foot">
        <Select
          aria-label="Assistant" w={190} searchable allowDeselect={false} value={assistant ? assistant_id : null} placeholder="Choose an assistant"
          data={assistants.map((each) => ({ value: each.assistant_id, label: each.name }))} onChange={(value) => value && onAssistant(value)}
        />
        {propertiesOf(configured).length > 0 && (
          <Button variant={isConfiguring ? "light" : "default"} aria-expanded={isConfiguring} leftSection={<Icon name="settings" size={14} />} onClick={() => setConfiguring(!isConfiguring)}>
            Configure{Object.keys(own).length ? ` (${Object.keys(own).length})` : ""}
          </Button>
        )}
        <span className="quiet cut end-cell">{note}</span>
        <Button type="submit" disabled={!assistant || isEmpty} loading={isBusy}>Send</Button>
      </div>
    </form>
  );
}
