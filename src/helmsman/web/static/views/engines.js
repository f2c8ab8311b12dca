// The engines of agents and their states, and this server: its versions, a link for another device, logout.

import { get, post, sessionPlace } from "../api.js";
import { actionButton, freshId, h, redraw, toast } from "../dom.js";
import { count, dateTime, duration, shortPath, timeAgo } from "../format.js";
import { live } from "../live.js";
import { push } from "../notices.js";
import { store } from "../store.js";
import { coalesced } from "../timing.js";
import { setPlace } from "../title.js";
import { machineCards } from "./machines.js";

const TONE = { "in use": "good", unattended: "active", draining: "waiting", orphaned: "bad", "not answering": "bad" };
const LOOK_AGAIN = 5000;

export class EnginesView {
  #closed = new AbortController();
  #timer = 0;

  constructor(loggedOut) {
    this.heading = h("h1", { tabindex: "-1" }, "Engines");
    this.engines = h("div", { class: "engines" }, h("p", { class: "empty" }, "Reading…"));
    this.fleet = h("div", { class: "engines" });
    this.server = h("dl", { class: "pairs" });
    this.link = h("p", { class: "device-link", hidden: true });
    this.devices = h("div", { class: "engines devices" });
    this.grants = h("div", { class: "engines grants" });
    this.programs = h("section", { hidden: true }, h("h2", {}, "Programs with access"), this.grants);
    this.element = h(
      "div",
      { class: "wide scroller", tabindex: "0", role: "region", "aria-label": "Engines" },
      h("div", { class: "page-head" }, this.heading),
      this.fleet,
      this.engines,
      h("h2", {}, "This server"),
      this.server,
      h(
        "div",
        { class: "buttons" },
        actionButton("Link for another device", {}, () => this.#makeLink()),
        actionButton("Log out", {}, async () => {
          await post("logout");
          await window.helmsmanDevice.forget();
          loggedOut();
        }),
      ),
      this.link,
      h("h2", {}, "Devices"),
      this.devices,
      this.programs,
    );
    this.refresh = coalesced(() => this.#read().catch(() => {}), 1000);
    const { signal } = this.#closed;
    live.addEventListener("changes", () => this.refresh(), { signal });
    store.addEventListener("overview", () => this.#showServer(), { signal });
  }

  async open() {
    setPlace("Engines");
    this.#timer = setInterval(this.refresh, LOOK_AGAIN);
    this.#showServer();
    await this.#read();
  }

  close() {
    clearInterval(this.#timer);
    this.#closed.abort();
  }

  async #read() {
    const { engines, own, fleet } = await get("engines");
    redraw(this.fleet, [fleet], () => (fleet ? machineCards(fleet) : []));
    const summaries = engines.flatMap(({ sessions }) => (sessions ?? []).map((id) => store.summary(id)));
    redraw(this.engines, [engines, own, summaries], () => {
      const cards = engines.map((engine) => engineCard(engine, own?.id === engine.id));
      if (own && !engines.some((engine) => engine.id === own.id)) cards.unshift(boundEngine(own));
      return cards.length ? cards : [h("p", { class: "empty" }, "No engine runs. The first session starts one.")];
    });
    await Promise.all([this.#readDevices(), this.#readGrants()]);
    this.element.dataset.ready = "yes";
  }

  async #makeLink() {
    const page = new URL("./", document.baseURI);
    const { path, expiresAt, qr } = await post("codes", { address: page.href });
    this.link.replaceChildren(
      "Open this on the other device, once, before ",
      dateTime(expiresAt),
      ": ",
      h("code", { class: "mono" }, new URL(path.slice(1), page).href),
      h("img", { class: "qr", src: qr, alt: "The same as a QR code", width: 220, height: 220 }),
      isLoopback(page) ? h("span", { class: "quiet" }, "A phone cannot open this address. Start with helmsman dashboard --tailscale.") : null,
    );
    this.link.hidden = false;
  }

  async #readDevices() {
    const { devices } = await get("devices").catch(() => ({ devices: [] }));
    redraw(this.devices, devices, () => devices.map((one) => this.#device(one)));
  }

  /** Programs that the user has granted access over OAuth. There are none if OAuth is off. */
  async #readGrants() {
    const { grants } = await get("grants").catch(() => ({ grants: [] }));
    this.programs.hidden = !grants.length;
    redraw(this.grants, grants, () => grants.map((one) => this.#grant(one)));
  }

  #grant({ id, name, clientId, resource, addedAt, usedAt }) {
    return h(
      "article",
      { class: "card", "aria-label": `Program ${name}, added ${dateTime(addedAt)}` },
      h("h3", {}, h("bdi", {}, name)),
      h("dl", { class: "pairs" }, ...pair("Described at", clientId), ...pair("Access to", resource), ...pair("Used", timeAgo(usedAt))),
      actionButton("Take back", { "aria-label": `Take back the access of ${name}` }, async () => {
        await post(`grants/${encodeURIComponent(id)}/revoke`);
        await this.#readGrants();
      }),
    );
  }

  #device({ id, name, address, addedAt, seenAt, isThis, push: isPushed, approves }) {
    const answers = h("input", { type: "checkbox", checked: approves, id: freshId("approves") });
    answers.addEventListener("change", () => push(true, answers.checked).catch((error) => toast(error.message, "error")));
    return h(
      "article",
      { class: "card", "aria-label": `Device ${name}, added ${dateTime(addedAt)}` },
      h("h3", {}, h("bdi", {}, name), isThis ? h("span", { class: "pill quiet" }, "this one") : null),
      h("dl", { class: "pairs" }, ...pair("Address", address), ...pair("Logged in", timeAgo(seenAt)), ...pair("Notifications", isPushed ? "pushed" : "none")),
      isThis && isPushed
        ? h("p", {}, answers, h("label", { for: answers.id }, " Approve short questions in notifications, also on a locked screen"))
        : null,
      actionButton("Revoke", { "aria-label": `Revoke ${name}` }, async () => {
        await post(`devices/${encodeURIComponent(id)}/revoke`);
        await this.#readDevices();
      }),
    );
  }

  #showServer() {
    const { overview } = store;
    const said = (words) => (overview ? words(overview) : "…"); // shown from the start, so that nothing below moves later
    redraw(this.server, overview, () => [
      ...pair("Helmsman", said(({ version }) => version)),
      ...pair("Codex", said(({ codex, codexError }) => (codex ? `${codex.version}, ${codex.path}` : (codexError?.message ?? "not found")))),
      ...pair("At once", said(({ running, maxSessions }) => `${running} of ${count(maxSessions, "turn")}`)),
      ...pair("Questions", said(({ approvalTimeoutSec }) => approvalTimeoutSec ? `denied after ${duration(approvalTimeoutSec)} without an answer` : "yours wait until you answer")),
    ]);
  }
}

function engineCard(engine, isOwn) {
  return h(
    "article",
    { class: "card", "aria-label": `Engine ${engine.id}` },
    h(
      "h2",
      {},
      h("span", { class: "mono" }, engine.id),
      h("span", { class: `pill ${TONE[engine.status] ?? "quiet"}` }, engine.status),
      isOwn ? h("span", { class: "pill quiet" }, "of this server") : null,
    ),
    h(
      "dl",
      { class: "pairs" },
      ...pair("Agent", engine.version ? `${engine.agent} ${engine.version}` : engine.agent),
      ...pair("Working", [engine.running, engine.waiting].some((number) => number !== undefined) ? `${count(engine.running ?? 0, "turn")}, ${engine.waiting ?? 0} waiting` : "not known"),
      ...pair("Process", `${engine.pid}, started `, timeAgo(engine.startedAt)),
      ...pair(engine.agent === "codex" ? "Home" : "Directory", h("span", { title: engine.place }, shortPath(engine.place))),
    ),
    engine.sessions?.length
      ? h("p", { class: "facts" }, engine.sessions.slice(0, 12).map((id) => h("a", { href: sessionPlace(id) }, store.summary(id) ?? `…${id.slice(-12)}`)))
      : null,
  );
}

function boundEngine(own) {
  return h(
    "article",
    { class: "card", "aria-label": `Engine ${own.name}` },
    h("h2", {}, h("span", { class: "mono" }, own.name), h("span", { class: `pill ${own.lost ? "bad" : "good"}` }, own.lost ? "lost" : "in use")),
    h("p", { class: "quiet" }, own.lost ?? "Bound to this server: it ends with it."),
  );
}

function isLoopback({ hostname }) {
  return ["localhost", "127.0.0.1", "[::1]"].includes(hostname);
}

export function pair(name, ...value) {
  return [h("dt", {}, name), h("dd", {}, ...value)];
}
