// The list of examples of an evaluation, filtered, and one example, with two models side by side. evaluations.js says
// what the data are.

const EXAMPLE_ROWS = 100; // of the list, at once in the page
const RIGHT = 0, ANSWER = 1, STOP = 2, REWARD = 3, TOKENS = 4; // of an example's result

/** What can be asked of an example's results of the left (a) and the right (b) model; b is null where there is one. */
const EXAMPLE_GRADES = [
  ["all", "all", () => true],
  ["right", "right", (a) => a !== null && a[RIGHT] === 1],
  ["wrong", "wrong", (a) => a !== null && a[RIGHT] === 0],
  ["none", "no answer", (a) => a !== null && a[ANSWER] === null],
  ["cut", "cut off", (a) => a !== null && a[STOP] === "length"],
  ["failed", "could not be graded", (a) => a !== null && a[RIGHT] === null],
  ["disagree", "the two disagree", (a, b) => both(a, b) && a[RIGHT] !== b[RIGHT]],
  ["left", "only the first is right", (a, b) => both(a, b) && a[RIGHT] === 1 && b[RIGHT] !== 1],
  ["right-one", "only the second is right", (a, b) => both(a, b) && a[RIGHT] !== 1 && b[RIGHT] === 1],
  ["both-wrong", "both are wrong", (a, b) => both(a, b) && a[RIGHT] === 0 && b[RIGHT] === 0],
];
const EXAMPLE_PAIRS = new Set(["disagree", "left", "right-one", "both-wrong"]);

/** How the list is sorted; each gives a number, the smallest first. */
const EXAMPLE_ORDERS = [
  ["asked", "as asked", null],
  ["reward", "lowest reward first", (a) => (a === null || a[REWARD] === null ? Infinity : a[REWARD])],
  ["long", "longest first", (a) => (a === null ? Infinity : -a[TOKENS])],
];

function both(a, b) {
  return a !== null && b !== null;
}

