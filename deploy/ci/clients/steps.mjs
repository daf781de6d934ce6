// Calls of a client, one after the other: prints what each returns as JSON, or the error that it throws.

import { readFileSync } from "node:fs";

// Ports, keys and paths, as the test has written them.
export const server = JSON.parse(readFileSync("server.json", "utf-8"));

export async function run(steps) {
  const answers = {};
  for (const [name, step] of Object.entries(steps)) {
    try {
      answers[name] = await step();
    } catch (error) {
      answers[name] = `${error.constructor.name}: ${error.code ?? ""} ${error.message}`;
    }
  }
  process.stdout.write(`${JSON.stringify(answers)}\n`, () => process.exit(0));
}
