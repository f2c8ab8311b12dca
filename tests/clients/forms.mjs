// A form that stays open: the agent waits and cannot answer. Once the person has dismissed it, the agent may.

import { plan, report } from "./story.mjs";

const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");

const transport = plan.url
  ? new StreamableHTTPClientTransport(new URL(plan.url), { requestInit: { headers: plan.headers } })
  : new StdioClientTransport(plan.server);
const client = new Client({ name: "forms", version: "1" }, { capabilities: { elicitation: {} } });
const shown = Promise.withResolvers();
const dismissed = Promise.withResolvers();
client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
  shown.resolve(params.message);
  await dismissed.promise;
  return { action: "cancel" };
});
await client.connect(transport);
const call = async (name, args) => client.callTool({ name, arguments: args });

const { sessionId } = (await call("codex_start", plan.start)).structuredContent;
let returned = false;
const waiting = call("codex_wait", { sessionId, timeoutSec: 60 }).then((result) => {
  returned = true;
  return result.structuredContent;
});
const message = await shown.promise;
const status = (await call("codex_status", { sessionId })).structuredContent;
const answer = { sessionId, id: status.pendingQuestion.id, answers: ["approve"] };
const refused = await call("codex_respond", answer);
const early = returned;
dismissed.resolve();
const waited = await waiting;
const answered = await call("codex_respond", answer);
const end = (await call("codex_wait", { sessionId, timeoutSec: 60 })).structuredContent;
report({ message, early, refused: refused.content[0].text, waited, answered: !answered.isError, end });
await client.close();
