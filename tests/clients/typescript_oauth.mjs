// A TypeScript client that is granted access by OAuth, refreshes it and reports what it could do. The plan's browser is logged in.

const plan = JSON.parse(process.argv[2]);
const isOld = plan.version === 1;
const { Client } = await import(isOld ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client");
const { StreamableHTTPClientTransport } = isOld ? await import("@modelcontextprotocol/sdk/client/streamableHttp.js") : await import("@modelcontextprotocol/client");

/** What the user's browser does on the page: it shows the request, and allows it. */
async function allow(url) {
  const post = async (path, body) => {
    const headers = { "Content-Type": "application/json", "X-Helmsman": "1", Cookie: plan.cookie };
    const answer = await fetch(new URL(path, url), { method: "POST", headers, body: JSON.stringify(body) });
    return answer.json();
  };
  const shown = await post("/api/oauth/request", { query: Object.fromEntries(url.searchParams) });
  const { redirect } = await post("/api/oauth/decision", { request: shown.request, allow: true });
  return { shown, back: new URL(redirect).searchParams };
}

let saved, verifier, allowed, information, discovered;
let asked = 0;
const provider = {
  redirectUrl: plan.back,
  clientMetadataUrl: plan.client,
  clientMetadata: { client_name: "A client", redirect_uris: [plan.back] },
  clientInformation: () => information,
  saveClientInformation: (given) => (information = given),
  discoveryState: () => discovered,
  saveDiscoveryState: (given) => (discovered = given),
  tokens: () => saved,
  saveTokens: (tokens) => (saved = tokens),
  saveCodeVerifier: (given) => (verifier = given),
  codeVerifier: () => verifier,
  redirectToAuthorization: async (url) => {
    asked += 1;
    allowed = await allow(url);
  },
};

async function connected() {
  const client = new Client({ name: "typescript-oauth", version: "1" });
  const transport = new StreamableHTTPClientTransport(new URL(plan.url), { authProvider: provider });
  try {
    await client.connect(transport);
  } catch (error) {
    if (!allowed || saved) throw error;
    await transport.finishAuth(isOld ? allowed.back.get("code") : allowed.back);
    return connected();
  }
  return client;
}

const client = await connected();
const { tools } = await client.listTools();
const before = saved.access_token;
saved = { ...saved, access_token: "gone" }; // as if its time were over
const again = await client.listTools();
await client.close();
console.log(JSON.stringify({ tools: tools.length, again: again.tools.length, isRefreshed: saved.access_token !== before, asked, shown: allowed.shown }));
