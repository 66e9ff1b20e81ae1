// Helpers for the elements of the page.

export function element(id) {
  return document.getElementById(id);
}

export function setIcon(parent, name) {
  parent.querySelector("use").setAttribute("href", `#i-${name}`);
}

/** Hide one button and show another; move the focus too, so that keyboard users keep their position. */
export function swap(hide, show) {
  const focused = document.activeElement === hide;
  hide.hidden = true;
  show.hidden = false;
  if (focused) show.focus();
}

/** Insert text at the cursor of a text field so that Undo can remove it; fires `input`. */
export function write(field, text) {
  field.focus({ preventScroll: true });
  if (document.execCommand("insertText", false, text)) return; // deprecated, but the only way that supports Undo
  field.setRangeText(text, field.selectionStart, field.selectionEnd, "end");
  field.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Download a blob under a name. */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // some browsers read the blob later
}
