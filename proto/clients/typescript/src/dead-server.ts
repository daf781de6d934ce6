// Calls without a timeout: node dist/dead-server.js TARGET prints the code of a stream whose server dies after the second
// request.

import { status } from "@grpc/grpc-js";
import { once } from "node:events";
import { TranslateDocumentRequest, TranslateRequest, TranslationClient } from "./client.js";

const client = new TranslationClient(process.argv[2] ?? "");
const request = TranslateRequest.fromPartial({ texts: ["Hello."], sourceLanguage: "en", targetLanguage: "de" });
await client.translate(request);
const document = client.translation.translateDocument(TranslateDocumentRequest.fromPartial({ text: "Hello." }));
await document.resume().toArray();
const stream = client.translation.translateStream();
stream.write(request);
await once(stream, "data");
stream.write(request);
const code = await once(stream, "end").then(() => status.OK, (error) => error.code);
process.stdout.write(`${status[code]}\n`, () => process.exit());
