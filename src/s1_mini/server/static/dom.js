// Three short words for what every part of the page does with its elements.

export function element(id) {
  return document.getElementById(id);
}

export function setIcon(parent, name) {
  parent.querySelector("use").setAttribute("href", `#i-${name}`);
}

/** Hide one button and show another; focus moves along, so that a keyboard never loses its place. */
export function swap(hide, show) {
  const focused = document.activeElement === hide;
  hide.hidden = true;
  show.hidden = false;
  if (focused) show.focus();
}
