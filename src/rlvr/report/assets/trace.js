// How an answer was reached, drawn. `drawTrace(steps, gold)` gives an element; it draws its lines again when its size
// changes, so it may be put into the page at any time. Texts of the data are only ever set as text.
//
// Lines of a derivation stand under each other, the first wrong one with the reason. Of a search, queries are boxes,
// the documents that they found hang on them, and a curve leads from each cited document to the answer.

const FOLD_ABOVE = 4; // documents of one query that neither support the answer nor are cited; the others are folded
const LANES = 6; // beside each other, for the curves of citations

/** steps: [{kind, text, ok, id, turn}] as in rlvr.types.TraceStep; gold: the right answer as text, or null. */
function drawTrace(steps, gold) {
  const all = steps || [];
  if (!all.length) return el("p", {class: "trace muted"}, "It was not noted how this answer was reached.");
  const root = el("div", {class: "trace"});
  const answers = all.filter((step) => step.kind === "answer");
  if (all.some((step) => step.kind === "step")) drawDerivation(root, all);
  if (all.some((step) => ["query", "document", "cite"].includes(step.kind))) drawSearch(root, all, answers, gold);
  else root.append(answerNode(answers, gold));
  if (all.length >= 200) root.append(el("p", {class: "muted"}, "Of a longer way only the first 200 steps are kept."));
  return root;
}

/** A sign before a text: a shape, so that nothing is said by color alone. */
function traceMark(ok, name) {
  const shape = ok === true ? "✓" : ok === false ? "✗" : "·";
  const kind = ok === true ? "good" : ok === false ? "bad" : "open";
  return el("span", {class: "trace-mark " + kind, role: "img", "aria-label": name || {good: "right", bad: "wrong", open: "not graded"}[kind]}, shape);
}

function answerNode(answers, gold) {
  const node = el("div", {class: "trace-node trace-answer", "data-node": "answer"});
  const right = gold === null || gold === undefined || gold === "" ? null : el("span", {class: "trace-gold"},
    el("span", {class: "muted"}, "gold "), el("span", {class: "mono"}, gold));
  if (!answers.length) {
    node.classList.add("bad");
    node.append(traceMark(false, "no answer"), el("span", null, "no answer"), ...(right ? [right] : []));
    return node;
  }
  const answer = answers[answers.length - 1];
  node.classList.add(answer.ok === true ? "good" : answer.ok === false ? "bad" : "open");
  const grade = answer.ok === true ? "right" : answer.ok === false ? "wrong" : null;
  node.append(traceMark(answer.ok), el("span", {class: "muted"}, "answer "),
    el("span", {class: "mono trace-said"}, answer.text), ...(grade ? [el("span", {class: "trace-grade"}, grade)] : []),
    ...(right ? [right] : []));
  return node;
}

// ------------------------------------------------------------------------------------------------------ derivations

function drawDerivation(root, all) {
  const lines = all.filter((step) => step.kind === "step");
  const first = lines.findIndex((step) => step.ok === false);
  const list = el("ol", {class: "trace-lines", start: "0"});
  lines.forEach((line, index) => {
    const before = index ? splitWords(lines[index - 1].text) : [];
    const isFirst = index === first;
    const reason = isFirst ? whyWrong(before, splitWords(line.text)) : null;
    const kind = line.ok === true ? "good" : line.ok === false ? "bad" : "open";
    const next = lines[index + 1];
    list.append(el("li", {class: "trace-line " + kind + (isFirst ? " trace-first-wrong" : ""), "data-ok": String(line.ok)},
      el("span", {class: "trace-number muted"}, index === 0 && line.ok === null ? "" : String(index)),
      traceMark(line.ok, index === 0 && line.ok === null ? "the expression" : null),
      el("span", {class: "mono trace-text"}, lineWords(line.text, next !== undefined, reason ? reason.words : null)),
      isFirst ? el("span", {class: "trace-why"}, el("strong", null, "First wrong line. "), reason.text) : null,
      line.ok === false && !isFirst ? el("span", {class: "muted trace-after"}, "does not follow from the line above either") : null,
      line.ok === true && first >= 0 && index > first ? el("span", {class: "muted trace-after"}, "follows from the line above") : null,
      line.ok === null && index > 0 ? el("span", {class: "muted trace-after"}, "cut off, not graded") : null));
  });
  root.append(list);
}

function splitWords(text) {
  return text.split(/\s+/).filter((word) => word);
}

/** What one pass does to a line: [{from: ["3", "4", "*"], done: true}, {from: ["5"], done: false}, ...], one an item of
 *  the next line. The numbers themselves are not computed: whether a result is right is known from the data. */