async function mountExamples(panel, data) {
  const rows = await chunk("examples");
  const texts = data.tokens ? await chunk("tokens") : {};
  const searched = rows.map((row) => [row.id, row.text, row.expected, ...Object.values(row.results).map((one) => one[ANSWER] || "")]
    .join("\n").toLowerCase());
  const view = {set: 0, first: null, second: null, grade: "all", tag: "", order: "asked", text: "", page: 0, open: null, found: []};
  const filters = el("div", {class: "ev-filters"}), list = el("div", {class: "card ev-list", id: "ev-list"});
  const count = el("p", {class: "muted", id: "ev-count", role: "status"}), detail = el("div", {id: "ev-detail"});
  panel.append(filters, el("div", {class: "ev-split"}, el("div", {class: "ev-side"}, count, list), detail));
  const result = (row, cell) => (cell === null ? null : row.results[cell] || null);

  function drawFilters() {
    const set = data.sets[view.set], cells = set.cells.map((number) => [String(number), data.cells[number].label]);
    const options = EXAMPLE_GRADES.filter(([name]) => view.second !== null || !EXAMPLE_PAIRS.has(name));
    filters.replaceChildren(...[
      data.sets.length > 1 ? choice("task", "ev-set", data.sets.map((one, index) => [String(index), setName(one)]), String(view.set), (value) => chooseSet(Number(value))) : null,
      choice("model", "ev-first", cells, String(view.first), (value) => change({first: Number(value)})),
      cells.length > 1 ? choice("beside", "ev-second", [["", "nothing"], ...cells], view.second === null ? "" : String(view.second),
        (value) => change({second: value === "" ? null : Number(value), grade: value === "" && EXAMPLE_PAIRS.has(view.grade) ? "all" : view.grade})) : null,
      choice("grade", "ev-grade", options.map(([name, label]) => [name, label]), view.grade, (value) => change({grade: value})),
      set.tags.length ? choice("kind", "ev-tag", [["", "all"], ...set.tags.map((tag) => [tag, tag.replaceAll("_", " ")])], view.tag, (value) => change({tag: value})) : null,
      choice("order", "ev-order", EXAMPLE_ORDERS.map(([name, label]) => [name, label]), view.order, (value) => change({order: value})),
      el("label", null, "text", el("input", {id: "ev-text", type: "search", value: view.text, placeholder: "in prompt, answer, completion",
        oninput: (event) => { view.text = event.target.value; view.page = 0; filter(); }})),
    ].filter((node) => node));
  }

  function chooseSet(index) {
    const [first, second] = data.sets[index].cells;
    Object.assign(view, {set: index, first, second: second === undefined ? null : second, tag: "", open: null, page: 0});
    if (view.second === null && EXAMPLE_PAIRS.has(view.grade)) view.grade = "all";
    detail.replaceChildren(el("p", {class: "muted"}, "Choose an example."));
    drawFilters();
    filter();
  }

  function change(values) {
    Object.assign(view, values, {page: 0});
    drawFilters();
    filter();
    if (view.open !== null) open(view.open);
  }

  function filter() {
    const wanted = EXAMPLE_GRADES.find(([name]) => name === view.grade)[2];
    const words = view.text.toLowerCase().trim();
    view.found = [];
    rows.forEach((row, number) => {
      if (row.set !== view.set || (view.tag && !row.tags.includes(view.tag)) || (words && !searched[number].includes(words))) return;
      if (wanted(result(row, view.first), result(row, view.second))) view.found.push(number);
    });
    const order = EXAMPLE_ORDERS.find(([name]) => name === view.order)[2];
    if (order) view.found.sort((a, b) => order(result(rows[a], view.first)) - order(result(rows[b], view.first)) || a - b);
    const total = rows.filter((row) => row.set === view.set).length;
    count.textContent = `${view.found.length.toLocaleString("en")} of ${plural(total, "example")}`;
    drawList();
  }

  function drawList() {
    const start = view.page * EXAMPLE_ROWS, pages = Math.ceil(view.found.length / EXAMPLE_ROWS);
    const items = view.found.slice(start, start + EXAMPLE_ROWS).map((number) => item(number));
    const turn = (by) => () => { view.page += by; drawList(); list.scrollTop = 0; };
    if (!items.length) items.push(el("p", {class: "muted ev-pages"}, "No example is like that."));
    if (pages > 1) {
      items.push(el("div", {class: "ev-pages"}, el("button", {disabled: view.page === 0, onclick: turn(-1)}, "Back"),
        el("span", {class: "muted"}, `${view.page + 1} of ${pages}`), el("button", {disabled: view.page === pages - 1, onclick: turn(1)}, "Next")));
    }
    list.replaceChildren(...items);
  }

  function item(number) {
    const row = rows[number], shown = [view.first, view.second].filter((cell) => cell !== null);
    return el("button", {class: "ev-item", "data-row": String(number), "aria-current": view.open === number ? "true" : null, onclick: () => open(number, true)},
      el("span", {class: "ev-asked mono"}, row.id),
      el("span", {class: "ev-answers"}, shown.map((cell) => answerMark(result(row, cell))), el("span", {class: "muted"}, "gold " + row.expected)));
  }

  function open(number, scroll) {
    view.open = number;
    for (const one of list.querySelectorAll(".ev-item")) {
      if (one.dataset.row === String(number)) one.setAttribute("aria-current", "true");
      else one.removeAttribute("aria-current");
    }
    showExample(detail, data, texts, rows, number, [view.first, view.second].filter((cell) => cell !== null))
      .then(() => { if (scroll && detail.getBoundingClientRect().top > innerHeight / 2) detail.scrollIntoView(); })
      .catch((error) => failed(detail, error));
  }

  list.addEventListener("keydown", (event) => {
    const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
    if (!step || view.open === null) return;
    event.preventDefault();
    const next = view.found[view.found.indexOf(view.open) + step];
    const button = list.querySelector(`[data-row="${next}"]`);
    if (button) { open(next); button.focus(); }
  });
  chooseSet(0);
}

function choice(label, id, options, chosen, onchoose) {
  return el("label", null, label, el("select", {id, onchange: (event) => onchoose(event.target.value)},
    options.map(([value, text]) => el("option", {value, selected: value === chosen}, text))));
}

/** A result in the list: sign and answer. */
function answerMark(result) {
  if (result === null) return el("span", {class: "muted"}, "not asked");
  const said = result[ANSWER] === null ? (result[STOP] === "length" ? "cut off" : "no answer") : result[ANSWER];
  return el("span", null, traceMark(result[RIGHT] === null ? null : result[RIGHT] === 1), said);
}

// ---------------------------------------------------------------------------------------------------- one example

async function showExample(detail, data, texts, rows, number, cells) {
  const row = rows[number];
  detail.dataset.example = number;
  const place = row.chunk === null ? null : (await chunk("texts-" + row.chunk))[number];
  if (detail.dataset.example !== String(number)) return; // another one was chosen meanwhile
  const head = [el("h2", {class: "mono ev-name"}, row.id), row.tags.length ? el("p", {class: "muted"}, row.tags.join(", ").replaceAll("_", " ")) : null];
  if (!place) {
    detail.replaceChildren(...head.filter((node) => node), el("p", {class: "note"}, "The texts of this example were left out to keep the page small."),
      el("p", null, "gold ", el("span", {class: "mono"}, row.expected)),
      ...cells.map((cell) => el("p", null, data.cells[cell].label + ": ", answerMark(row.results[cell] || null))));
    return;
  }
  detail.replaceChildren(...head.filter((node) => node),
    el("details", {open: place.prompt.length < 1500}, el("summary", null, "Prompt"), el("pre", {class: "card"}, place.prompt)),
    el("p", null, "gold ", el("span", {class: "mono"}, place.expected || "(none)")),
    el("div", {class: "ev-sides"}, cells.map((cell) => sideOf(data.cells[cell], place.records[cell] || [], place, texts))));
}

