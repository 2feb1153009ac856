// Counts renew themselves every two seconds while the page is looked at. Without script: reload it.
"use strict";
const EVERY = 2000;

// Somebody who has the keyboard's focus in a part, or has selected text there, keeps it as it is.
function isInUse(part) {
  const selection = getSelection();
  return part.contains(document.activeElement)
    || (!selection.isCollapsed && part.contains(selection.anchorNode));
}

async function renew() {
  const live = document.querySelector("[data-live]");
  if (!live || document.hidden || isInUse(live)) return;
  const stale = document.getElementById("stale");
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (answer.redirected) return;
    stale.hidden = answer.ok;
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("[data-live]");
    if (fresh && !isInUse(live)) live.replaceWith(fresh);
  } catch {
    stale.hidden = false;
  }
}

setInterval(renew, EVERY);
