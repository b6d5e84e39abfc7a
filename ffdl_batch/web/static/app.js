// Keeps the page up to date. Everything can be read without it.
"use strict";

const main = document.getElementById("main");
const link = document.getElementById("link");
const MOST_LINES = 5000;
const MOST_NOTICES = 3;
let stream = null;
let before = null;

function say(text) {
  link.textContent = text;
}

function notify(text) {
  const notices = document.getElementById("notices");
  const notice = document.createElement("p");
  notice.className = "notice";
  notice.textContent = text;
  notices.append(notice);
  while (notices.childElementCount > MOST_NOTICES) notices.firstElementChild.remove();
  setTimeout(() => notice.remove(), 8000);
}

// The names of ended states, and what a notice says of them.
const ENDS = { COMPLETED: "completed", FAILED: "failed", HALTED: "halted" };

function noticeEnds(states) {
  for (const [state, word] of Object.entries(ENDS)) {
    const more = (states[state] || 0) - (before?.[state] || 0);
    if (before && more > 0) notify(more === 1 ? `A job ${word}.` : `${more} jobs ${word}.`);
  }
  before = states;
}

// Replaces what has changed, without the selection, the focus and open details.
async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
  if (!fresh) return;
  Idiomorph.morph(main, fresh, {
    morphStyle: "outerHTML",
    ignoreActiveValue: true,
    callbacks: {
      beforeNodeMorphed: (old, next) => {
        if (old.tagName === "INPUT") {
          next.checked = old.checked;
          next.value = old.value;
          next.toggleAttribute("checked", old.hasAttribute("checked"));
        }
        if (old.tagName === "DETAILS") next.open = old.open;
      },
    },
  });
}

let isRefreshing = false;
let isStale = false;

async function update() {
  if (isRefreshing) {
    isStale = true;
    return;
  }
  isRefreshing = true;
  try {
    do {
      isStale = false;
      if (main.dataset.live === "morph") await refresh();
      main.dispatchEvent(new CustomEvent("jobs-changed"));
    } while (isStale);
  } catch (error) {
    // The page is being left, or the server is away; the stream of events reports that.
    console.info("not updated:", error);
  }
  isRefreshing = false;
}

function listen() {
  let isFirst = true;
  stream = new EventSource("/live");
  stream.addEventListener("changed", (event) => {
    say("");
    noticeEnds(JSON.parse(event.data));
    // The first event has the state that the page was rendered with, unless the connection was away meanwhile.
    if (!isFirst || link.dataset.wasAway) update();
    isFirst = false;
    delete link.dataset.wasAway;
  });
  stream.addEventListener("away", (event) => {
    link.dataset.wasAway = "yes";
    say(JSON.parse(event.data));
  });
  stream.addEventListener("error", () => {
    link.dataset.wasAway = "yes";
    say("ffdl web does not answer");
  });
}

// A hidden page holds no connection: browsers allow six for all pages of one address.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    stream?.close();
    stream = null;
    link.dataset.wasAway = "yes";
  } else if (main.dataset.live && !stream) {
    listen();
  }
});
if (main.dataset.live && !document.hidden) listen();

function tick() {
  for (const shown of document.querySelectorAll("[data-since]")) {
    const s = Math.max(0, Math.floor(Date.now() / 1000 - Number(shown.dataset.since)));
    const two = (n) => String(n).padStart(2, "0");
    const [days, hours, minutes] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
    const rest = `${two(s % 60)}`;
    shown.textContent = days ? `${days}-${two(hours)}:${two(minutes)}:${rest}` : hours ? `${hours}:${two(minutes)}:${rest}` : `${minutes}:${rest}`;
  }
}
setInterval(() => document.hidden || tick(), 1000);

// "/" goes to the search field, as in many tools.
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, textarea, select");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const search = document.querySelector('input[type="search"]');
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
});

// A filter applies as soon as it is chosen.
document.querySelector(".filters")?.addEventListener("change", (event) => {
  if (event.target.type === "checkbox") event.currentTarget.requestSubmit();
});

function followLog(log) {
  const following = document.getElementById("following");
  const wrap = document.getElementById("wrap");
  const isFollowing = () => following?.querySelector("input").checked;
  const toEnd = () => { log.scrollTop = log.scrollHeight; };
  wrap.addEventListener("change", () => log.classList.toggle("unwrapped", !wrap.checked));
  toEnd();
  if (!log.dataset.live) return;
  following.hidden = false;
  following.addEventListener("change", () => isFollowing() && toEnd());
  let waiting = "";
  const source = new EventSource(log.dataset.live);
  const show = () => {
    if (!waiting) return;
    log.insertAdjacentHTML("beforeend", waiting);
    waiting = "";
    for (let more = log.childElementCount - MOST_LINES; more > 0; more--) log.firstElementChild.remove();
    document.getElementById("no-lines")?.remove();
    if (isFollowing()) toEnd();
  };
  source.addEventListener("lines", (event) => {
    if (!waiting) requestAnimationFrame(show);
    waiting += JSON.parse(event.data);
  });
  source.addEventListener("end", () => {
    source.close();
    document.getElementById("log-end").textContent = "The log is complete.";
  });
  source.addEventListener("away", (event) => say(JSON.parse(event.data)));
  source.addEventListener("error", () => say("ffdl web does not answer"));
  source.addEventListener("open", () => say(""));
}
const log = document.querySelector("#log");
if (log) followLog(log);

// The editor: findings as one types, and lines that findings lead to.
function edit(manifest) {
  const findings = document.getElementById("findings");
  let timer = 0;
  const check = async () => {
    const answer = await fetch(findings.dataset.check, { method: "POST", body: new URLSearchParams({ manifest: manifest.value }) });
    if (answer.ok) findings.innerHTML = await answer.text();
  };
  const checkSoon = () => {
    clearTimeout(timer);
    timer = setTimeout(() => check().catch(() => say("ffdl web does not answer")), 400);
  };
  manifest.addEventListener("input", checkSoon);
  // Text that was typed before this script ran, or that the browser has restored.
  if (manifest.value !== manifest.defaultValue) checkSoon();
  findings.addEventListener("click", (event) => {
    const line = Number(event.target.dataset?.line);
    if (!line) return;
    event.preventDefault();
    const lines = manifest.value.split("\n");
    const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    manifest.focus();
    manifest.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
    manifest.scrollTop = Math.max(0, (line - 5) * parseFloat(getComputedStyle(manifest).lineHeight));
  });
}
const manifest = document.getElementById("manifest");
if (manifest) edit(manifest);
