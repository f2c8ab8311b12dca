// The story through the TypeScript SDK 2.x, in the handshake era or in that of 2026-07-28.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { agreeingPerson, plan, report, tell } from "./story.mjs";

const capabilities = plan.elicits ? { elicitation: {} } : {};
const mode = plan.era === "legacy" ? "legacy" : { pin: plan.era };
const client = new Client({ name: "typescript-2", version: "1" }, { capabilities, versionNegotiation: { mode } });
const person = agreeingPerson();
if (plan.elicits) client.setRequestHandler("elicitation/create", person.answer);
await client.connect(
  plan.url
    ? new StreamableHTTPClientTransport(new URL(plan.url), { requestInit: { headers: plan.headers } })
    : new StdioClientTransport(plan.server),
);
const told = await tell(client, plan.directory, { formsOpen: plan.elicits });
report({
  ...told,
  forms: person.forms,
  server: client.getServerVersion(),
  protocol: client.getNegotiatedProtocolVersion(),
});
await client.close();
