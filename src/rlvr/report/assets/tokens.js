// An episode token by token.
//
// A row of an episode: {ids: [..], runs: lengths of stretches that were not sampled, were, were not ..,
//   behavior: logprob * 1e4 of each sampled token, trainer and reference: difference to behavior * 1e6 (absent: the
//   algorithm needed none), gains of P(gold) (by rlvr explain), advantages, values, returns, versions of the policy (absent in old files)}; a number instead of a list stands for all sampled tokens.
// Chunk "tokens-<run>": {id: text}, by the tokenizer of that run.

const MAX_TOKENS = 4000; // drawn at first; more on request
const QUANTITIES = {
  advantage: {label: "advantage", diverging: true},
  ratio: {label: "ratio", diverging: true, center: 1},
  behavior: {label: "behavior logprob"},
  trainer: {label: "trainer logprob"},
  reference: {label: "reference logprob"},
  value: {label: "value", diverging: true},
  return: {label: "return", diverging: true},
  gain: {label: "change of P(gold)", diverging: true}, // by rlvr explain
  version: {label: "policy version", older: true}, // only where the tokens of an episode are of several
};
let colored = "advantage"; // stays chosen from one episode to the next

/** Tokens of a row as objects; what is not known is null. */
function unpackRow(row, vocabulary) {
  const at = (list, place) => (list === undefined ? null : Array.isArray(list) ? list[place] : list);
  const tokens = [];
  let sampled = 0, place = 0;
  row.runs.forEach((length, run) => {
    for (let end = place + length; place < end; place++) {
      const id = row.ids[place], mask = run % 2;
      const token = {place, id, text: vocabulary[id], mask};
      if (mask) {
        const behavior = at(row.behavior, sampled);
        const beyond = (list) => (behavior === null || at(list, sampled) === null ? null : behavior / 1e4 + at(list, sampled) / 1e6);
        const difference = at(row.trainer, sampled);
        Object.assign(token, {behavior: behavior === null ? null : behavior / 1e4, trainer: beyond(row.trainer), reference: beyond(row.reference),
          ratio: difference === null ? null : Math.exp(difference / 1e6), advantage: at(row.advantages, sampled),
          value: at(row.values, sampled), gain: at(row.gains, sampled), return: at(row.returns, sampled), version: at(row.versions, sampled)});
        sampled++;
      }
      tokens.push(token);
    }
  });
  return tokens;
}

function tokenView(rows, vocabulary) {
  const all = rows.flatMap((row) => unpackRow(row, vocabulary));
  const values = (name) => new Set(all.map((token) => token[name]).filter((value) => typeof value === "number"));
  const known = (name) => values(name).size > (QUANTITIES[name].older ? 1 : 0);
  const names = Object.keys(QUANTITIES).filter(known);
  const body = el("div");
  let table = false;
  const choose = el("select", {"aria-label": "color by", onchange: () => { colored = choose.value; draw(); }},
    names.map((name) => el("option", {value: name, selected: name === colored}, QUANTITIES[name].label)));
  const toggle = el("button", {"aria-pressed": "false", onclick: () => { table = !table; toggle.setAttribute("aria-pressed", String(table)); draw(); }}, "As a table");

  function draw() {
    const chosen = names.includes(colored) ? colored : names[0];
    body.replaceChildren(...rows.map((row, index) => el("section", null,
      rows.length > 1 ? el("h3", null, `Row ${index + 1} of ${rows.length} (the template rewrote history)`) : null,
      table ? tokenTable(unpackRow(row, vocabulary), names) : tokenFlow(unpackRow(row, vocabulary), chosen, names))));
  }

  draw();
  return el("div", {class: "tokens-view"},
    el("div", {class: "toolbar no-print"}, names.length ? el("label", null, el("span", {class: "muted"}, "Color: "), choose) : null, toggle), body);
}

/** Tokens as text, colored; hover, touch, focus and the arrow keys show the numbers of one. */
function tokenFlow(tokens, name, names) {
  const numbers = el("div", {class: "token-numbers mono", role: "status"});
  const paint = painter(tokens, name);
  const flow = el("div", {class: "flow mono", role: "group", "aria-label": "tokens: arrow keys move"});
  let current = tokens.findIndex((token) => token.mask);

  function show(place) {
    const token = tokens[place];
    if (!token) return;
    const old = flow.children[current];
    if (old) { old.tabIndex = -1; old.classList.remove("current"); }
    current = place;
    flow.children[place].tabIndex = 0;
    flow.children[place].classList.add("current");
    numbers.replaceChildren(...describeToken(token, names));
  }

  function add(count) {
    for (const token of tokens.slice(flow.children.length, flow.children.length + count)) flow.append(tokenSpan(token, paint));
    more.classList.toggle("hidden", flow.children.length >= tokens.length);
    more.textContent = `Show more of ${plural(tokens.length, "token")}`;
  }

  const more = el("button", {onclick: () => add(MAX_TOKENS)});
  const placeOf = (event) => [...flow.children].indexOf(event.target.closest(".token"));
  // Not pointerover: a page that is drawn anew under a resting pointer sends one, which would undo an arrow key.
  flow.addEventListener("pointermove", (event) => { const place = placeOf(event); if (place >= 0) show(place); });
  flow.addEventListener("click", (event) => { const place = placeOf(event); if (place >= 0) show(place); });
  flow.addEventListener("focusin", (event) => { const place = placeOf(event); if (place >= 0) show(place); });
  flow.addEventListener("keydown", (event) => {
    const next = {ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: flow.children.length - 1}[event.key];
    if (next === undefined || !flow.children[next]) return;
    event.preventDefault();
    flow.children[next].focus();
  });
  add(MAX_TOKENS);
  show(Math.max(0, current));
  return el("div", null, legendOf(tokens, name), numbers, flow, more);
}

