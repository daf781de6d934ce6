// Runs the calls of a client one after the other and prints their results, or the errors that they throw, as JSON.

import { readFileSync } from "node:fs";

// Ports, keys and paths that the test wrote.
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
