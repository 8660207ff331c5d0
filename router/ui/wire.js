// What goes to the router and comes from it: the key, and server-sent events over fetch, which can carry the key.

// A text under a name in one of the browser's storages; for as long as the page is open where it refuses them.
export function kept(storage, name) {
  let here = "";
  return {
    get: () => {
      try {
        return window[storage].getItem(name) ?? here;
      } catch {
        return here;
      }
    },
    set: (text) => {
      here = text;
      try {
        text ? window[storage].setItem(name, text) : window[storage].removeItem(name);
      } catch {
        // it is here
      }
    },
  };
}

export const key = kept("sessionStorage", "pagewire-key");

export function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  return fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
}

export async function why(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the router answered ${response.status}`;
  }
}

export async function* events(response) {
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}