/** One model's column: its greedy answer, or one of its samples. */
function sideOf(cell, episodes, place, texts) {
  const body = el("div");
  const show = (index) => body.replaceChildren(...episodeNodes(episodes[index], place, texts[cell.model] || {}));
  const names = episodes.map((one) => (one.sample === 0 ? "greedy" : `sample ${one.sample}${one.correct ? " ✓" : " ✗"}`));
  const side = el("div", {class: "card ev-side-card"}, el("h3", {class: "ev-name", title: cell.name}, cell.label),
    episodes.length > 1 ? el("select", {"aria-label": "which episode", onchange: (event) => show(Number(event.target.value))},
      names.map((name, index) => el("option", {value: String(index)}, name))) : null, body);
  if (episodes.length) show(0);
  else body.append(el("p", {class: "muted"}, "This model was not asked this example."));
  return side;
}

function episodeNodes(episode, place, texts) {
  const gold = episode.expected === undefined ? place.expected : episode.expected;
  const numbers = (values) => Object.entries(values).map(([name, value]) => `${name} ${typeof value === "number" ? number(value) : value}`).join(", ");
  const facts = [["reward", number(episode.reward)], ["parts", numbers(episode.parts)], ["facts", numbers(episode.facts)],
    ["stopped by", episode.stop], ["tokens", `${episode.tokens[0]} read, ${episode.tokens[1]} written`], ["seconds", number(episode.seconds)]];
  return [
    gradeLine(episode, gold),
    episode.prompt === undefined ? null : el("details", null, el("summary", null, "Its prompt is another one"), el("pre", null, episode.prompt)),
    episode.trace.some((step) => step.kind !== "answer") ? drawTrace(episode.trace, gold) : null, // else the line above says it all
    ...episode.turns.map((turn, index) => turnNode(turn, index, texts)),
    el("div", {class: "scroll"}, el("table", null, el("tbody", null,
      facts.filter(([, value]) => value !== "" && value !== "-").map(([name, value]) => el("tr", null, el("th", null, name), el("td", {class: "ev-name"}, value)))))),
  ].filter((node) => node);
}

function gradeLine(episode, gold) {
  if (episode.failure !== undefined) return el("p", {class: "note"}, "It could not be graded: " + episode.failure);
  const said = episode.answer === null ? (episode.stop === "length" ? "cut off before an answer" : "no answer") : episode.answer;
  return el("p", {class: "ev-grade " + (episode.correct ? "good" : "bad")}, traceMark(episode.correct), el("span", {class: "mono"}, said),
    episode.correct ? " is right" : gold ? " is wrong; the gold answer is " : " is not the gold answer",
    !episode.correct && gold ? el("span", {class: "mono"}, gold) : null);
}

function turnNode(turn, index, texts) {
  const said = el("div", {class: "ev-said"}, el("pre", null, turn.said));
  const button = turn.ids && turn.logprobs ? el("button", {class: "no-print", "aria-pressed": "false", onclick: () => {
    const tokens = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(tokens));
    said.replaceChildren(tokens ? tokenNodes(turn, texts) : el("pre", null, turn.said));
  }}, "tokens") : null;
  return el("div", {class: "ev-turn"}, el("h4", null, "turn " + (index + 1), button), said,
    (turn.calls || []).map(([call, problem]) => el("p", {class: "mono ev-call"}, problem === null ? "calls " + call : "no call: " + problem)),
    turn.reply === undefined ? null : [el("h4", null, "reply"), el("pre", {class: "ev-reply"}, turn.reply)]);
}

/** Each token with what it was likely: underlined below 90 %, dotted below 50 %, marked below 10 %. */
function tokenNodes(turn, texts) {
  const words = turn.said.split(/\s+/).filter((word) => word);
  const spelled = words.length === turn.ids.length ? words.map((word) => word + " ") : null; // tokens that are words
  return el("div", {class: "ev-tokens mono"}, turn.ids.map((id, index) => {
    const logprob = turn.logprobs[index], share = logprob === null ? NaN : Math.exp(logprob);
    const kind = !(share < 0.9) ? "p0" : share >= 0.5 ? "p1" : share >= 0.1 ? "p2" : "p3";
    const text = texts[id] !== undefined ? texts[id] : spelled ? spelled[index] : `#${id} `;
    return el("span", {class: "ev-token " + kind, title: `id ${id}, probability ${percent(share)}, logprob ${number(logprob)}`}, text || `#${id}`);
  }), el("p", {class: "muted"}, "Underlined: probability below 90 %, dotted below 50 %, marked below 10 %."));
}
