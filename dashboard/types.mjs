// Writes src/api/schema.d.ts from the native part of the OpenAPI document, unless it is newer than that.
import { existsSync, readFileSync, statSync, writeFileSync } from "node:fs";
import openapiTS, { astToString } from "openapi-typescript";

const source = new URL("../docs/openapi.json", import.meta.url);
const target = new URL("./src/api/schema.d.ts", import.meta.url);

/** An object of which nothing is known has values of which nothing is known. */
function open(schema) {
  if (typeof schema !== "object" || schema === null) return;
  if (schema.type === "object" && !schema.properties) schema.additionalProperties ??= true;
  Object.values(schema).forEach(open);
}

if (!existsSync(target) || statSync(target).mtimeMs < statSync(source).mtimeMs) {
  const document = JSON.parse(readFileSync(source, "utf8"));
  const native = ([path]) => path.startsWith("/api/v1/") || path === "/info";
  document.paths = Object.fromEntries(Object.entries(document.paths).filter(native));
  open(document);
  writeFileSync(target, astToString(await openapiTS(document, { defaultNonNullable: true })));
}
