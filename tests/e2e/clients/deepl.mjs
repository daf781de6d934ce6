// DeepL's client for Node.js.

import { readFileSync, rmSync } from "node:fs";
import * as deepl from "deepl-node";
import { run, server } from "./steps.mjs";

const options = { serverUrl: `http://127.0.0.1:${server.http_port}`, maxRetries: 0 };
const client = new deepl.DeepLClient(server.key, options);
const stranger = new deepl.DeepLClient(server.wrong_key, options);
const texts = ["Where is the station?", "Thank you."];
const french = "Où est la gare, s'il vous plaît ? Je cherche le train pour Lyon.";
const german = "Das ist heute ein sehr schöner Tag im Garten.";

await run({
  texts: async () =>
    (await client.translateText(texts, "en", "de")).map((one) => [one.detectedSourceLang, one.billedCharacters]),
  translation: async () => (await client.translateText(texts[0], "en", "de")).text,
  repeated: async () => {
    const answers = [];
    for (let number = 0; number < 10; number += 1) {
      answers.push((await client.translateText(texts[0], "en", "de")).text);
    }
    return new Set(answers).size;
  },
  html: async () =>
    (await client.translateText("<p>Open the <code>big file</code>.</p>", "en", "de", {
      tagHandling: "html",
      ignoreTags: ["code"],
      splitSentences: "nonewlines",
      formality: "prefer_more",
    })).text,
  xml: async () =>
    (await client.translateText("I bought <keep>Windows</keep> yesterday.", "en", "de", {
      tagHandling: "xml",
      ignoreTags: ["keep"],
    })).text,
  detected: async () => (await client.translateText("Where is the station, please?", null, "de")).detectedSourceLang,
  list: async () =>
    (await client.translateText(["Where is the station?", german, "12345", "🙂"], null, "de"))
      .slice(1)
      .map((one) => one.text),
  french: async () => (await client.translateText(french, null, "de")).text,
  glossary: async () => (await client.translateText("The station is here.", "en", "de", { glossary: "travel" })).text,
  source: async () => (await client.getSourceLanguages()).map((one) => [one.code, one.name]),
  target: async () => (await client.getTargetLanguages()).map((one) => [one.code, one.name]),
  document: async () => {
    rmSync("letter.de.txt", { force: true });
    await client.translateDocument(Buffer.from(`${texts[0]}\n`), "letter.de.txt", "en", "de", { filename: "letter.txt" });
    return readFileSync("letter.de.txt", "utf-8");
  },
  usage: async () => (await client.getUsage()).anyLimitReached(),
  glossaries: async () => (await client.listGlossaries()).map((one) => [one.glossaryId, one.entryCount]),
  entries: async () => (await client.getGlossaryEntries("travel")).entries(),
  unknown: async () => (await client.getGlossary("none")).name,
  formality: async () => (await client.translateText("Hello.", "en", "de", { formality: "more" })).text,
  pair: async () => (await client.translateText("Hello.", "en", "ja")).text,
  creation: async () =>
    (await client.createGlossary("x", "en", "de", new deepl.GlossaryEntries({ entries: { a: "b" } }))).name,
  stranger: async () => (await stranger.translateText("Hello.", "en", "de")).text,
});
