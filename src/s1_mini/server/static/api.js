// The page's requests to the server, and their error messages. URLs are relative, so that a path prefix works.

import { canSkip, inWords } from "./errors.js";
import { keep, recall } from "./kept.js";

const KEY = "s1_mini.key";
const DEFAULT_RATE = 24000; // Hz, until the server reports the rate of its model
let modelRate = null; // Hz

export class ApiError extends Error {
  constructor(message, { status = 0, code = "", field = null, retryAfter = null, canSkip = false } = {}) {
    super(message);
    Object.assign(this, { status, code, field, retryAfter, canSkip });
  }
}

export function keepKey(key) {
  keep("sessionStorage", KEY, key);
}

/**
 * Audio while it is generated: {rate, warning, pieces}, the rate in Hz, a warning or "", and an async iterator of
 * {bytes, alignment}. The bytes are s16le mono; the alignment has the times of the next characters of the text, or is
 * null.
 */
export async function speak({ voice = "default", ...body }, signal) {
  if (!modelRate) await readHealth();
  const format = `pcm_${modelRate ?? DEFAULT_RATE}`; // the model's own rate, so that nothing is resampled
  const path = `v1/text-to-speech/${encodeURIComponent(voice)}/stream/with-timestamps?output_format=${format}`;
  const response = await post(path, body, signal);
  return {
    rate: Number(response.headers.get("X-Sample-Rate")),
    warning: decodeURIComponent(response.headers.get("X-Warning") ?? ""),
    pieces: readPieces(response.body),
  };
}

async function* readPieces(body) {
  let rest = "";
  for (const reader = body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done && rest) throw new ApiError("The connection was lost.");
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const { audio_base64: coded, alignment } of lines.map((line) => JSON.parse(line))) {
      yield { bytes: Uint8Array.from(atob(coded), (character) => character.charCodeAt(0)), alignment };
    }
  }
}

/** The audio of a request as one complete file in the given format: {file, seconds}. */
export async function speakFile(request, format, signal) {
  const response = await post("v1/tts", { ...request, format }, signal);
  return { file: await response.blob(), seconds: Number(response.headers.get("X-Audio-Seconds")) };
}

/** The state of the engine, with its `model` once it is loaded. */
export async function readHealth() {
  const health = await (await send("health")).json();
  modelRate = health.model?.sample_rate ?? modelRate;
  return health;
}

/** All voices, and whether added voices survive a restart of the server: {voices, keeps_added}. */
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

function post(path, body, signal) {
  return send(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
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
  if (!response.ok) throw await readError(response, options.body instanceof FormData);
  return response;
}

async function readError(response, isNewVoice) {
  const { error = {} } = await response.json().catch(() => ({}));
  const retryAfter = Number(response.headers.get("Retry-After")) || null;
  const asks = recall("sessionStorage", KEY) ? "The server does not accept this API key." : "This server requires an API key.";
  let message = response.status === 401 ? asks : error.message ? inWords(error, isNewVoice) : `The server answered ${response.status} ${response.statusText}`.trim() + ".";
  if (retryAfter && !/again/i.test(message)) message += ` Try again in ${retryAfter} s.`;
  return new ApiError(message, { status: response.status, code: error.code, field: error.field, retryAfter, canSkip: canSkip(error) });
}
