// The engines of agents and their states, and this server: its versions, a link for another device, logout.

import { get, post, sessionPlace } from "../api.js";
import { actionButton, freshId, h, redraw, toast } from "../dom.js";
import { count, dateTime, duration, shortPath, timeAgo } from "../format.js";
import { push } from "../notices.js";
import { store } from "../store.js";
import { machineCards } from "./machines.js";
import { card, Page, pairs, pairsIn } from "./page.js";

const TONE = { "in use": "good", unattended: "active", draining: "waiting", orphaned: "bad", "not answering": "bad" };
const LOOK_AGAIN = 5000;

export class EnginesView extends Page {
  #timer = 0;

  constructor(loggedOut) {
    super("Engines");
    this.engines = h("div", { class: "engines" }, h("p", { class: "empty" }, "Reading…"));
    this.fleet = h("div", { class: "engines" });
    this.server = h("dl", { class: "pairs" });
    this.link = h("p", { class: "device-link", hidden: true });
    this.devices = h("div", { class: "engines devices" });
    this.grants = h("div", { class: "engines grants" });
    this.programs = h("section", { hidden: true }, h("h2", {}, "Programs with access"), this.grants);
    this.element.append(
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
    this.follow();
    store.addEventListener("overview", () => this.#showServer(), { signal: this.signal });
  }

  async open() {
    this.#timer = setInterval(this.refresh, LOOK_AGAIN);
    this.#showServer();
    await super.open();
  }

  close() {
    clearInterval(this.#timer);
    super.close();
  }

  async read() {
    const { engines, own, fleet } = await get("engines");
    redraw(this.fleet, [fleet], () => (fleet ? machineCards(fleet) : []));
    const summaries = engines.flatMap(({ sessions }) => (sessions ?? []).map((id) => store.summary(id)));
    redraw(this.engines, [engines, own, summaries], () => {
      const cards = engines.map((engine) => engineCard(engine, own?.id === engine.id));
      if (own && !engines.some((engine) => engine.id === own.id)) cards.unshift(boundEngine(own));
      return cards.length ? cards : [h("p", { class: "empty" }, "No engine runs. The first session starts one.")];
    });
    await Promise.all([this.#readDevices(), this.#readGrants()]);
    this.ready();
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
    return card(
      `Program ${name}, added ${dateTime(addedAt)}`,
      h("h3", {}, h("bdi", {}, name)),
      pairs({ "Described at": clientId, "Access to": resource, Used: timeAgo(usedAt) }),
      actionButton("Take back", { "aria-label": `Take back the access of ${name}` }, async () => {
        await post(`grants/${encodeURIComponent(id)}/revoke`);
        await this.#readGrants();
      }),
    );
  }

  #device({ id, name, address, addedAt, seenAt, isThis, push: isPushed, approves }) {
    const answers = h("input", { type: "checkbox", checked: approves, id: freshId("approves") });
    answers.addEventListener("change", () => push(true, answers.checked).catch((error) => toast(error.message, "error")));
    return card(
      `Device ${name}, added ${dateTime(addedAt)}`,
      h("h3", {}, h("bdi", {}, name), isThis ? h("span", { class: "pill quiet" }, "this one") : null),
      pairs({ Address: address, "Logged in": timeAgo(seenAt), Notifications: isPushed ? "pushed" : "none" }),
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
    const facts = {
      Helmsman: said(({ version }) => version),
      Codex: said(({ codex, codexError }) => (codex ? `${codex.version}, ${codex.path}` : (codexError?.message ?? "not found"))),
      "At once": said(({ running, maxSessions }) => `${running} of ${count(maxSessions, "turn")}`),
      Questions: said(({ approvalTimeoutSec }) => (approvalTimeoutSec ? `denied after ${duration(approvalTimeoutSec)} without an answer` : "yours wait until you answer")),
    };
    redraw(this.server, overview, () => pairsIn(facts));
  }
}

function engineCard(engine, isOwn) {
  const isKnown = [engine.running, engine.waiting].some((number) => number !== undefined);
  return card(
    `Engine ${engine.id}`,
    h(
      "h2",
      {},
      h("span", { class: "mono" }, engine.id),
      h("span", { class: `pill ${TONE[engine.status] ?? "quiet"}` }, engine.status),
      isOwn ? h("span", { class: "pill quiet" }, "of this server") : null,
    ),
    pairs({
      Agent: engine.version ? `${engine.agent} ${engine.version}` : engine.agent,
      Working: isKnown ? `${count(engine.running ?? 0, "turn")}, ${engine.waiting ?? 0} waiting` : "not known",
      Process: [`${engine.pid}, started `, timeAgo(engine.startedAt)],
      [engine.agent === "codex" ? "Home" : "Directory"]: h("span", { title: engine.place }, shortPath(engine.place)),
    }),
    engine.sessions?.length
      ? h("p", { class: "facts" }, engine.sessions.slice(0, 12).map((id) => h("a", { href: sessionPlace(id) }, store.summary(id) ?? `…${id.slice(-12)}`)))
      : null,
  );
}

function boundEngine(own) {
  return card(
    `Engine ${own.name}`,
    h("h2", {}, h("span", { class: "mono" }, own.name), h("span", { class: `pill ${own.lost ? "bad" : "good"}` }, own.lost ? "lost" : "in use")),
    h("p", { class: "quiet" }, own.lost ?? "Bound to this server: it ends with it."),
  );
}

function isLoopback({ hostname }) {
  return ["localhost", "127.0.0.1", "[::1]"].includes(hostname);
}
