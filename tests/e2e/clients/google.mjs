// Google's client for Node.js: version 3 over gRPC and over REST, version 2 with an API key.

import { createRequire } from "node:module";
import translate from "@google-cloud/translate";
import { run, server } from "./steps.mjs";

const require = createRequire(import.meta.url);
const gax = createRequire(require.resolve("@google-cloud/translate"))("google-gax");
const { OAuth2Client } = createRequire(require.resolve("@google-cloud/translate"))("google-auth-library");

const parent = "projects/shop/locations/global";
const texts = ["Where is the station?", "Thank you."];
const german = "Das ist heute ein sehr schöner Tag im Garten.";
const french = "Où est la gare, s'il vous plaît ? Je cherche le train pour Lyon.";
const languages = [
  ["de", "German"],
  ["en", "English"],
];
const plain = { parent, sourceLanguageCode: "en", targetLanguageCode: "de", mimeType: "text/plain" };

// Calls of version 3 over one transport. `connect(key)` returns a client and the options of its calls; `errors` are
// patterns of error messages.
function steps(prefix, connect, errors) {
  const [client, options] = connect(server.key);
  const [stranger, wrong] = connect(server.wrong_key);
  const call = async (request) => (await client.translateText({ ...plain, ...request }, options))[0].translations;
  const named = {
    texts: [/Bahnhof.*Danke/, async () => (await call({ contents: texts })).map((item) => item.translatedText)],
    repeated: [
      1,
      async () => {
        const answers = [];
        for (let number = 0; number < 10; number += 1) {
          answers.push((await call({ contents: texts }))[0].translatedText);
        }
        return new Set(answers).size;
      },
    ],
    html: [
      /^<p>.*<b>.*<\/b>.*<\/p>$/,
      async () =>
        (await call({ contents: ["<p>Open the <b>file</b>.</p>"], mimeType: "text/html" }))[0].translatedText,
    ],
    detected: [
      ["en", "en"],
      async () => (await call({ contents: texts, sourceLanguageCode: "" })).map((item) => item.detectedLanguageCode),
    ],
    list: [
      [german, "12345", "🙂"],
      async () =>
        (await call({ contents: [...texts, german, "12345", "🙂"], sourceLanguageCode: "" }))
          .slice(2)
          .map((item) => item.translatedText),
    ],
    french: [
      errors.unserved,
      async () => (await call({ contents: [french], sourceLanguageCode: "" }))[0].translatedText,
    ],
    detection: [
      "en",
      async () =>
        (await client.detectLanguage({ parent, content: texts[0] }, options))[0].languages[0].languageCode,
    ],
    languages: [
      languages,
      async () =>
        (await client.getSupportedLanguages({ parent, displayLanguageCode: "en" }, options))[0].languages.map((item) => [
          item.languageCode,
          item.displayName,
        ]),
    ],
    glossary: [
      /Haltestelle/,
      async () =>
        (
          await client.translateText(
            { ...plain, contents: ["The station is here."], glossaryConfig: { glossary: `${parent}/glossaries/travel` } },
            options,
          )
        )[0].glossaryTranslations[0].translatedText,
    ],
    pair: [
      errors.unknownPair,
      async () => (await call({ contents: texts, targetLanguageCode: "ja" }))[0].translatedText,
    ],
    stranger: [
      errors.denied,
      async () => (await stranger.translateText({ ...plain, contents: texts }, wrong))[0].translations.length,
    ],
  };
  return Object.fromEntries(Object.entries(named).map(([name, step]) => [`${prefix} ${name}`, step]));
}

const overGrpc = (key) => [
  new translate.v3.TranslationServiceClient({
    sslCreds: new gax.GrpcClient().grpc.credentials.createInsecure(),
    apiEndpoint: "127.0.0.1",
    port: server.grpc_port,
    projectId: "shop",
  }),
  { otherArgs: { headers: { authorization: `Bearer ${key}` } }, maxRetries: 0 },
];

const overRest = (key) => {
  const authClient = new OAuth2Client();
  authClient.setCredentials({ access_token: key, expiry_date: Date.now() + 3_600_000 });
  const client = new translate.v3.TranslationServiceClient({
    fallback: true,
    protocol: "http",
    apiEndpoint: "127.0.0.1",
    port: server.http_port,
    projectId: "shop",
    authClient,
  });
  return [client, { maxRetries: 0, timeout: 10_000 }];
};

process.env.GOOGLE_CLOUD_TRANSLATE_ENDPOINT = `http://127.0.0.1:${server.http_port}/language/translate/v2`;
const ofVersion2 = (key) => new translate.v2.Translate({ key, projectId: "shop", autoRetry: false });
const [basic, stranger] = [ofVersion2(server.key), ofVersion2(server.wrong_key)];

await run({
  ...steps("grpc", overGrpc, {
    unserved: /3 INVALID_ARGUMENT.*fr/s,
    unknownPair: /5 NOT_FOUND.*ja/s,
    denied: /16 UNAUTHENTICATED/,
  }),
  ...steps("rest", overRest, { unserved: /Error.*fr/s, unknownPair: /Error.*ja/s, denied: /unauthenticated|401/i }),
  "v2 texts": [/Bahnhof.*Danke/, async () => (await basic.translate(texts, { from: "en", to: "de" }))[0]],
  "v2 repeated": [
    1,
    async () => {
      const answers = [];
      for (let number = 0; number < 10; number += 1) {
        answers.push((await basic.translate(texts[0], { from: "en", to: "de" }))[0]);
      }
      return new Set(answers).size;
    },
  ],
  "v2 html": [
    /^<p>.*<b>.*<\/b>.*<\/p>$/,
    async () => (await basic.translate("<p>Open the <b>file</b>.</p>", { from: "en", to: "de" }))[0],
  ],
  "v2 list": [
    [german, "12345", "🙂"],
    async () => (await basic.translate([...texts, german, "12345", "🙂"], "de"))[0].slice(2),
  ],
  "v2 french": [/ApiError: 400 .*fr/s, async () => (await basic.translate(french, "de"))[0]],
  "v2 detection": ["en", async () => (await basic.detect(texts[0]))[0].language],
  "v2 languages": [languages, async () => (await basic.getLanguages())[0].map((item) => [item.code, item.name])],
  "v2 pair": [/ApiError: 40[04] .*ja/s, async () => (await basic.translate("Hello.", { from: "en", to: "ja" }))[0]],
  "v2 stranger": [/ApiError: 40[013] /, async () => (await stranger.translate("Hello.", { from: "en", to: "de" }))[0]],
});
