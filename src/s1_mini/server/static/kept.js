// What the browser keeps: in "localStorage" or, for this tab only, in "sessionStorage". Where it refuses to, as it may in
// a private window, things are kept until the page is left.

const meanwhile = new Map();

export function keep(storage, name, value) {
  meanwhile.set(name, value);
  try {
    if (value) window[storage].setItem(name, value);
    else window[storage].removeItem(name);
  } catch {
    // kept meanwhile
  }
}

/** What was kept under this name; null if nothing was. */
export function recall(storage, name) {
  if (meanwhile.has(name)) return meanwhile.get(name) || null;
  try {
    return window[storage].getItem(name);
  } catch {
    return null;
  }
}
