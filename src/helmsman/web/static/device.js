// The key by which this browser logs in again without a code. No script can read it, and only this page's own address gets it.
// Used by the page and by its service worker, so it is no module. Where a browser keeps no keys, nothing is remembered.
"use strict";

(() => {
  const KIND = { name: "ECDSA", namedCurve: "P-256" };
  const HEADERS = { "Content-Type": "application/json", "X-Helmsman": "1" };

  function store(mode, act) {
    return new Promise((resolve, reject) => {
      const opening = indexedDB.open("helmsman", 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore("device");
      opening.onerror = () => reject(opening.error);
      opening.onsuccess = () => {
        const doing = act(opening.result.transaction("device", mode).objectStore("device"));
        doing.onsuccess = () => resolve(doing.result);
        doing.onerror = () => reject(doing.error);
        doing.transaction.oncomplete = () => opening.result.close();
      };
    });
  }

  function base64(buffer) {
    return btoa(String.fromCharCode(...new Uint8Array(buffer)));
  }

  function post(path, body) {
    return fetch(`api/${path}`, { method: "POST", headers: HEADERS, body: JSON.stringify(body), credentials: "same-origin" });
  }

  function name() {
    const agent = navigator.userAgent;
    const found = (names) => names.find(([sign]) => agent.includes(sign))?.[1];
    const browser = found([["Edg/", "Edge"], ["OPR/", "Opera"], ["Firefox/", "Firefox"], ["Chrome/", "Chrome"], ["Safari/", "Safari"]]);
    const system = found([["Android", "Android"], ["iPhone", "iPhone"], ["iPad", "iPad"], ["Windows", "Windows"], ["Mac OS", "macOS"], ["Linux", "Linux"]]);
    return `${browser ?? "A browser"}${system ? ` on ${system}` : ""}`;
  }

  let underWay = null;

  async function logInAgain() {
    const known = await store("readonly", (devices) => devices.get("own"));
    if (!known) return false;
    const nonce = base64(crypto.getRandomValues(new Uint8Array(24)));
    const { challenge } = await (await post("proof", { nonce })).json();
    const content = new TextEncoder().encode(`helmsman device\n${location.origin}\n${nonce}\n${challenge}`);
    const signature = base64(await crypto.subtle.sign({ name: "ECDSA", hash: "SHA-256" }, known.key, content));
    const answer = await post("login/device", { device: known.id, nonce, challenge, signature });
    if (answer.status === 401) await self.helmsmanDevice.forget(); // it was revoked
    return answer.ok;
  }

  self.helmsmanDevice = {
    /** A new key: `own` to keep, `device` to send along with a code. Null where none can be kept. */
    async make() {
      if (!self.crypto?.subtle || !self.indexedDB) return null;
      const pair = await crypto.subtle.generateKey(KIND, false, ["sign", "verify"]);
      return { own: pair.privateKey, device: { name: name(), key: base64(await crypto.subtle.exportKey("spki", pair.publicKey)) } };
    },
    remember: (id, key) => store("readwrite", (devices) => devices.put({ id, key }, "own")),
    forget: () => (self.indexedDB ? store("readwrite", (devices) => devices.delete("own")).catch(() => {}) : Promise.resolve()),
    /** Whether the server knows this browser again. Asked once, however many wait for it. */
    logInAgain() {
      if (!self.crypto?.subtle || !self.indexedDB) return Promise.resolve(false);
      underWay ??= logInAgain()
        .catch(() => false)
        .finally(() => (underWay = null));
      return underWay;
    },
  };
})();
