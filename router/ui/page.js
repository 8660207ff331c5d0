// The page: follows the router's feed while it is looked at, asks for a key where one is needed.

import * as ask from "./ask.js";
import { at, say } from "./dom.js";
import * as pods from "./pods.js";
import * as requests from "./requests.js";
import { legend } from "./timeline.js";
import { call, events, kept, key, why } from "./wire.js";

const LONGEST_WAIT_MS = 10000;
const LONGEST_SILENCE_MS = 6000; // it tells something twice a second: a router that stands still does not hang up
let following = null;
let isPaused = false;

function state(text, isLive = false) {
  say(at("state"), text);
  at("state").className = isLive ? "live" : "";
}

function show(snapshot) {
  say(at("about"), `${snapshot.router} · ${snapshot.version}`);
  pods.show(snapshot);
  requests.show(snapshot);
  ask.show(snapshot);
  at("forget").hidden = !key.get();
}

async function follow(signal) {
  let wait = 500;
  while (!signal.aborted) {
    let text = "the router ended the stream";
    const silence = new AbortController();
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), LONGEST_SILENCE_MS);
    };
    try {
      heard();
      const response = await call("ui/events", { signal: AbortSignal.any([signal, silence.signal]) });
      if (response.status === 401) return askKey(key.get() ? await why(response) : "");
      if (response.ok) {
        for await (const event of events(response)) {
          heard();
          show(JSON.parse(event));
          state("live", true);
          wait = 500;
        }
      } else text = await why(response);
    } catch (error) {
      if (signal.aborted) return;
      text = silence.signal.aborted ? "the router fell silent" : "the router does not answer";
    } finally {
      clearTimeout(timer);
    }
    if (signal.aborted) return;
    state(`not live: ${text}; trying again`);
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(2 * wait, LONGEST_WAIT_MS);
  }
}

// A page that nobody looks at costs the router nothing.
function look() {
  following?.abort();
  following = null;
  if (isPaused || document.hidden) return state(isPaused ? "paused" : "not looked at");
  if (at("key").open) return;
  following = new AbortController();
  follow(following.signal);
}

function askKey(reason) {
  state("a key is needed");
  key.set("");
  at("forget").hidden = true;
  say(at("key-why"), reason || "This router lets nobody in without one.");
  if (!at("key").open) at("key").showModal();
}

const THEMES = ["system", "light", "dark"];
const chosen = kept("localStorage", "pagewire-theme");

function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  chosen.set(name);
  say(at("theme"), `Theme: ${name}`);
}

function start() {
  pods.legend(at("block-legend"));
  legend(at("phase-legend"));
  ask.start();
  theme(THEMES.find((name) => name === chosen.get()) ?? "system");
  at("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(chosen.get()) + 1) % 3]));
  at("pause").addEventListener("click", () => {
    isPaused = !isPaused;
    at("pause").setAttribute("aria-pressed", isPaused);
    say(at("pause"), isPaused ? "Resume" : "Pause");
    look();
  });
  at("forget").addEventListener("click", () => {
    key.set("");
    location.reload();
  });
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(at("key-text").value.trim());
    at("key-text").value = "";
    at("key").close();
  });
  at("key").addEventListener("close", look); // with Escape, too: then it is asked for again
  document.addEventListener("visibilitychange", look);
  look();
}

start();
