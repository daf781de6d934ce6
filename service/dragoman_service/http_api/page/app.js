// The page over the API of the same server: nothing is loaded from elsewhere, nothing is stored.

const $ = (id) => document.getElementById(id);
const STAGES = ["queue", "encode", "decode", "text"];
const MAX_HEATMAP_CELLS = 10000; // more would stop a phone
const LANGUAGE_NAMES = new Intl.DisplayNames([navigator.language, "en"], { type: "language" });

let running = null; // the AbortController of the request under way
let detected = ""; // source language of the last translation, if it was detected

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function headers() {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

class ProblemError extends Error {
  constructor(problem, status) {
    super(problem.detail || problem.title || `the server answered ${status}`);
    this.problem = problem;
  }
}

async function checked(response) {
  if (!response.ok) throw new ProblemError(await response.json().catch(() => ({})), response.status);
  return response;
}

// Languages

async function loadLanguages() {
  const response = await checked(await fetch("v1/languages", { headers: headers() }));
  const targets = new Map((await response.json()).languages.map((each) => [each.sourceLanguage, each.targetLanguages]));
  const allTargets = [...new Set([...targets.values()].flat())].sort();
  const option = (tag) => element("option", { value: tag, textContent: `${LANGUAGE_NAMES.of(tag)} (${tag})` });
  const fillTargets = () => $("target-language").replaceChildren(...(targets.get($("source-language").value) ?? allTargets).map(option));
  $("source-language").replaceChildren(element("option", { value: "", textContent: "detected" }), ...[...targets.keys()].map(option));
  $("source-language").onchange = fillTargets;
  $("swap").onclick = () => swapLanguages(targets, fillTargets);
  fillTargets();
  if (targets.has("en")) $("target-language").value = targets.get("en")[0]; // the example is in English
  $("problem").hidden = true;
}

function swapLanguages(targets, fillTargets) {
  const [source, target] = [$("target-language").value, $("source-language").value || detected];
  if (!targets.has(source)) {
    $("status").textContent = `no model translates from ${LANGUAGE_NAMES.of(source)}`;
    return;
  }
  $("source-language").value = source;
  fillTargets();
  if (targets.get(source).includes(target)) $("target-language").value = target;
  if ($("translation").textContent) $("text").value = $("translation").textContent;
  $("translation").textContent = "";
  $("details").hidden = true;
}

// Files

async function showFiles() {
  const response = await fetch("frontend/settings");
  const { filesTranslation, supportedFilesFormat } = response.ok ? await response.json() : {};
  $("files").hidden = !filesTranslation;
  $("file").accept = (supportedFilesFormat ?? []).join();
}

async function translateFile(file) {
  const body = new FormData();
  body.append("source", $("source-language").value || "auto");
  body.append("target", $("target-language").value);
  body.append("file", file);
  const { authorization } = headers();
  $("problem").hidden = $("download").hidden = true;
  $("status").textContent = `translating ${file.name} …`;
  try {
    const response = await fetch("translate_file", { method: "POST", headers: { ...(authorization && { authorization }) }, body });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
    $("download").href = `download_file/${answer.translatedFileUrl.split("/download_file/")[1]}`;
    $("download").download = file.name;
    $("download").textContent = `Download ${file.name}`;
    $("download").hidden = false;
    $("status").textContent = answer.warning ?? "translated";
  } catch (error) {
    showProblem(error);
  }
}

// The stream of a document

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    for (let end; (end = buffer.indexOf("\n\n")) >= 0; buffer = buffer.slice(end + 2)) {
      const lines = buffer.slice(0, end).split("\n");
      const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      yield { kind: field("event"), data: JSON.parse(field("data")) };
    }
  }
}

async function start(request, signal) {
  const send = () => fetch("v1/translate/document", { method: "POST", headers: headers(), body: JSON.stringify(request), signal });
  try {
    return await checked(await send());
  } catch (error) {
    // A model without attention has no alignment either; it can still translate.
    const fields = (error.problem?.violations ?? []).map((each) => each.field);
    if (error.problem?.code !== "UNIMPLEMENTED" || !fields.some((field) => /alignment|attention/i.test(field))) throw error;
    delete request.options.returnAlignment;
    delete request.options.returnAttention;
    return checked(await send());
  }
}

