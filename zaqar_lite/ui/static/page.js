// Counts renew themselves every two seconds while the page is looked at. Without script: reload it.
"use strict";
const EVERY = 2000;

async function renew() {
  const live = document.querySelector("[data-live]");
  if (!live || document.hidden || live.contains(document.activeElement)) return;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok || answer.redirected) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("[data-live]");
    if (fresh) live.replaceWith(fresh);
  } catch {
    // The server is away; the next look may find it.
  }
}

setInterval(renew, EVERY);
