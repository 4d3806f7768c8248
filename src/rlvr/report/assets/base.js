"use strict";
// What every other file of the page uses: elements, numbers, chunks of data, one place for errors.

/** Make an element: el("p", {class: "muted"}, "text", child). Text is only ever set as text, never as HTML.
 *  Properties: `class`, `on...` (a listener), everything else an attribute; null and undefined are left out. */
function el(name, properties, ...children) {
  return fill(document.createElement(name), properties, children);
}

/** The same for SVG. */
function svg(name, properties, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), properties, children);
}

function fill(node, properties, children) {
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** A number for people: 4 significant digits, "-" where there is none. */
function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "-";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return String(value);
  if (size < 1e-3 || size >= 1e7) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
  return String(Number(value.toPrecision(4)));
}

/** A share as `12.3 %`. */
function percent(value) {
  return typeof value === "number" && Number.isFinite(value) ? (100 * value).toFixed(1) + " %" : "-";
}

/** Count and noun: plural(1, "episode") is "1 episode". */
function plural(count, noun) {
  return count.toLocaleString("en") + " " + noun + (count === 1 ? "" : "s");
}

const chunks = new Map();
let news = null; // of a served page: the data that came after it, by chunk

/** A promise of the data of a chunk by its name ("main", "index", ...); each is unpacked once. */
function chunk(name) {
  if (!chunks.has(name)) chunks.set(name, unpack(news ? news[name] : taken(document.getElementById("chunk-" + name))));
  return chunks.get(name);
}

/** Data that came later replaces all there was. */
function renew(data) {
  news = data;
  chunks.clear();
}

function taken(block) {
  if (block === null) return undefined;
  const text = block.textContent;
  block.textContent = ""; // megabytes that are not needed twice
  return text;
}

async function unpack(text) {
  if (text === undefined) throw new Error("this page has no such data");
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(plain).text());
}

/** Show in `node` that something failed, in words. */
function failed(node, error) {
  node.replaceChildren(el("p", {class: "note"}, "This could not be shown: " + (error.message || error)));
}