function tokenSpan(token, paint) {
  const text = token.text === undefined || token.text === "" ? String(token.id) : token.text;
  const node = el("span", {class: token.mask ? "token sampled" : "token", tabindex: -1}, text.replaceAll("\n", "⏎\n"));
  if (token.mask) paint(node, token);
  return node;
}

function describeToken(token, names) {
  const pair = (name, value) => el("span", null, el("span", {class: "muted"}, name + " "), value);
  const text = token.text === undefined ? "-" : JSON.stringify(token.text);
  return [pair("token", text), pair("id", String(token.id)), pair("place", String(token.place)), pair("mask", String(token.mask)),
    ...(token.mask ? names.map((name) => pair(QUANTITIES[name].label, exact(token[name]))) : [])];
}

/** A number with up to 5 digits behind the point, as ratios need them. */
function exact(value) {
  return typeof value !== "number" ? "-" : String(Number(value.toFixed(5)));
}

function tokenTable(tokens, names) {
  const head = ["place", "token", "id", "mask", ...names.map((name) => QUANTITIES[name].label)];
  const body = el("tbody");
  const add = () => {
    for (const token of tokens.slice(body.children.length, body.children.length + MAX_TOKENS)) {
      body.append(el("tr", null, el("td", {class: "number"}, String(token.place)), el("td", {class: "mono"}, token.text ?? "-"), el("td", {class: "number"}, String(token.id)),
        el("td", {class: "number"}, String(token.mask)), names.map((name) => el("td", {class: "number"}, exact(token[name])))));
    }
    more.classList.toggle("hidden", body.children.length >= tokens.length);
  };
  const more = el("button", {onclick: add}, "Show more");
  add();
  return el("div", null, el("div", {class: "scroll"}, el("table", null, el("thead", null, el("tr", null, head.map((text) => el("th", null, text)))), body)), more);
}

// -------------------------------------------------------------------------------------------------------- colors

/** How far a token's value lies from the middle: [-1, 1] for what has two sides, [0, 1] for logprobs (1: unlikely). */
function measure(tokens, name) {
  const {diverging, center, older} = QUANTITIES[name] || {};
  const newest = older ? tokens.reduce((best, token) => Math.max(best, token[name] ?? best), 0) : 0;
  const distance = (token) => {
    const value = token[name];
    if (typeof value !== "number") return 0;
    if (older) return newest - value;
    return diverging ? (center ? Math.log(Math.max(value, 1e-9)) : value) : -value;
  };
  const most = tokens.reduce((best, token) => (token.mask ? Math.max(best, Math.abs(distance(token))) : best), 0);
  const whole = Math.max(most, center ? 0.05 : diverging ? 1e-9 : older ? 1 : 3); // a ratio of 1.0001 is no strong color
  return {of: (token) => distance(token) / whole, whole, newest};
}

function painter(tokens, name) {
  const {of} = measure(tokens, name);
  const diverging = (QUANTITIES[name] || {}).diverging;
  return (node, token) => {
    const amount = Math.max(-1, Math.min(1, of(token)));
    const color = diverging && amount > 0 ? "var(--blue)" : "var(--orange)";
    node.style.backgroundColor = `color-mix(in srgb, ${color} ${Math.round(55 * Math.abs(amount))}%, transparent)`;
    node.style.borderBottomColor = Math.abs(amount) < 0.01 ? "var(--line)" : color;
    node.style.borderBottomStyle = amount > 0 || Math.abs(amount) < 0.01 ? "solid" : "dashed";
  };
}

function legendOf(tokens, name) {
  if (!name) return el("p", {class: "muted legend"}, "Underlined tokens were sampled.");
  const {diverging, center, older, label} = QUANTITIES[name];
  const {whole, newest} = measure(tokens, name);
  if (older) return el("p", {class: "muted legend"}, ` ${label}: `, el("span", {class: "key minus solid"}, number(newest - whole)),
    ` the stronger, the older; the newest is ${number(newest)}. Gray tokens were not sampled.`);
  const sides = center ? [`${exact(Math.exp(-whole))}`, "1", `${exact(Math.exp(whole))}`] : [number(-whole), "0", number(whole)];
  const text = diverging
    ? [` ${label}: `, el("span", {class: "key minus"}, sides[0]), " orange, dashed: below " + sides[1] + " ", el("span", {class: "key plus"}, sides[2]), " blue, solid: above " + sides[1] + ". "]
    : [` ${label}: `, el("span", {class: "key minus solid"}, number(-whole)), " the stronger, the less likely. "];
  return el("p", {class: "muted legend"}, text, "Gray tokens were not sampled.");
}
