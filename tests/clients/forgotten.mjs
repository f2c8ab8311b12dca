// What the TypeScript SDKs make of a server that has forgotten their session.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { Client as Client2, StreamableHTTPClientTransport as Transport2 } from "@modelcontextprotocol/client";
import { plan, report } from "./story.mjs";

async function answers(client, transport) {
  await client.connect(transport);
  const called = async () => (await client.callTool({ name: "life", arguments: {} })).content[0].text;
  const told = [await called()];
  await fetch(plan.restart);
  for (let again = 0; again < 2; again += 1) told.push(await called().catch((error) => String(error)));
  return told;
}

const about = { name: "forgotten", version: "1" };
const url = new URL(plan.url);
report({
  one: await answers(new Client(about), new StreamableHTTPClientTransport(url)),
  two: await answers(new Client2(about, { versionNegotiation: { mode: "legacy" } }), new Transport2(url)),
});
process.exit(0);
