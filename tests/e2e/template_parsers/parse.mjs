// Reads [[parser, text], ...] from standard input. Writes for each text its syntax tree without words and positions as
// {"tree": "..."}, or {"error": "..."} if the parser rejects the text. Siblings are sorted, as a translation may change
// their order. With --list, writes the names of the parsers.
import { readFileSync } from "node:fs";
import { HtmlParser } from "@angular/compiler";
import { parse as parseIcu } from "@formatjs/icu-messageformat-parser";
import { baseCompile } from "@intlify/message-compiler";
import { compileMessage } from "@lingui/message-utils/compileMessage";
import { parse as parseMessageFormat } from "@messageformat/parser";
import { parse as parseVue } from "@vue/compiler-dom";
import * as shortcode from "@wordpress/shortcode";
import ejs from "ejs";
import freemarker from "freemarker-parser";
import Handlebars from "handlebars";
import htmlParser from "html-parse-stringify";
import i18next from "i18next";
import JSmart from "jsmart";
import Polyglot from "node-polyglot";
import { parse as parseSvelte } from "svelte/compiler";
import twig from "twig";
import Velocity from "velocityjs";

const POSITIONS = new Set(
  "start end loc pos position raw metadata parent name_loc range source sourceSpan ctx i18n output_raw".split(" "),
);
const SHORTCODES = ["gallery", "caption", "button", "contact-form-7", "audio", "woocommerce_cart"];

await i18next.init({ lng: "en", resources: { en: { translation: {} } } });

function sorted(values) {
  const keyed = values.map((value) => [JSON.stringify(value) ?? "", value]);
  return keyed.sort(([first], [second]) => (first < second ? -1 : 1)).map(([, value]) => value);
}

// Returns a tree without positions and without the nodes that `isText` accepts.
function syntax(value, isText) {
  if (Array.isArray(value)) {
    return sorted(value.filter((each) => !isText(each)).map((each) => syntax(each, isText)));
  }
  if (value === null || typeof value !== "object") return value;
  const fields = Object.entries(value).filter(([name]) => !POSITIONS.has(name));
  return Object.fromEntries(fields.map(([name, each]) => [name, syntax(each, isText)]));
}

const hasType = (...types) => (node) => types.includes(node?.type);

function throwFirst(errors) {
  if (errors.length > 0) throw new Error(errors[0].msg ?? errors[0].message);
}

function angular(text) {
  const { rootNodes, errors } = new HtmlParser().parse(text, "text", { tokenizeExpansionForms: true });
  throwFirst(errors);
  const read = (node) => {
    if (node.tokens) return node.tokens.filter((token) => token.type === 8).map((token) => token.parts.join(""));
    if (node.cases) return [[node.switchValue, node.type, ...node.cases.map((one) => [one.value, walk(one.expression)])]];
    const attributes = [...(node.attrs ?? []), ...(node.parameters ?? [])];
    const heads = attributes.map((each) => `${each.name}=${each.value ?? each.expression}`);
    return [[node.constructor.name, node.name, heads, walk(node.children ?? [])]];
  };
  const walk = (nodes) => nodes.flatMap(read);
  return syntax(walk(rootNodes), () => false);
}

function lingui(text) {
  const tokens = (message) => [message].flat().map((token) => (typeof token === "string" ? token : argument(token)));
  const argument = ([name, type, options]) => {
    if (type !== "plural" && type !== "select" && type !== "selectordinal") return { name, type, options };
    return { name, type, options: Object.entries(options).map(([key, value]) => ({ key, value: tokens(value ?? "") })) };
  };
  const isText = (value) => typeof value === "string" && value !== "#";
  return [syntax(tokens(compileMessage(text)), isText), (text.match(/<\/?\w+\/?>/g) ?? []).sort()];
}

function vueI18n(text) {
  const errors = [];
  const { ast } = baseCompile(text, { onError: (error) => errors.push(error), location: false });
  throwFirst(errors);
  return syntax(ast, hasType(3));
}