async function translate() {
  running?.abort();
  const controller = (running = new AbortController());
  const text = $("text").value;
  const began = performance.now();
  $("problem").hidden = true;
  $("translation").textContent = "";
  $("translation").lang = $("target-language").value;
  $("sentences").replaceChildren();
  setBusy(true);
  let count = 0;
  const elapsed = () => `${((performance.now() - began) / 1000).toFixed(2)} s`;
  try {
    const numHypotheses = Number($("candidates").value);
    const response = await start({
      text,
      sourceLanguage: $("source-language").value,
      targetLanguage: $("target-language").value,
      options: {
        numHypotheses,
        ...(numHypotheses > 4 && { beamSize: numHypotheses }),
        format: $("format").value,
        returnAlignment: true,
        returnAttention: "ATTENTION_DETAIL_AVERAGED",
      },
    }, controller.signal);
    const characters = Array.from(text); // spans count code points
    for await (const { kind, data } of events(response.body)) {
      if (kind === "error") throw new ProblemError(data, data.status);
      if (kind !== "sentence") continue;
      $("translation").append(data.text);
      if (data.sentence) {
        count += 1;
        $("sentences").append(sentence(data, characters, count));
        $("details").hidden = false;
      }
      detected = data.detectedLanguage?.language ?? "";
      const model = data.isUnchanged ? "unchanged: the text is in the target language" : `${data.modelName}/${data.modelVersion}`;
      $("model").textContent = detected ? `${model}, ${LANGUAGE_NAMES.of(detected)} detected` : model;
      $("status").textContent = `${count} sentences, ${elapsed()} …`;
    }
    $("status").textContent = `${count} ${count === 1 ? "sentence" : "sentences"} in ${elapsed()}`;
  } catch (error) {
    if (controller.signal.aborted) {
      if (running === controller) $("status").textContent = `stopped after ${count} sentences`;
    } else {
      showProblem(error);
    }
  } finally {
    if (running === controller) {
      running = null;
      setBusy(false);
    }
  }
}

function setBusy(isBusy) {
  $("stop").disabled = !isBusy;
  $("translation").classList.toggle("busy", isBusy);
  $("translation").setAttribute("aria-busy", String(isBusy));
  if (isBusy) {
    $("details").hidden = true;
    $("status").textContent = "translating …";
  }
}

function showProblem(error) {
  const { reason, code, requestId } = error.problem ?? {};
  if (code === "UNAUTHENTICATED") $("connection").open = true;
  $("problem").textContent = [error.message, reason && `(${reason})`, requestId && `request ${requestId}`].filter(Boolean).join(" ");
  $("problem").hidden = false;
  $("status").textContent = "";
}

// What is known of a sentence

function sentence(data, characters, number) {
  const best = data.hypotheses[0];
  const span = data.sentence.source;
  const from = span.start ?? 0;
  const source = characters.slice(from, span.end);
  const [sourceLine, targetLine] = aligned(source, from, Array.from(best.text), best.alignment);
  const item = element("li", { ariaLabel: `Sentence ${number}` }, sourceLine, targetLine);
  if (data.sentence.score !== undefined) {
    item.prepend(element("p", { className: "confidence number", title: "How likely it is translated well" }, `${Math.round(100 * data.sentence.score)} % sure`));
  }
  const before = Array.from(data.text.slice(0, Math.max(0, data.text.indexOf(best.text)))).length;
  for (const warning of data.warnings) {
    if (warning.source) markSpan(sourceLine, warning.source, from, warning.message);
    if (warning.target) markSpan(targetLine, warning.target, before, warning.message);
    const kind = warning.kind.replace("WARNING_KIND_", "").replaceAll("_", " ").toLowerCase();
    item.append(element("p", { className: "warning" }, element("strong", {}, `${kind}: `), warning.message));
  }
  item.append(...candidates(data), ...(best.attention[0] ? [heatmap(best.attention)] : []), ...stages(data.timings));
  return item;
}

// Underlines a span of a line, in code points after `offset`; pieces stay as they are.
function markSpan(line, span, offset, message) {
  const [start, end] = [(span.start ?? 0) - offset, span.end - offset];
  const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  let position = 0;
  for (const node of nodes) {
    const text = Array.from(node.data);
    const [first, last] = [Math.max(0, start - position), Math.min(text.length, end - position)];
    position += text.length;
    if (first >= last) continue;
    const parts = [text.slice(0, first), text.slice(first, last), text.slice(last)].map((part) => part.join(""));
    node.replaceWith(parts[0], element("mark", { className: "warned", title: message }, parts[1]), parts[2]);
  }
}

