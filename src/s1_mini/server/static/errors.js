// The server's error messages in words for a visitor, who knows the labels of the page but no field of the API.

const SPEECH = { text: "The text", voice: "The voice", speed: "The speed", "voice_settings.speed": "The speed", seed: "The seed", temperature: "The temperature", top_p: "Top-p", language: "The language", instructions: "The instructions" }; // by field
const NEW_VOICE = { name: "The name", text: "The transcript", audio: "The recording", replace: "“Replace an added voice of this name”" };
const PREDICATE = /^(is|has|must|was|cannot|contains|needs|should|does) /; // how a reason begins that continues the field's name
const OF_PYDANTIC = /^(.*): (?:input|string|value) ((?:should|is) .*)$/s; // "9: input should be less than 4"
const SKIP = 'set on_unsupported to "skip"'; // advice for characters that the voice cannot pronounce
const FOR_ITS_OWNER = /,? or (raise|lower) S1_MINI_\w+| \((S1_MINI_\w+(, )?)+\)/g; // advice about settings, which only the server's operator can change

/** Whether the rest of the text can be spoken without the characters that the voice cannot pronounce. */
export function canSkip({ message = "" }) {
  return message.includes(SKIP);
}

/** The message of an error, as one or more sentences; `isNewVoice` if the request was to add a voice. */
export function inWords({ message, field, request_id: id }, isNewVoice) {
  let words = message.replace(FOR_ITS_OWNER, "").replace("with this request_id", `as ${id}`);
  if (field && words.startsWith(`${field}: `)) {
    const name = (isNewVoice ? NEW_VOICE : SPEECH)[field] ?? `The option ${field.replace(/[._]/g, " ")}`;
    words = words.slice(field.length + 2).replace(OF_PYDANTIC, "$2, not $1");
    if (PREDICATE.test(words)) words = `${name} ${words}`;
  }
  words = words.replace(SKIP, "press “Speak the rest”").replace(/, or set replace$/, ", or tick “Replace an added voice of this name”");
  words = words[0].toUpperCase() + words.slice(1);
  return /[.!?]$/.test(words) ? words : `${words}.`;
}
