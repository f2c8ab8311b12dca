// What a TypeScript SDK 1.x makes of the tools and of their errors. It validates results against the schemas it has listed.

import { plan, report } from "./story.mjs";

const { Client } = await import(`${plan.sdk}/client/index.js`);
const { StdioClientTransport } = await import(`${plan.sdk}/client/stdio.js`);
const client = new Client({ name: plan.sdk, version: "1" }, { capabilities: {} });
await client.connect(new StdioClientTransport(plan.server));
const { tools } = await client.listTools();
const answers = [];
for (const [name, args] of plan.calls) {
  try {
    const { isError, content } = await client.callTool({ name, arguments: args });
    answers.push({ isError, text: content[0].text });
  } catch (error) {
    answers.push({ thrown: String(error) });
  }
}
report({ tools: tools.map((tool) => tool.name), answers });
await client.close();
