// Values that the browser stores in "localStorage" or, for this tab only, in "sessionStorage". If the browser refuses,
// for example in a private window, values are kept until the page is left.

const meanwhile = new Map();

export function keep(storage, name, value) {
  meanwhile.set(name, value);
  try {
    if (value) window[storage].setItem(name, value);
    else window[storage].removeItem(name);
  } catch {
    // kept in memory instead
  }
}

/** The value stored under this name, or null. */
export function recall(storage, name) {
  if (meanwhile.has(name)) return meanwhile.get(name) || null;
  try {
    return window[storage].getItem(name);
  } catch {
    return null;
  }
}
