// What the page asks of the server, and what went wrong in words. Addresses are relative: a path prefix is fine.

import { keep, recall } from "./kept.js";

const KEY = "s1_mini.key";
const FOR_ITS_OWNER = / or raise S1_MINI_\w+| \((S1_MINI_\w+(, )?)+\)/g; // the variables that lift a limit of the server

export class ApiError extends Error {
  constructor(message, { status = 0, code = "", field = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, code, field, retryAfter });
  }
}

export function keepKey(key) {
  keep("sessionStorage", KEY, key);
}

/** Speech while it is made: a response whose body is s16le mono. */
export function speak(request, signal) {
  return send("v1/tts", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, format: "pcm", stream: true, chunk_profile: "ttfa" }),
    signal,
  });
}

/** What the engine says of itself, its `model` once it is loaded. */
export async function readHealth() {
  return (await send("health")).json();
}

/** All voices, and whether added ones outlive the server: {voices, keeps_added}. */
export async function listVoices() {
  return (await send("v1/voices")).json();
}

export async function addVoice(name, audio, text, replace) {
  const body = new FormData();
  body.append("name", name);
  body.append("text", text);
  body.append("replace", replace);
  body.append("audio", audio, audio.name || `${name}.wav`);
  return (await send("v1/voices", { method: "POST", body })).json();
}

export function deleteVoice(name) {
  return send(`v1/voices/${encodeURIComponent(name)}`, { method: "DELETE" });
}

async function send(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = recall("sessionStorage", KEY);
  if (key) headers.set("Authorization", `Bearer ${key}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.");
  }
  if (!response.ok) throw await readError(response);
  return response;
}

async function readError(response) {
  const { error = {} } = await response.json().catch(() => ({}));
  const retryAfter = Number(response.headers.get("Retry-After")) || null;
  const asks = recall("sessionStorage", KEY) ? "The server does not accept this API key" : "This server requires an API key";
  let message = response.status === 401 ? asks : error.message || `The server answered ${response.status} ${response.statusText}`.trim();
  message = message.replace(FOR_ITS_OWNER, "");
  if (!/[.!?]$/.test(message)) message += ".";
  if (retryAfter && !/again/i.test(message)) message += ` Try again in ${retryAfter} s.`;
  return new ApiError(message, { status: response.status, code: error.code, field: error.field, retryAfter });
}