function onePass(words) {
  const isNumber = (word) => /^-?\d+$/.test(word), isOperator = (word) => ["+", "-", "*"].includes(word);
  const pieces = [];
  for (let i = 0; i < words.length;) {
    const done = i + 2 < words.length && isNumber(words[i]) && isNumber(words[i + 1]) && isOperator(words[i + 2]);
    pieces.push({from: words.slice(i, done ? i + 3 : i + 1), done});
    i += done ? 3 : 1;
  }
  return pieces;
}

/** Why a line does not follow from the line before: {text, words: indices of the words at fault}. */
function whyWrong(before, after) {
  const pieces = onePass(before);
  const done = pieces.filter((piece) => piece.done);
  if (!after.length) return {text: "Nothing is written here.", words: []};
  if (!done.length) return {text: "In the line above there is nothing left to reduce.", words: []};
  if (before.join(" ") === after.join(" ")) return {text: "It repeats the line above.", words: []};
  if (pieces.length !== after.length) {
    const expected = plural(pieces.length, "word"), found = plural(after.length, "word");
    return {text: `One pass over the line above leaves ${expected}, and here are ${found}.`, words: []};
  }
  const copies = pieces.map((piece, i) => (!piece.done && piece.from[0] !== after[i] ? i : -1)).filter((i) => i >= 0);
  if (copies.length) {
    const changed = copies.map((i) => `${pieces[i].from[0]} became ${after[i]}`).join(", ");
    return {text: `What cannot be reduced yet stays as it is, but ${changed}.`, words: copies};
  }
  const results = pieces.map((piece, i) => (piece.done ? i : -1)).filter((i) => i >= 0);
  const steps = results.map((i) => `${pieces[i].from.join(" ")} became ${after[i]}`).join(", ");
  return {text: results.length === 1 ? `The result is wrong: ${steps}.` : `A result is wrong: ${steps}.`, words: results};
}

/** The words of a line; what the next pass reduces is underlined, what is at fault is marked. */
function lineWords(text, reduces, wrong) {
  const words = splitWords(text);
  if (wrong && wrong.length) return words.flatMap((word, i) => [wrong.includes(i) ? el("mark", {class: "trace-fault"}, word) : word, " "]);
  if (!reduces || words.length > 120) return [text];
  return onePass(words).flatMap((piece) => [piece.done ? el("u", null, piece.from.join(" ")) : piece.from[0], " "]);
}

// --------------------------------------------------------------------------------------------------------- searches

function drawSearch(root, all, answers, gold) {
  const chain = el("div", {class: "trace-chain"});
  const cites = all.filter((step) => step.kind === "cite");
  const cited = new Set(cites.map((step) => step.id));
  const groups = queriesOf(all);
  const shown = new Map(); // id -> node of the first time that it was shown
  for (const group of groups) chain.append(queryNode(group, shown, cited));
  const unseen = cites.filter((step) => !shown.has(step.id));
  if (unseen.length) {
    chain.append(el("div", {class: "trace-group"},
      el("div", {class: "trace-node trace-query bad", "data-node": "query"}, traceMark(false, "not read"), el("span", null, "cited, but never shown")),
      unseen.map((step) => keep(shown, step, documentNode(step, true, step.text ? null : "no such document is known")))));
  }
  const end = answerNode(answers, gold);
  if (cites.length) end.append(el("span", {class: "muted trace-cites"}, plural(cites.length, "citation")));
  chain.append(end);
  root.append(chain, traceLegend(all));
  const lines = svg("svg", {class: "trace-wires", "aria-hidden": "true"});
  chain.append(lines);
  const redraw = () => drawWires(chain, lines, cites, shown, end);
  if (typeof ResizeObserver === "function") new ResizeObserver(redraw).observe(chain);
  chain.addEventListener("toggle", redraw, true);
}

/** [{query, documents}]: documents follow the query that found them. */
function queriesOf(all) {
  const groups = [];
  for (const step of all) {
    if (step.kind === "query") groups.push({query: step, documents: []});
    else if (step.kind === "document") {
      if (!groups.length) groups.push({query: null, documents: []});
      groups[groups.length - 1].documents.push(step);
    }
  }
  return groups;
}

