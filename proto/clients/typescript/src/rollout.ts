// Calls a server while it is replaced: node dist/rollout.js TARGET SECONDS prints calls, failures and the longest call.

import { setTimeout } from "node:timers/promises";
import { TranslationClient } from "./client.js";

const [, , target = "", seconds = "0"] = process.argv;
const client = new TranslationClient(target);
const end = performance.now() + Number(seconds) * 1000;
let [calls, failed, longest] = [0, 0, 0];
while (performance.now() < end) {
  const began = performance.now();
  await client.translate({ texts: ["Hello."], sourceLanguage: "en", targetLanguage: "de" }).catch(() => failed++);
  calls++;
  longest = Math.max(longest, performance.now() - began);
  await setTimeout(20);
}
const results = { calls, failed, longest_s: longest / 1000 };
process.stdout.write(`${JSON.stringify(results)}\n`, () => process.exit());
