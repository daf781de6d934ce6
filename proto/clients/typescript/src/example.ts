// An HTTP handler that translates English text into German: POST / with the text as body.

import { status } from "@grpc/grpc-js";
import type { RequestListener } from "node:http";
import { type TranslationClient, errorDetails } from "./client.js";

const MAX_CHARACTERS = 10_000;
const HTTP_STATUS: Record<number, number> = {
  [status.INVALID_ARGUMENT]: 400,
  [status.RESOURCE_EXHAUSTED]: 503,
  [status.UNAVAILABLE]: 503,
  [status.DEADLINE_EXCEEDED]: 504,
};

export function handler(client: TranslationClient): RequestListener {
  return async (request, response) => {
    try {
      let text = "";
      for await (const chunk of request.setEncoding("utf8")) {
        text += chunk;
        if (text.length > MAX_CHARACTERS) return void response.writeHead(413).end();
      }
      const answer = await client.translate({ texts: [text], sourceLanguage: "en", targetLanguage: "de" }, 5);
      response.end(answer.translations[0]?.hypotheses[0]?.text);
    } catch (error) {
      const { retryAfterS } = errorDetails(error);
      if (retryAfterS !== undefined) response.setHeader("retry-after", Math.ceil(retryAfterS));
      response.writeHead(HTTP_STATUS[(error as { code?: number }).code ?? -1] ?? 500).end("translation failed");
    }
  };
}