function queryNode(group, shown, cited) {
  const {query, documents} = group;
  const byId = query !== null && query.id !== null && query.id !== undefined;
  const what = query === null ? "shown" : byId ? "reads document" : "searches";
  const head = el("div", {class: "trace-node trace-query" + (query && query.ok === false ? " bad" : ""), "data-node": "query"},
    query ? el("span", {class: "trace-turn"}, "turn " + (query.turn + 1)) : null,
    el("span", {class: "muted"}, what + " "),
    query ? el("span", {class: "trace-said"}, byId ? query.id : query.text) : null,
    documents.length ? null : el("span", {class: "trace-none"}, byId ? "there is no such document" : "nothing found"));
  const isQuiet = (step) => step.ok !== true && !cited.has(step.id);
  const quiet = documents.filter(isQuiet);
  const folded = new Set(quiet.length > FOLD_ABOVE ? quiet.slice(FOLD_ABOVE - 1) : []);
  const nodeOf = (step) => (shown.has(step.id) ? documentNode(step, cited.has(step.id), "again") : keep(shown, step, documentNode(step, cited.has(step.id))));
  const open = documents.filter((step) => !folded.has(step)).map(nodeOf);
  const rest = folded.size ? el("details", {class: "trace-more"},
    el("summary", null, `${folded.size} more that do not support the answer`), [...folded].map(nodeOf)) : null;
  return el("div", {class: "trace-group"}, head, open, rest);
}

function keep(shown, step, node) {
  if (!shown.has(step.id)) shown.set(step.id, node);
  return node;
}

function documentNode(step, isCited, remark) {
  const kind = step.ok === true ? "good" : "other";
  const sign = el("span", {class: "trace-shape " + kind, role: "img", "aria-label": step.ok === true ? "supports the answer" : "does not support the answer"},
    step.ok === true ? "◆" : "○");
  return el("div", {class: "trace-node trace-document " + kind, "data-node": "document", "data-ok": String(step.ok)},
    sign, el("span", {class: "trace-said"}, step.text || "?"),
    step.id !== null && step.id !== undefined && step.id !== step.text ? el("span", {class: "muted mono trace-id"}, "#" + step.id) : null,
    isCited ? el("span", {class: "trace-badge"}, "cited") : null,
    remark ? el("span", {class: "muted"}, remark) : null);
}

function traceLegend(all) {
  const entries = [["◆", "good", "supports the answer"], ["○", "other", "does not"]];
  const hasCites = all.some((step) => step.kind === "cite");
  return el("p", {class: "muted trace-legend"},
    entries.map(([shape, kind, text]) => el("span", null, el("span", {class: "trace-shape " + kind}, shape), " " + text)),
    hasCites ? el("span", null, el("span", {class: "trace-wire-sample good"}), " cited rightly") : null,
    hasCites ? el("span", null, el("span", {class: "trace-wire-sample bad"}), " cited, but it supports nothing") : null);
}

/** The lines: from each query down to its documents, from query to query, from cited documents to the answer. */
function drawWires(chain, lines, cites, shown, end) {
  const box = chain.getBoundingClientRect();
  if (!box.width) return; // not shown yet
  const place = (node) => {
    const own = node.getBoundingClientRect();
    return {left: own.left - box.left, right: own.right - box.left, middle: own.top - box.top + own.height / 2,
      top: own.top - box.top, bottom: own.bottom - box.top, seen: own.height > 0 && !node.closest("details:not([open])")};
  };
  const paths = [];
  const heads = [...chain.querySelectorAll('[data-node="query"], [data-node="answer"]')].map(place);
  for (let i = 1; i < heads.length; i++) {
    const [above, below] = [heads[i - 1], heads[i]];
    paths.push(svg("path", {class: "trace-wire", d: `M 7 ${above.middle} V ${below.middle} H ${below.left}`}));
  }
  for (const group of chain.querySelectorAll(".trace-group")) {
    const head = place(group.querySelector('[data-node="query"]'));
    for (const node of group.querySelectorAll('[data-node="document"]')) {
      const at = place(node);
      if (at.seen) paths.push(svg("path", {class: "trace-wire", d: `M ${head.left + 14} ${head.bottom} V ${at.middle} H ${at.left}`}));
    }
  }
  const to = place(end);
  const width = box.width - 3;
  cites.forEach((step, index) => {
    const node = shown.get(step.id), from = node ? place(node) : null;
    if (!from || !from.seen) return;
    const lane = width - (index % LANES) * 5;
    const into = to.middle - 4 + (index % LANES) * 2;
    paths.push(svg("path", {class: "trace-wire trace-cited " + (step.ok === true ? "good" : "bad"),
      d: `M ${from.right} ${from.middle} H ${lane - 8} Q ${lane} ${from.middle} ${lane} ${from.middle + 8} V ${into - 8} Q ${lane} ${into} ${lane - 8} ${into} H ${to.right + 6}`}));
    paths.push(svg("path", {class: "trace-tip " + (step.ok === true ? "good" : "bad"), d: `M ${to.right + 1} ${into} l 8 -4 v 8 z`}));
  });
  lines.setAttribute("width", String(box.width));
  lines.setAttribute("height", String(box.height));
  lines.replaceChildren(...paths);
}
