// Runs calls of a client one after the other and compares their results with the expected ones.

import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";

// Ports, keys and paths that the test wrote.
export const server = JSON.parse(readFileSync("server.json", "utf-8"));

// Each step is an expected value, or a pattern that occurs in the result or in its JSON, and a call. The result of a call
// that fails is its error as text. Prints unexpected results and ends the process; its exit code is 1 if there are any.
export async function run(steps) {
  const unexpected = {};
  for (const [name, [expected, call]] of Object.entries(steps)) {
    let result;
    try {
      result = await call();
    } catch (error) {
      result = `${error.constructor.name}: ${error.code ?? ""} ${error.message}`;
    }
    const json = JSON.stringify(result) ?? "null";
    const isExpected =
      expected instanceof RegExp
        ? expected.test(typeof result === "string" ? result : json)
        : isDeepStrictEqual(JSON.parse(json), expected);
    if (!isExpected) {
      unexpected[name] = result;
    }
  }
  const failed = Object.keys(unexpected).length > 0;
  process.stdout.write(failed ? `${JSON.stringify(unexpected, null, 1)}\n` : "", () => process.exit(failed ? 1 : 0));
}
