// The story that every client tells: start, wait, question, respond, result, say, interrupt, list.
// The same as `story.py`; what it returns is checked there.

export async function tell(client, directory, { formsOpen = false } = {}) {
  const { tools } = await client.listTools(); // from here on the client validates results against their schemas

  async function call(name, args = {}) {
    const result = await client.callTool({ name, arguments: args });
    if (result.isError) throw new Error(JSON.stringify(result.content));
    return result.structuredContent;
  }

  async function settled(sessionId) {
    for (;;) {
      const status = await waited(sessionId);
      const asks = status.status === "awaiting_approval" && formsOpen; // the person is just being asked
      if (status.status !== "active" && !asks) return status;
    }
  }

  // The hub may end during a wait: the client is told, and waits again.
  async function waited(sessionId) {
    try {
      return await call("codex_wait", { sessionId });
    } catch (error) {
      if (!String(error).includes("ended during this call")) throw error;
      cuts += 1;
      return { status: "active" };
    }
  }

  let cuts = 0;
  const told = { tools: tools.map((tool) => tool.name) };
  told.started = await call("codex_start", {
    prompt: "make it",
    workingDirectory: directory,
    sandbox: "workspace-write",
    approvalPolicy: "on-request",
  });
  const { sessionId } = told.started;
  if (!formsOpen) {
    told.asked = await settled(sessionId);
    const { id } = told.asked.pendingQuestion;
    told.responded = await call("codex_respond", { sessionId, id, answers: ["approve"] });
  }
  told.made = await settled(sessionId);
  told.said = await call("codex_say", { sessionId, message: "go on" });
  told.continued = await settled(sessionId);
  await call("codex_say", { sessionId, message: "hang" });
  told.interrupted = await call("codex_interrupt", { sessionId });
  told.listed = await call("codex_list");
  told.cuts = cuts;
  return told;
}

// Where a script is told by the test how to connect, and what it prints for the test.
export const plan = JSON.parse(process.argv[2]);

export function report(told) {
  process.stdout.write(JSON.stringify(told) + "\n");
}

// Answers every form as a person would who agrees.
export function agreeingPerson() {
  const forms = [];
  return {
    forms,
    answer: async (request) => {
      forms.push(request.params);
      return { action: "accept", content: { decision: "approve" } };
    },
  };
}
