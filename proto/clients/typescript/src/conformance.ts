// The scenario that all clients run against one server: node dist/conformance.js SERVER.json prints the results.

import { status } from "@grpc/grpc-js";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import {
  type ClientOptions,
  TextFormat,
  TranslateDocumentRequest,
  TranslateRequest,
  type TranslateResponse,
  TranslationClient,
  errorDetails,
  statusDetails,
} from "./client.js";
import { handler } from "./example.js";

const server = JSON.parse(readFileSync(process.argv[2] ?? "server.json", "utf8"));
const tls = {
  ca: readFileSync(server.ca),
  certificate: readFileSync(server.certificate),
  privateKey: readFileSync(server.private_key),
  serverName: server.server_name,
};
const connect = (apiKey: string, options: ClientOptions = {}) =>
  new TranslationClient(server.target, { apiKey, tls, ...options });
const client = connect(server.key);
const limited = connect(server.limited_key, { maxAttempts: 1 });
const retrying = connect(server.limited_key);
const languages = { sourceLanguage: "en", targetLanguage: "de" };

const texts = (response: TranslateResponse) => response.translations.map((item) => item.hypotheses[0]?.text);
const outcome = (call: Promise<unknown>) =>
  call.then(
    () => ["OK"],
    (error) => {
      const { reason, fieldViolations, retryAfterS } = errorDetails(error);
      return [status[error.code], reason, ...fieldViolations.map(({ field }) => field), retryAfterS !== undefined];
    },
  );

const isRejected = (build: () => unknown) => {
  try {
    return !build();
  } catch {
    return true;
  }
};

async function stream(): Promise<unknown> {
  const results: Record<string, unknown> = {};
  const call = client.translation.translateStream();
  ["Thank you.", "Where is the station?", "Hello."].forEach((text, number) => {
    const options = number === 2 ? { beamSize: 99 } : {};
    call.write(TranslateRequest.fromPartial({ requestId: `r${number}`, texts: [text], ...languages, options }));
  });
  call.end();
  for await (const response of call) {
    results[response.requestId] = response.error ? statusDetails(response.error).reason : texts(response)[0];
  }
  return results;
}

async function document(): Promise<string> {
  const request = { text: "Where is the station? Thank you.", ...languages };
  let result = "";
  for await (const sentence of client.translation.translateDocument(TranslateDocumentRequest.fromPartial(request))) {
    result += sentence.text;
  }
  return result;
}

async function http(translator: TranslationClient): Promise<unknown> {
  const service = createServer(handler(translator));
  await new Promise<void>((resolve) => service.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(service.address() as AddressInfo).port}/`;
  const response = await fetch(url, { method: "POST", body: "Where is the station?" });
  const result = [response.status, await response.text(), response.headers.has("retry-after")];
  service.close();
  return result;
}

const translate = (text: string, options = {}, from = client, timeoutS?: number) =>
  from.translate({ texts: [text], ...languages, options }, timeoutS);
const nBest = await translate("The weather is nice today.", { numHypotheses: 3 });
const html = "<p>Open the <code>big file</code>.</p>";
const results = {
  translate: texts(await client.translate({ texts: ["Where is the station?", "Thank you."], ...languages })),
  n_best: nBest.translations[0]?.hypotheses.map((item) => item.text),
  markup: texts(await translate(html, { format: TextFormat.TEXT_FORMAT_HTML })),
  invalid: await outcome(translate("Hello.", { beamSize: 99 })),
  deadline: (await outcome(translate(server.long_text, {}, client, 0.05)))[0],
  default_deadline: (await outcome(translate(server.long_text, {}, connect(server.key, { timeoutS: 0.05 }))))[0],
  stream: await stream(),
  document: await document(),
  wrong_key: await outcome(translate("Hello.", {}, connect(server.wrong_key))),
  plaintext: ["example.org:50051", "localhost:50051"].map((target) =>
    isRejected(() => new TranslationClient(target, { apiKey: server.key })),
  ),
  attempts: isRejected(() => connect(server.key, { maxAttempts: 6 })),
  http: await http(client),
  admitted: await outcome(translate("Hello.", {}, limited)),
  rejected: await outcome(translate("Hello.", {}, limited)),
  retried: texts(await translate("Hello.", {}, retrying)),
  http_rejected: await http(limited),
};
process.stdout.write(`${JSON.stringify(results)}\n`, () => process.exit());
