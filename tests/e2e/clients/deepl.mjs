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
  texts: [
    [["en", 21], ["en", 10]],
    async () =>
      (await client.translateText(texts, "en", "de")).map((item) => [item.detectedSourceLang, item.billedCharacters]),
  ],
  translation: [/Bahnhof/, async () => (await client.translateText(texts[0], "en", "de")).text],
  repeated: [
    1,
    async () => {
      const answers = [];
      for (let number = 0; number < 10; number += 1) {
        answers.push((await client.translateText(texts[0], "en", "de")).text);
      }
      return new Set(answers).size;
    },
  ],
  html: [
    /<code>big file<\/code>/,
    async () =>
      (await client.translateText("<p>Open the <code>big file</code>.</p>", "en", "de", {
        tagHandling: "html",
        ignoreTags: ["code"],
        splitSentences: "nonewlines",
        formality: "prefer_more",
      })).text,
  ],
  xml: [
    /<keep>Windows<\/keep> gekauft/,
    async () =>
      (await client.translateText("I bought <keep>Windows</keep> yesterday.", "en", "de", {
        tagHandling: "xml",
        ignoreTags: ["keep"],
      })).text,
  ],
  detected: [
    "en",
    async () => (await client.translateText("Where is the station, please?", null, "de")).detectedSourceLang,
  ],
  list: [
    [german, "12345", "🙂"],
    async () =>
      (await client.translateText(["Where is the station?", german, "12345", "🙂"], null, "de"))
        .slice(1)
        .map((item) => item.text),
  ],
  french: [/DeepLError.*\bfr\b/i, async () => (await client.translateText(french, null, "de")).text],
  glossary: [
    /Haltestelle/,
    async () => (await client.translateText("The station is here.", "en", "de", { glossary: "travel" })).text,
  ],
  source: [[["en", "English"]], async () => (await client.getSourceLanguages()).map((item) => [item.code, item.name])],
  target: [[["de", "German"]], async () => (await client.getTargetLanguages()).map((item) => [item.code, item.name])],
  document: [
    /Bahnhof/,
    async () => {
      rmSync("letter.de.txt", { force: true });
      await client.translateDocument(Buffer.from(`${texts[0]}\n`), "letter.de.txt", "en", "de", { filename: "letter.txt" });
      return readFileSync("letter.de.txt", "utf-8");
    },
  ],
  usage: [false, async () => (await client.getUsage()).anyLimitReached()],
  glossaries: [
    [["travel", 1]],
    async () => (await client.listGlossaries()).map((item) => [item.glossaryId, item.entryCount]),
  ],
  entries: [{ station: "Haltestelle" }, async () => (await client.getGlossaryEntries("travel")).entries()],
  unknown: [/GlossaryNotFoundError/, async () => (await client.getGlossary("none")).name],
  formality: [
    /DeepLError.*formality/,
    async () => (await client.translateText("Hello.", "en", "de", { formality: "more" })).text,
  ],
  pair: [/DeepLError.*target_lang/, async () => (await client.translateText("Hello.", "en", "ja")).text],
  creation: [
    /DeepLError.*glossar/i,
    async () =>
      (await client.createGlossary("x", "en", "de", new deepl.GlossaryEntries({ entries: { a: "b" } }))).name,
  ],
  stranger: [/AuthorizationError/, async () => (await stranger.translateText("Hello.", "en", "de")).text],
});
