// Finds the word of a text that is spoken at a given time, and highlights it.

const WORD = /[\p{L}\p{N}](?:\S*[\p{L}\p{N}])?/gu; // without the punctuation around it
const MARKUP = { text: /(?!)/g, marked: /\[[^\]\n]*\]/g, ssml: /<[^>]*>/g }; // markup by text type, which is not spoken

export class Words {
  starts = []; // known start times in seconds, by UTF-16 unit of the text

  constructor(text, textType) {
    const plain = text.replace(MARKUP[textType], (found) => " ".repeat(found.length));
    this.spans = Array.from(plain.matchAll(WORD), ({ 0: word, index }) => ({ start: index, stop: index + word.length }));
  }

  /** Append the times of the next characters. */
  add({ characters, character_start_times_seconds: starts }) {
    characters.forEach((character, i) => {
      for (let unit = 0; unit < character.length; unit++) this.starts.push(starts[i]);
    });
  }

  /** The last word that starts at or before this time, as {start, stop}; undefined before the first word. */
  at(seconds) {
    return this.spans.findLast(({ start }) => this.starts[start] <= seconds);
  }
}

/** Show a text with one word highlighted, and scroll the word into view within `scroller`. */
export function showWord(element, text, word, scroller = element) {
  if (!word) return element.replaceChildren(text);
  const mark = document.createElement("mark");
  mark.textContent = text.slice(word.start, word.stop);
  element.replaceChildren(text.slice(0, word.start), mark, text.slice(word.stop));
  const { offsetTop: top, offsetHeight: height } = mark;
  const isInSight = top >= scroller.scrollTop && top + height <= scroller.scrollTop + scroller.clientHeight;
  if (!isInSight) scroller.scrollTop = top - scroller.clientHeight / 3;
}
