// From a session to a commit and a pull request. Nothing is sent before the user has allowed it for the session.

import { askAndDo } from "../ask.js";
import { get, post, sessionPath } from "../api.js";
import { actionButton, freshId, h, toast } from "../dom.js";
import { draft, keepDraft } from "../drafts.js";
import { count } from "../format.js";

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
    fields: labelled("Message; its first line is the title", message),
    yes: "Commit",
    act: async () => {
      const made = await post(sessionPath(sessionId, "commit"), { message: message.value, digest: found.digest });
      keepDraft(key, "");
      toast(`Committed ${made.commit.slice(0, 8)} on ${made.branch}.`);
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
  const { target } = found;
  if (!target) throw new Error(found.cannotPublish ?? "There is nothing to publish.");
  if (!target.commits.length) throw new Error("There is nothing to publish: the session's branch has no commit of its own.");
  const [first, ...rest] = (message || `${target.commits[0]}\n\n${found.text}`).split("\n");
  const title = h("input", { required: true, autocomplete: "off" });
  const text = h("textarea", { rows: 8 });
  title.value = first;
  text.value = rest.join("\n").trim();
  const isDraft = h("input", { type: "checkbox" });
  const rule = `This session may push to ${target.url}${target.repository ? `, and open and answer a pull request at ${target.repository}` : ""}, from now on.`;
  askAndDo({
    title: found.pullRequest ? "Push, and renew the pull request" : target.opensPullRequest ? "Open a pull request" : "Push the branch",
    about: [
      h("p", {}, `${count(target.commits.length, "commit")} of ${target.branch}, for ${target.base}. The commands that ran after the last edit are added.`),
      h("p", { class: "note" }, target.isAllowed ? `Allowed before: ${rule}` : `You allow: ${rule}`),
    ],
    fields: [labelled("Title", title), labelled("Description", text), h("label", { class: "check" }, isDraft, h("span", {}, "As a draft"))],
    yes: target.isAllowed ? "Push" : "Allow and push",
    act: async () => {
      const done = await post(sessionPath(sessionId, "pull-request"), { title: title.value, text: text.value, draft: isDraft.checked, allow: target.url });
      toast(done.url ? `Pull request: ${done.url}` : `Pushed ${done.branch} to ${done.remote}.`);
    },
  });
}

function labelled(label, field) {
  field.id = freshId("field");
  return h("div", { class: "field" }, h("label", { for: field.id }, label), field);
}
