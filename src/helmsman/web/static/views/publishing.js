// From a session to a commit and a pull request. Nothing is sent before the user has allowed it for the session.

import { askAndDo } from "../dialog.js";
import { get, post, sessionPath } from "../api.js";
import { actionButton, h, toast } from "../dom.js";
import { draft, keepDraft } from "../drafts.js";
import { count } from "../format.js";
import { field } from "./forms.js";

/** Buttons for a session's changes. */
export function publishingButtons(sessionId) {
  return [
    actionButton("Commit…", { dataset: { commit: "" } }, () => openCommit(sessionId)),
    actionButton("Pull request…", { dataset: { pull: "" } }, () => openPullRequest(sessionId)),
  ];
}

const look = (sessionId) => get(sessionPath(sessionId, "publishing"));

async function openCommit(sessionId, { then = null } = {}) {
  const found = await look(sessionId);
  if (found.isCommitted || !found.files) {
    toast("There is nothing to commit.");
    return;
  }
  const key = `commit:${sessionId}`;
  const message = h("textarea", { rows: 8, required: true });
  message.value = draft(key) || `${found.title}\n\n${found.text}`.trim();
  message.addEventListener("input", () => keepDraft(key, message.value));
  askAndDo({
    title: "Commit the changes",
    about: h("p", {}, `${count(found.files, "file")} in ${found.directory}${found.branch ? `, on ${found.branch}` : ""}. Hooks of the repository do not run.`),
    fields: field("Message; its first line is the title", message),
    yes: "Commit",
    act: async () => {
      const made = await post(sessionPath(sessionId, "commit"), { message: message.value, digest: found.digest });
      keepDraft(key, "");
      toast(made.commits.map((one) => `Committed ${one.commit.slice(0, 8)} on ${one.branch}.`).join(" "));
      if (then) then(message.value);
    },
  });
}

async function openPullRequest(sessionId, message = "") {
  const found = await look(sessionId);
  if (!found.isCommitted && found.files) {
    await openCommit(sessionId, { then: (text) => openPullRequest(sessionId, text).catch((error) => toast(error.message, "error")) });
    return;
  }
  const { targets } = found;
  if (!targets) throw new Error(found.cannotPublish ?? "There is nothing to publish.");
  if (!targets.length) throw new Error("There is nothing to publish: the session's branch has no commit of its own.");
  const [first, ...rest] = (message || `${targets[0].commits[0]}\n\n${found.text}`).split("\n");
  const title = h("input", { required: true, autocomplete: "off" });
  const text = h("textarea", { rows: 8 });
  title.value = first;
  text.value = rest.join("\n").trim();
  const isDraft = h("input", { type: "checkbox" });
  const rule = (one) => `This session may push to ${one.url}${one.repository ? `, and open and answer a pull request at ${one.repository}` : ""}, from now on.`;
  const isAllowed = targets.every((one) => one.isAllowed);
  askAndDo({
    title: found.pullRequests.length ? "Push, and renew the pull request" : targets.some((one) => one.opensPullRequest) ? "Open a pull request" : "Push the branch",
    about: targets.flatMap((one) => [
      h("p", {}, `${count(one.commits.length, "commit")} of ${one.branch}, for ${one.base}. The commands that ran after the last edit are added.`),
      h("p", { class: "note" }, one.isAllowed ? `Allowed before: ${rule(one)}` : `You allow: ${rule(one)}`),
    ]),
    fields: [field("Title", title), field("Description", text), h("label", { class: "check" }, isDraft, h("span", {}, "As a draft"))],
    yes: isAllowed ? "Push" : "Allow and push",
    act: async () => {
      const allow = targets.map((one) => one.url);
      const { published } = await post(sessionPath(sessionId, "pull-request"), { title: title.value, text: text.value, draft: isDraft.checked, allow });
      toast(published.map((one) => (one.url ? `Pull request: ${one.url}` : `Pushed ${one.branch} to ${one.remote}.`)).join(" "));
    },
  });
}
