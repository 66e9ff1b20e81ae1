// The page of the API: openapi.json as a person reads it. Knows what our document holds, not all that one could.

import { element } from "./dom.js";

const BASE = new URL(".", location.href).href.replace(/\/$/, "");

function make(tag, options = {}, ...children) {
  const made = Object.assign(document.createElement(tag), options);
  made.append(...children.filter((child) => child !== null));
  return made;
}

const code = (text) => make("code", {}, text);
const number = (value) => (value === 2 ** 63 ? "2^63" : String(value));

/** Bounds in words: "from 0 to 2", "above 0 up to 1". */
function bounds({ minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below }) {
  if (minimum !== undefined && minimum === maximum) return number(minimum);
  const low = minimum !== undefined ? `from ${number(minimum)}` : above !== undefined ? `above ${number(above)}` : "";
  const to = minimum !== undefined ? "to" : "up to";
  const high = maximum !== undefined ? `${to} ${number(maximum)}` : below !== undefined ? `to below ${number(below)}` : "";
  return [low, high].filter(Boolean).join(" ");
}

function span(least, most) {
  if (least !== undefined && most !== undefined) return ` of ${least} to ${most}`;
  return most !== undefined ? ` of up to ${most}` : least !== undefined ? ` of at least ${least}` : "";
}

/** What a field may be, in words. */
function kind(schema, whole) {
  const { type, enum: choices, anyOf, $ref } = schema;
  if ($ref) return kind(resolve(schema, whole), whole);
  if (anyOf) return anyOf.filter((each) => each.type !== "null").map((each) => kind(each, whole)).join(", or ");
  if (choices) return choices.join(", ").replace(/, ([^,]*)$/, " or $1");
  if (type === "integer") return `whole number ${bounds(schema)}`.trim();
  if (type === "number") return `number ${bounds(schema)}`.trim();
  if (type === "boolean") return "true or false";
  if (type === "array") return `list${span(schema.minItems, schema.maxItems)}`;
  if (type === "object") return schema.properties ? `{${Object.keys(schema.properties).join(", ")}}` : "object";
  if (schema.format === "binary") return "file";
  if (schema.pattern) return `text like ${schema.pattern}`;
  const length = span(schema.minLength, schema.maxLength);
  return type === "string" ? `text${length}${length && " characters"}` : "anything";
}

function resolve(schema, whole) {
  return schema.$ref ? whole.components.schemas[schema.$ref.split("/").at(-1)] : schema;
}

/** Rows of a table, one for each field, those of a list's items after it. */
function rows(schema, whole, asked, before = "") {
  const { properties = {}, required = [] } = resolve(schema, whole);
  const isLess = ([name]) => (required.includes(name) ? 0 : 1);
  const ordered = Object.entries(properties).sort((one, other) => isLess(one) - isLess(other)); // what is needed first
  return ordered.flatMap(([name, field]) => {
    const has = field.default !== undefined && field.default !== null && field.default !== "";
    const need = required.includes(name) ? "needed" : has ? `${field.default} if left out` : "";
    const told = [kind(field, whole), asked ? need : ""].filter(Boolean).join(", ");
    const about = field.description ?? field.anyOf?.find((each) => each.description)?.description;
    const row = make("tr", {}, make("th", { scope: "row" }, code(before + name)), make("td", {}, about ? `${about} ` : "", make("span", { className: "quiet" }, told)));
    const inner = resolve(field.items ?? (field.$ref ? field : {}), whole);
    const more = rows(inner, whole, asked, `${before}${name}${field.items ? "[]" : ""}.`);
    return [row, ...more];
  });
}

function table(schema, whole, asked) {
  const made = rows(schema, whole, asked);
  return made.length ? make("table", {}, make("tbody", {}, ...made)) : null;
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** How to call it from a shell; sound goes to a file. */
function example(method, path, content, body, format) {
  const url = quoted(BASE + path.replace(/{(\w+)}/g, "NAME"));
  const words = ["curl -sS --fail-with-body", method === "delete" ? "-X DELETE" : "", url];
  if (content === "application/json") words.push("-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body))}`);
  if (format) words.push(`-o speech.${format}`);
  return make("pre", {}, words.filter(Boolean).join(" "));
}

function body(method, path, { requestBody, responses }, whole) {
  if (!requestBody) return [example(method, path)];
  return Object.entries(requestBody.content).flatMap(([content, { schema, examples = {} }]) => [
    make("h3", {}, "Body: ", code(content)),
    table(schema, whole, true),
    ...Object.values(examples).map(({ value }) => example(method, path, content, value, suffix(schema, value, responses))),
  ]);
}

function suffix({ properties }, value, responses) {
  if (!responses[200]?.content?.["audio/wav"]) return null;
  return value.format ?? value.response_format ?? (properties.format ?? properties.response_format).default;
}

function answers({ responses }, whole) {
  const good = Object.entries(responses).find(([status]) => status < 300);
  const json = good?.[1].content?.["application/json"]?.schema;
  const list = Object.entries(responses).map(([status, { description, content = {} }]) => {
    const kinds = status < 300 ? Object.keys(content).join(", ") : "";
    return make("tr", {}, make("th", { scope: "row" }, status), make("td", {}, description, kinds && make("span", { className: "quiet" }, ` ${kinds}`)));
  });
  const fields = json && table(json, whole, false);
  return [
    make("h3", {}, "Answers"),
    make("table", {}, make("tbody", {}, ...list)),
    ...(fields ? [make("h3", {}, `Fields of ${good[0]}`), fields] : []),
  ];
}

function operation(method, path, told, whole) {
  const title = make("summary", {}, code(`${method.toUpperCase()} ${path}`), make("span", { className: "quiet" }, told.summary));
  const inside = make("div", {}, make("p", {}, told.description), ...body(method, path, told, whole), ...answers(told, whole));
  return make("details", { className: "operation", id: `${method}-${path}` }, title, inside);
}

function show(whole) {
  const byTag = new Map();
  for (const [path, methods] of Object.entries(whole.paths)) {
    for (const [method, told] of Object.entries(methods)) {
      const tag = told.tags?.[0] ?? "others";
      byTag.set(tag, [...(byTag.get(tag) ?? []), operation(method, path, told, whole)]);
    }
  }
  for (const [tag, operations] of byTag) {
    element("docs").append(make("section", {}, make("h2", {}, tag), ...operations));
  }
  element("open-all").hidden = false;
}

element("open-all").addEventListener("click", () => {
  for (const each of document.querySelectorAll("details")) each.open = true;
});
try {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`it answered ${response.status}`);
  show(await response.json());
  element("note").textContent = "";
  document.getElementById(decodeURIComponent(location.hash.slice(1)))?.setAttribute("open", "");
} catch (error) {
  element("note").textContent = `openapi.json cannot be read: ${error.message}.`;
}
element("docs").setAttribute("aria-busy", "false");