// Two lines of pieces; pointing at one, or moving the focus to it, marks what belongs to it.
function aligned(source, offset, target, links) {
  const line = (name) => element("p", { className: `line ${name}` });
  const lines = { source: line("source"), target: line("target") };
  lines.target.lang = $("target-language").value;
  const pieces = { source: new Map(), target: new Map() };
  const cut = (side, text, spans, described) => {
    let position = 0;
    for (const [start, end] of spans) {
      if (start < position) continue; // only of overlapping sources; the first one has them
      lines[side].append(text.slice(position, start).join(""));
      const piece = element(side === "target" ? "button" : "span", { className: "piece" }, text.slice(start, end).join(""));
      if (side === "target") {
        piece.type = "button";
        piece.title = described.get(start);
        piece.ariaLabel = `${piece.textContent}, from ${described.get(start)}`;
      }
      lines[side].append(piece);
      pieces[side].set(start, piece);
      position = end;
    }
    lines[side].append(text.slice(position).join(""));
  };
  const place = (span, start = 0) => [(span.start ?? 0) - start, span.end - start];
  const ascending = (spans) => [...new Map(spans.map((span) => [span[0], span])).values()].sort((a, b) => a[0] - b[0]);
  const described = new Map(links.map((link) => {
    const [start, end] = place(link.source, offset);
    return [link.target.start ?? 0, `“${source.slice(start, end).join("")}” (${Math.round(100 * link.weight)} %)`];
  }));
  cut("source", source, ascending(links.map((link) => place(link.source, offset))));
  cut("target", target, ascending(links.map((link) => place(link.target))), described);
  for (const link of links) {
    const pair = [pieces.source.get(place(link.source, offset)[0]), pieces.target.get(link.target.start ?? 0)];
    if (!pair[0] || !pair[1]) continue;
    pair.forEach((piece) => {
      const mark = (isOn) => () => pair.forEach((each) => each.classList.toggle("linked", isOn));
      for (const kind of ["pointerenter", "focus"]) piece.addEventListener(kind, mark(true));
      for (const kind of ["pointerleave", "blur"]) piece.addEventListener(kind, mark(false));
    });
  }
  return [lines.source, lines.target];
}

function candidates(data) {
  if (data.hypotheses.length < 2) return [];
  const rows = data.hypotheses.map((each) =>
    element("li", {}, each.text, " ", element("span", { className: "number" }, each.score.toFixed(3))));
  return [element("details", {}, element("summary", {}, `${rows.length} candidates`), element("ol", { className: "candidates" }, ...rows))];
}

// Drawn when it is opened first.
function heatmap(attentions) {
  const details = element("details", {}, element("summary", {}, "Attention"));
  details.addEventListener("toggle", () => {
    for (const attention of attentions) details.append(element("div", { className: "scroll", tabIndex: 0 }, table(attention)));
  }, { once: true });
  return details;
}

function table({ sourcePieces, targetPieces, weights, layer }) {
  if (weights.length > MAX_HEATMAP_CELLS) return element("p", { className: "hint" }, "Too long to be drawn.");
  const heading = (piece, scope) => element("th", { scope }, piece);
  const head = element("tr", {}, element("td", { className: "corner" }), ...sourcePieces.map((piece) => heading(piece, "col")));
  const rows = targetPieces.map((target, row) => element("tr", {}, heading(target, "row"), ...sourcePieces.map((source, column) => {
    const weight = weights[row * sourcePieces.length + column];
    const cell = element("td", { title: `${target} ← ${source}: ${weight.toFixed(3)}`, ariaLabel: weight.toFixed(2) });
    cell.style.setProperty("--weight", weight.toFixed(3));
    return cell;
  })));
  const caption = `Rows: pieces of the translation; columns: of the text. Mean over the heads of decoder layer ${layer + 1}.`;
  return element("table", {}, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...rows));
}

function stages(timings) {
  const milliseconds = STAGES.map((name) => [name, 1000 * parseFloat(timings?.[name] ?? "0")]);
  const total = milliseconds.reduce((sum, [, time]) => sum + time, 0) || 1;
  const bar = element("div", { className: "stages", ariaHidden: "true" });
  for (const [name, time] of milliseconds) {
    const part = element("span", { className: name });
    part.style.width = `${(100 * time) / total}%`;
    bar.append(part);
  }
  const legend = milliseconds.map(([name, time]) => element("li", { className: `${name} number` }, `${name} ${time.toFixed(1)} ms`));
  return [bar, element("ul", { className: "legend", ariaLabel: "Time of each stage" }, ...legend)];
}

// Keys and buttons

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  translate();
});
$("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
$("file").addEventListener("change", () => $("file").files[0] && translateFile($("file").files[0]));
for (const kind of ["dragover", "drop"]) {
  $("files").addEventListener(kind, (event) => {
    event.preventDefault();
    if (kind === "drop" && event.dataTransfer.files[0]) translateFile(event.dataTransfer.files[0]);
  });
}
$("key").addEventListener("change", () => loadLanguages().catch(showProblem));
loadLanguages().catch(showProblem);
showFiles().catch(showProblem);
