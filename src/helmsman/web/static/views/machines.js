// The machines of a fleet: their states, the work of each, and the waiting tasks.

import { h } from "../dom.js";
import { count, timeAgo } from "../format.js";

export function machineCards({ machines, waiting, tasks }) {
  const busy = machines.reduce((sum, { running }) => sum + running, 0);
  const room = machines.reduce((sum, { capacity, isAlive, isDraining }) => sum + (isAlive && !isDraining ? capacity : 0), 0);
  const number = Object.values(waiting).reduce((sum, one) => sum + one, 0);
  const none = machines.length ? [] : [h("p", { class: "empty" }, "No machine is part of the fleet. Start one: helmsman fleet worker")];
  return [
    h("h2", {}, "Machines of the fleet"),
    h("p", { class: "facts" }, `${busy} of ${count(room, "task")} at once, ${number} waiting`),
    ...none,
    ...machines.map((machine) => machineCard(machine, tasks.filter((task) => task.status === "working" && task.machine === machine.name))),
    ...(number ? [waitingCard(waiting, number, tasks.filter(({ status }) => status === "pending"))] : []),
  ];
}

function machineCard(machine, tasks) {
  const [status, tone] = !machine.isAlive ? ["silent", "bad"] : machine.isDraining ? ["draining", "waiting"] : ["up", "good"];
  const facts = [
    `${machine.running} of ${count(machine.capacity, "task")}`,
    machine.agents.join(", "),
    machine.labels.length ? `labels ${machine.labels.join(", ")}` : "",
    `Helmsman ${machine.version}`,
    machine.isAlive ? "" : `last seen ${Math.round(machine.seenSecondsAgo)} s ago`,
  ];
  return h(
    "article",
    { class: "card machine", "aria-label": `Machine ${machine.name}` },
    h("h2", {}, h("span", { class: "mono" }, machine.name), h("span", { class: `pill ${tone}` }, status)),
    h("progress", { class: "load", max: Math.max(1, machine.capacity), value: machine.running, "aria-label": `Load of ${machine.name}` }),
    h("p", { class: "facts" }, facts.filter(Boolean).join(" · ")),
    tasks.length ? h("ul", { class: "work" }, tasks.map((task) => h("li", {}, link(task)))) : null,
  );
}

function waitingCard(waiting, number, tasks) {
  const queues = Object.entries(waiting).map(([queue, one]) => `${one} for ${queue}`);
  return h(
    "article",
    { class: "card", "aria-label": "What waits" },
    h("h2", {}, count(number, "task"), h("span", { class: "pill waiting" }, "waiting")),
    h("p", { class: "facts" }, queues.join(" · ")),
    h(
      "ol",
      { class: "work" },
      tasks.map((task) => h("li", {}, link(task), h("span", { class: "quiet" }, ` ${task.queue}, priority ${task.priority}, asked for `, timeAgo(task.askedAt)))),
    ),
    number > tasks.length ? h("p", { class: "quiet" }, `The first ${tasks.length} of what you may see.`) : null,
  );
}

function link({ sessionId, text, taskId }) {
  return h("a", { href: `#/s/${encodeURIComponent(sessionId)}` }, text || taskId);
}
