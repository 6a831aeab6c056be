// A form from a JSON Schema: a field for each property. What has no simple field is written as JSON.
import { NumberInput, Select, Switch, Textarea, TextInput } from "@mantine/core";
import { useState } from "react";

export type JsonSchema = Record<string, unknown>;
export type Values = Record<string, unknown>;

const MOST_FIELDS = 60;

/** The properties of a schema, by their names. */
export function propertiesOf(schema: JsonSchema | null | undefined): [string, JsonSchema][] {
  const properties = schema && resolved(schema, schema).properties;
  if (typeof properties !== "object" || properties === null) return [];
  return Object.entries(properties as Record<string, JsonSchema>).slice(0, MOST_FIELDS);
}

export function SchemaForm({ schema, values, onChange, defaults }: { schema: JsonSchema; values: Values; onChange: (values: Values) => void; defaults?: Values }) {
  const { required: listed } = resolved(schema, schema);
  const required = Array.isArray(listed) ? (listed as string[]) : [];
  const set = (name: string, value: unknown) => {
    const next = { ...values };
    if (value === undefined) delete next[name];
    else next[name] = value;
    onChange(next);
  };
  return (
    <div className="form">
      {propertiesOf(schema).map(([name, given]) => (
        <Field
          key={name} name={name} schema={resolved(given, schema)} value={values[name]} isRequired={required.includes(name)}
          known={defaults?.[name]} onChange={(value) => set(name, value)}
        />
      ))}
    </div>
  );
}

/** A schema without its references, and without the null of an optional value. */
function resolved(schema: JsonSchema, whole: JsonSchema): JsonSchema {
  const named = typeof schema.$ref === "string" ? schema.$ref.split("/").at(-1) : undefined;
  const definitions = (whole.$defs ?? whole.definitions ?? {}) as Record<string, JsonSchema>;
  if (named !== undefined) return { ...definitions[named], ...schema, $ref: undefined };
  const choices = (schema.anyOf ?? schema.oneOf ?? schema.allOf) as JsonSchema[] | undefined;
  const some = choices?.filter((each) => each.type !== "null");
  const [only] = some ?? [];
  if (only && some?.length === 1) return { ...resolved(only, whole), ...schema, anyOf: undefined, oneOf: undefined, allOf: undefined };
  return schema;
}

interface FieldProps {
  name: string;
  schema: JsonSchema;
  value: unknown;
  known: unknown;
  isRequired: boolean;
  onChange: (value: unknown) => void;
}

function Field({ name, schema, value, known, isRequired, onChange }: FieldProps) {
  const usual = known ?? schema.default;
  const label = {
    label: typeof schema.title === "string" ? schema.title : name,
    ...(typeof schema.description === "string" ? { description: schema.description.slice(0, 300) } : {}),
    ...(isRequired ? { withAsterisk: true } : {}),
  };
  const placeholder = usual === undefined || usual === null ? "" : typeof usual === "string" ? usual : JSON.stringify(usual);
  const choices = Array.isArray(schema.enum) ? schema.enum : "const" in schema ? [schema.const] : null;
  if (choices) {
    const texts = choices.map((each) => ({ value: JSON.stringify(each), label: typeof each === "string" ? each : JSON.stringify(each) }));
    return (
      <Select
        {...label} data={texts} clearable placeholder={placeholder} value={value === undefined ? null : JSON.stringify(value)}
        onChange={(text) => onChange(text === null ? undefined : (JSON.parse(text) as unknown))}
      />
    );
  }
  if (schema.type === "boolean") {
    return <Switch size="xs" {...label} checked={Boolean(value ?? usual)} onChange={(event) => onChange(event.currentTarget.checked)} />;
  }
  if (schema.type === "number" || schema.type === "integer") {
    return (
      <NumberInput
        {...label} placeholder={placeholder} allowDecimal={schema.type === "number"} value={typeof value === "number" ? value : ""}
        onChange={(number) => onChange(typeof number === "number" ? number : undefined)}
      />
    );
  }
  if (schema.type === "string") {
    const common = { ...label, placeholder, value: typeof value === "string" ? value : "" };
    const isLong = typeof usual === "string" && usual.length > 60;
    return isLong
      ? <Textarea {...common} autosize minRows={2} maxRows={8} onChange={(event) => onChange(event.currentTarget.value || undefined)} />
      : <TextInput {...common} onChange={(event) => onChange(event.currentTarget.value || undefined)} />;
  }
  return <JsonField {...label} placeholder={placeholder} value={value} onChange={onChange} />;
}

/** A value that is written as JSON; what is not JSON yet is not taken. */
export function JsonField({ value, onChange, onValid, minRows = 2, ...rest }: { label: React.ReactNode; onValid?: (isValid: boolean) => void; description?: string; placeholder?: string; value: unknown; onChange: (value: unknown) => void; minRows?: number }) {
  const [text, setText] = useState(value === undefined ? "" : JSON.stringify(value, null, 2));
  const [error, setError] = useState<string | null>(null);
  return (
    <Textarea
      {...rest} autosize minRows={minRows} maxRows={16} value={text} error={error} classNames={{ input: "mono" }} spellCheck={false}
      onChange={(event) => {
        const typed = event.currentTarget.value;
        setText(typed);
        try {
          onChange(typed.trim() ? (JSON.parse(typed) as unknown) : undefined);
          setError(null);
          onValid?.(true);
        } catch (problem) {
          setError((problem as Error).message);
          onValid?.(false);
        }
      }}
    />
  );
}
