// Shows pushed notifications, also while no page is open, and takes answers from their buttons. The server decides whether an
// answer counts, as for one from the page. Nothing is cached: the page always comes from the server.
"use strict";

importScripts("device.js");

const WORDS = { approve: "Approve", accept: "Accept", deny: "Deny", decline: "Decline", cancel: "Cancel" };

self.addEventListener("push", (event) => {
  const told = event.data?.json() ?? {};
  const { id, title = "Helmsman", body = "", sessionId, questionId, choices = [] } = told;
  event.waitUntil(
    self.registration.showNotification(title, {
      body,
      tag: questionId ?? id,
      icon: "icon.svg",
      data: { sessionId, questionId },
      requireInteraction: Boolean(questionId),
      actions: choices.map((choice) => ({ action: choice, title: WORDS[choice] ?? choice })),
    }),
  );
});

self.addEventListener("notificationclick", (event) => {
  const { sessionId, questionId } = event.notification.data ?? {};
  event.notification.close();
  event.waitUntil(event.action && questionId ? answer(sessionId, questionId, event.action) : open(sessionId));
});

async function answer(sessionId, questionId, choice) {
  const url = `api/sessions/${encodeURIComponent(sessionId)}/questions/${encodeURIComponent(questionId)}`;
  const send = () =>
    fetch(url, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Helmsman": "1" },
      body: JSON.stringify({ answers: [choice] }),
      credentials: "same-origin",
    });
  let said = "Helmsman does not answer. The question is still open.";
  try {
    let done = await send();
    if (done.status === 401 && (await self.helmsmanDevice.logInAgain())) done = await send();
    if (done.ok) return;
    said = (await done.json()).message ?? said;
  } catch {
    // no connection
  }
  await self.registration.showNotification("Your answer was not taken", { body: said, tag: questionId, icon: "icon.svg", data: { sessionId } });
}

async function open(sessionId) {
  const place = new URL(sessionId ? `./#/s/${encodeURIComponent(sessionId)}` : "./", self.registration.scope).href;
  for (const page of await self.clients.matchAll({ type: "window", includeUncontrolled: true })) {
    if (!("navigate" in page)) continue;
    await page.focus();
    await page.navigate(place).catch(() => {});
    return;
  }
  await self.clients.openWindow(place);
}
