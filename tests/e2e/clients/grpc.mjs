// gRPC for Node.js, with the contract loaded from its .proto file.

import { randomUUID } from "node:crypto";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import { run, server } from "./steps.mjs";

const definition = loader.loadSync("dragoman/v1/translation.proto", {
  includeDirs: server.proto_directories,
  longs: Number,
  enums: String,
  defaults: true,
});
const { TranslationService } = grpc.loadPackageDefinition(definition).dragoman.v1;
const client = new TranslationService(`127.0.0.1:${server.grpc_port}`, grpc.credentials.createInsecure());
const languages = { sourceLanguage: "en", targetLanguage: "de" };
const sentences = ["Where is the station?", " The weather is nice today.", " Thank you."];
const german = "Das ist heute ein sehr schöner Tag im Garten.";
const french = "Où est la gare, s'il vous plaît ? Je cherche le train pour Lyon.";

const metadata = (key = server.key) => {
  const made = new grpc.Metadata();
  made.set("authorization", `Bearer ${key}`);
  return made;
};
const deadline = (seconds) => ({ deadline: Date.now() + 1000 * seconds });

// One response.
const call = (method, request, { key = server.key, seconds = 20 } = {}) =>
  new Promise((resolve, reject) => {
    client[method](request, metadata(key), deadline(seconds), (error, answer) => (error ? reject(error) : resolve(answer)));
  });

// All responses of a stream.
const read = (stream) =>
  new Promise((resolve, reject) => {
    const answers = [];
    stream.on("data", (answer) => answers.push(answer));
    stream.on("error", reject);
    stream.on("end", () => resolve(answers));
  });

const texts = (answer) => answer.translations.map((item) => item.hypotheses[0].text);
const translated = async (...sources) => texts(await call("Translate", { texts: sources, ...languages }));

await run({
  texts: [/Bahnhof.*Danke/, async () => translated("Where is the station?", "Thank you.")],
  repeated: [
    1,
    async () => {
      const answers = [];
      for (let number = 0; number < 20; number += 1) {
        answers.push((await translated("Where is the station?"))[0]);
      }
      return new Set(answers).size;
    },
  ],
  html: [
    /<code>big file<\/code>/,
    async () =>
      texts(
        await call("Translate", {
          texts: ["<p>Open the <code>big file</code>.</p>"],
          ...languages,
          options: { format: "TEXT_FORMAT_HTML" },
        }),
      )[0],
  ],
  detected: [
    ["en", true],
    async () => {
      const answer = await call("Translate", { texts: ["Where is the station, please?"], targetLanguage: "de" });
      return [answer.detectedLanguage.language, answer.detectedLanguage.isServed];
    },
  ],
  detections: [
    ["en", "de"],
    async () =>
      (await call("DetectLanguage", { texts: ["Where is the station, please?", german], targetLanguage: "de" })).detections.map(
        (item) => item.languages[0].language,
      ),
  ],
  french: [
    /3 INVALID_ARGUMENT.*fr/,
    async () => texts(await call("Translate", { texts: [french], targetLanguage: "de" }))[0],
  ],
  blank: [["12345 🙂"], async () => texts(await call("Translate", { texts: ["12345 🙂"], targetLanguage: "de" }))],
  details: [
    [3, true],
    () =>
      call("Translate", { texts: ["Hello."], ...languages, options: { beamSize: 99 } }).catch((error) => [
        error.code,
        String(error.metadata.get("grpc-status-details-bin")[0]).includes("options.beam_size"),
      ]),
  ],
  pair: [
    /5 NOT_FOUND.*ja/,
    async () => texts(await call("Translate", { texts: ["Hello."], sourceLanguage: "en", targetLanguage: "ja" })),
  ],
  deadline: [
    4,
    () => call("Translate", { texts: ["Hello."], ...languages }, { seconds: 0.0001 }).catch((error) => error.code),
  ],
  document: [
    { indexes: [0, 1, 2], is_expected: true, spaces: [0, 1, 1] },
    async () => {
      const answers = await read(
        client.TranslateDocument({ text: sentences.join(""), ...languages }, metadata(), deadline(20)),
      );
      const expected = await translated(...sentences.map((item) => item.trim()));
      return {
        indexes: answers.map((item) => item.index),
        is_expected: answers.map((item) => item.text.trim()).join("|") === expected.join("|"),
        spaces: answers.map((item) => item.text.length - item.text.trim().length),
      };
    },
  ],
  stream: [
    { count: 4, is_expected: true, error: 3 },
    async () => {
      const stream = client.TranslateStream(metadata(), deadline(20));
      const asked = Object.fromEntries(sentences.map((text) => [randomUUID(), text.trim()]));
      for (const [requestId, text] of Object.entries(asked)) {
        stream.write({ requestId, texts: [text], ...languages });
      }
      stream.write({ requestId: "bad", texts: ["Hello."], ...languages, options: { beamSize: 99 } });
      const answers = read(stream);
      stream.end();
      const received = await answers;
      const byId = Object.fromEntries(received.map((item) => [item.requestId, item]));
      const expected = await translated(...Object.values(asked));
      return {
        count: received.length,
        is_expected: Object.keys(asked).map((id) => texts(byId[id])[0]).join("|") === expected.join("|"),
        error: byId.bad.error.code,
      };
    },
  ],
  stranger: [
    /16 UNAUTHENTICATED/,
    async () => texts(await call("Translate", { texts: ["Hello."], ...languages }, { key: server.wrong_key })),
  ],
});
