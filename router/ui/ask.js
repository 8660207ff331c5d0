// The prompt box: one question, its answer as it streams, and where its time went.

import { at, el, ms, say } from "./dom.js";
import { draw, ofAnswer, stamps } from "./timeline.js";
import { call, events, why } from "./wire.js";

let running = null;

// Those that pods are known of: there may be more of them later. What was chosen stays chosen.
export function show({ models }) {
  const list = at("model");
  if (models.join("\n") === [...list.options].map((option) => option.value).join("\n")) return;
  const chosen = list.value;
  list.replaceChildren(...models.map((name) => el("option", { value: name }, name)));
  if (models.includes(chosen)) list.value = chosen;
}

function told(own, usage) {
  const router = own.timelines.find((each) => each.stamps.some((stamp) => stamp.phase === "received"));
  const moment = Object.fromEntries(router.stamps.map((stamp) => [stamp.phase, stamp.at_s * 1000]));
  const later = usage.completion_tokens - 1;
  const ttft = ms(moment.first_token - moment.received);
  const tpot = later > 0 ? `, TPOT ${ms((moment.last_token - moment.first_token) / later)}` : "";
  const cached = usage.prompt_tokens_details.cached_tokens;
  return `${usage.prompt_tokens} prompt tokens, ${cached} of them cached, ${usage.completion_tokens} answered; TTFT ${ttft}${tpot}`;
}

function finish(own, usage, reason) {
  const { report } = own;
  say(at("ask-state"), `Finished (${reason}): ${told(own, usage)}`);
  const timelines = ofAnswer(own.timelines);
  const figure = el("div", { class: "lanes" });
  draw(figure, timelines, { attempts: own.attempts, chunks: report?.chunks });
  const where = report ? `${[report.prefill_pod, report.decode_pod].filter(Boolean).join(" → ")}, ${report.placement}` : "";
  at("answer-timeline").replaceChildren(
    figure,
    el("p", { class: "hint" }, where),
    el("details", {}, el("summary", { class: "hint" }, "stamps"), stamps(timelines)),
  );
}

async function stream(response) {
  let [own, usage, reason] = [null, null, ""];
  let thinks = false;
  for await (const text of events(response)) {
    if (text === "[DONE]") break;
    const part = JSON.parse(text);
    if (part.error) throw new Error(part.error.message);
    for (const choice of part.choices) {
      const { content, reasoning } = choice.delta;
      if (reasoning) at("answer").append(el("span", { class: "hint" }, reasoning));
      if (content) at("answer").append(thinks ? `\n\n${content}` : content);
      if (reasoning || content) {
        thinks = !content;
        at("answer").scrollTop = at("answer").scrollHeight;
      }
      reason = choice.finish_reason ?? reason;
    }
    usage = part.usage ?? usage;
    own = part.pagewire ?? own;
  }
  if (!own?.timelines || !usage) throw new Error("the stream ended before its answer did");
  finish(own, usage, reason);
}

async function ask() {
  if (running || !at("prompt").value.trim()) return;
  running = new AbortController();
  at("send").disabled = true;
  at("stop").disabled = false;
  at("answer").hidden = false;
  at("answer").replaceChildren();
  at("answer-timeline").replaceChildren();
  at("ask-state").className = "";
  say(at("ask-state"), "The answer streams…");
  const body = {
    model: at("model").value,
    messages: [{ role: "user", content: at("prompt").value }],
    max_tokens: Number(at("most").value) || 128,
    temperature: 0, // the same answer each time: what differs is where its time went
    stream: true,
    stream_options: { include_usage: true },
  };
  const headers = { "content-type": "application/json", "x-pagewire-timeline": "1" };
  try {
    const response = await call("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal: running.signal });
    if (!response.ok) throw new Error(await why(response));
    await stream(response);
  } catch (error) {
    const isStopped = error.name === "AbortError";
    if (!isStopped) at("ask-state").className = "bad";
    say(at("ask-state"), isStopped ? "Stopped: the request was cancelled." : `Failed: ${error.message}`);
  } finally {
    running = null;
    at("send").disabled = false;
    at("stop").disabled = true;
    if (document.activeElement === document.body) at("prompt").focus();
  }
}

export function start() {
  at("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  at("stop").addEventListener("click", () => running?.abort());
  at("ask").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
    if (event.key === "Escape") running?.abort();
  });
}