function i18nextTokens(text) {
  const { regexp, regexpUnescape, nestingRegexp } = i18next.services.interpolator;
  const patterns = [regexp, regexpUnescape, nestingRegexp];
  return patterns.flatMap((pattern) => Array.from(text.matchAll(pattern), (match) => match[0]).sort());
}

function reactTrans(text) {
  const nodes = htmlParser.parse(`<0>${text}</0>`);
  if (nodes.length !== 1) throw new Error("tags are not balanced");
  return [syntax(nodes, hasType("text")), i18nextTokens(text)];
}

function polyglot(text) {
  const forms = text.split("||||");
  return forms.map((_form, index) => {
    const found = [];
    const values = new Proxy({ smart_count: index === 0 ? 1 : 5 }, {
      has: () => true,
      get: (target, name) => target[name] ?? found.push(name),
      getOwnPropertyDescriptor: () => ({ configurable: true, value: 1 }),
    });
    Polyglot.transformPhrase(text, values, "en");
    return found.sort();
  });
}

function svelte(text) {
  return syntax(parseSvelte(text, { modern: true }).fragment, hasType("Text"));
}

function handlebars(text) {
  Handlebars.precompile(text);
  return syntax(Handlebars.parseWithoutProcessing(text), hasType("ContentStatement"));
}

function ejsTags(text) {
  ejs.compile(text);
  const tokens = new ejs.Template(text).parseTemplateText();
  return tokens.flatMap((token, index) => (token.startsWith("<%") ? [tokens.slice(index, index + 3).join("")] : [])).sort();
}

function freemarkerTokens(text) {
  const { ast, tokens } = new freemarker.Parser().parse(text);
  throwFirst(ast?.errors ?? []);
  return syntax(tokens, hasType("Text"));
}

function vueTemplate(text) {
  const errors = [];
  const { children } = parseVue(text, { onError: (error) => errors.push(error), whitespace: "preserve" });
  throwFirst(errors);
  const read = (node) => [node.tag, (node.props ?? []).map((each) => each.loc.source), node.content?.loc?.source, walk(node.children ?? [])];
  const walk = (nodes) => nodes.filter((node) => node.type !== 2).map(read);
  return syntax(walk(children), () => false);
}

function shortcodes(text) {
  const found = [];
  for (const tag of SHORTCODES) {
    let next;
    for (let start = 0; (next = shortcode.next(tag, text, start)); start = next.index + next.content.length) {
      found.push([tag, next.shortcode.type, next.shortcode.attrs]);
    }
  }
  return syntax(found, () => false);
}

function smarty(text) {
  const withoutTexts = (nodes) => nodes.filter((node) => node.type !== "text").map((node) => {
    const inner = Object.entries(node).filter(([name]) => name.startsWith("subTree"));
    return { ...node, ...Object.fromEntries(inner.map(([name, value]) => [name, withoutTexts(value)])) };
  });
  return syntax(withoutTexts(new JSmart(text).tree), () => false);
}

const PARSERS = {
  "@angular/compiler": angular,
  "@formatjs/icu-messageformat-parser": (text) => syntax(parseIcu(text), hasType(0)),
  "@intlify/message-compiler": vueI18n,
  "@lingui/message-utils": lingui,
  "@messageformat/parser": (text) => syntax(parseMessageFormat(text), hasType("content")),
  "@vue/compiler-dom": vueTemplate,
  "@wordpress/shortcode": shortcodes,
  ejs: ejsTags,
  "freemarker-parser": freemarkerTokens,
  handlebars,
  "html-parse-stringify": reactTrans,
  i18next: i18nextTokens,
  jsmart: smarty,
  "node-polyglot": polyglot,
  svelte,
  twig: (text) => syntax(twig.twig({ data: text, rethrow: true }).tokens, hasType("raw")),
  velocityjs: (text) => syntax(Velocity.parse(text), (node) => typeof node === "string"),
};

function read([parser, text]) {
  try {
    return { tree: JSON.stringify(PARSERS[parser](text)) };
  } catch (error) {
    return { error: String(error?.message ?? error) };
  }
}

const isList = process.argv[2] === "--list";
console.log(JSON.stringify(isList ? Object.keys(PARSERS) : JSON.parse(readFileSync(0, "utf-8")).map(read)));
