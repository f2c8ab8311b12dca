// The story through the TypeScript SDK 1.x, which speaks the handshake era only.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { agreeingPerson, plan, report, tell } from "./story.mjs";

const capabilities = plan.elicits ? { elicitation: {} } : {};
const client = new Client({ name: "typescript-1", version: "1" }, { capabilities });
const person = agreeingPerson();
if (plan.elicits) client.setRequestHandler(ElicitRequestSchema, person.answer);
await client.connect(
  plan.url
    ? new StreamableHTTPClientTransport(new URL(plan.url), { requestInit: { headers: plan.headers } })
    : new StdioClientTransport(plan.server),
);
const told = await tell(client, plan.directory, { formsOpen: plan.elicits });
report({ ...told, forms: person.forms, server: client.getServerVersion() });
await client.close();
