// Opened episodes: one pane, or two beside each other. Turn by turn here, token by token in tokens.js.
//
// An episode of a chunk "detail-<n>": {seed, version, parts: {name: value}, diagnostics: {name: value or text}, trace:
//   [{kind, text, ok, id, turn}], turns: [{stop, version, calls: [{name, arguments, problem}]}], rows: [see tokens.js],
//   values: see values.js; absent without `rlvr explain`}

class EpisodeViews {
  constructor(episodes) {
    this.episodes = episodes;
    this.mode = "turns"; // or "tokens"
    this.shown = [null]; // numbers of the episodes in the panes
    this.notes = [null];
    this.node = el("div", {class: "panes"}, el("p", {class: "muted"}, "Choose an episode in the list."));
    this.showGroup = () => {};
    this.walk = () => {};
  }

  /** Open an episode in the first pane; the second one follows to the episode that belongs to it. */
  open(number) {
    this.shown[0] = number;
    if (this.shown.length > 1) this.beside(this.episodes.file[this.shown[1]]);
    else this.draw();
    if (matchMedia("(max-width: 900px)").matches) this.node.scrollIntoView({block: "start"});
  }

  /** Open the same example at another step in a second pane; null closes it. */
  beside(file) {
    const {other, note} = file === null ? {other: null, note: null} : this.episodes.counterpart(this.shown[0], file);
    this.shown = other === null ? [this.shown[0]] : [this.shown[0], other];
    this.notes = [null, note];
    this.draw();
  }

  async draw() {
    const shown = [...this.shown];
    try {
      const details = await Promise.all(shown.map((number) => this.episodes.detail(number)));
      const vocabularies = await Promise.all(shown.map((number) => chunk("tokens-" + this.episodes.run(number))));
      if (shown.join() !== this.shown.join()) return; // another one was opened meanwhile
      this.node.replaceChildren(this.toolbar(), el("div", {class: "pair panes-" + shown.length},
        shown.map((number, pane) => this.pane(number, details[pane], vocabularies[pane], this.notes[pane]))));
      this.node.dataset.episode = shown.join();
    } catch (error) {
      failed(this.node, error);
    }
  }

  toolbar() {
    const all = this.episodes, [number, other] = this.shown;
    const mode = (name, label) => el("button", {"aria-pressed": String(this.mode === name), onclick: () => { this.mode = name; this.draw(); }}, label);
    const beside = el("select", {"aria-label": "beside it", onchange: () => this.beside(beside.value === "" ? null : Number(beside.value))},
      el("option", {value: ""}, "nothing"),
      all.index.files.map((_, file) => el("option", {value: file, selected: other !== undefined && all.file[other] === file}, all.place(file))));
    return el("div", {class: "toolbar no-print"},
      el("button", {onclick: () => this.walk(number, -1), "aria-label": "previous episode"}, "◀"),
      el("button", {onclick: () => this.walk(number, 1), "aria-label": "next episode"}, "▶"),
      mode("turns", "By turn"), mode("tokens", "By token"),
      el("button", {onclick: () => this.showGroup(number)}, "Its group"),
      el("label", null, el("span", {class: "muted"}, "Beside it: "), beside));
  }

  pane(number, detail, vocabulary, note) {
    const all = this.episodes;
    return el("article", {class: "card pane"},
      el("h3", null, `${all.place(all.file[number])}, group ${all.group[number]}, sample ${all.sample[number]}`),
      note ? el("p", {class: "note"}, note) : null,
      episodeFacts(all, number, detail),
      detail.values ? valueCurve(detail.values) : null,
      this.mode === "tokens" ? tokenView(detail.rows, vocabulary) : turnView(all, number, detail));
  }
}

function episodeFacts(all, episode, detail) {
  const fact = (name, value) => el("div", null, el("dt", {class: "muted"}, name), el("dd", {class: "mono"}, value));
  const value = (item) => (typeof item === "string" ? item : number(item));
  return el("div", null,
    el("dl", {class: "facts-grid"},
      fact("reward", number(all.reward[episode])), fact("advantage", number(all.advantage[episode])),
      fact("stop reason", all.names.stop[all.stop[episode]]), fact("score", all.names.status[all.status[episode]]),
      all.influence && all.influence[episode] !== null ? fact("influence on the update", percent(all.influence[episode])) : null,
      fact("tokens", number(all.tokens[episode])), fact("policy version", number(detail.version)),
      fact("gold answer", all.names.answer[all.answer[episode]]), fact("example", all.names.example[all.example[episode]])),
    rewardParts(detail.parts, value),
    Object.keys(detail.diagnostics).length
      ? el("details", null, el("summary", {class: "muted"}, "What the verifier says"),
        el("table", null, Object.entries(detail.diagnostics).map(([name, item]) =>
          el("tr", null, el("td", null, name), el("td", {class: "mono"}, value(item)))))) : null);
}

/** Parts of the reward before their weights, each with a bar between 0 and 1. */
function rewardParts(parts, value) {
  const names = Object.keys(parts);
  if (!names.length) return null;
  return el("table", {class: "parts"}, el("caption", {class: "muted"}, "Parts of the reward, before their weights"),
    names.map((name) => {
      const share = typeof parts[name] === "number" ? Math.min(1, Math.max(0, Math.abs(parts[name]))) : 0;
      const bar = svg("svg", {viewBox: "0 0 100 8", class: "bar", "aria-hidden": "true"}, svg("rect", {x: 0.5, y: 0.5, width: 99, height: 7, class: "bar-frame"}),
        svg("rect", {x: 0, y: 0, width: 100 * share, height: 8, class: parts[name] < 0 ? "bar-minus" : "bar-plus"}));
      return el("tr", null, el("td", null, name), el("td", {class: "mono number"}, value(parts[name])), el("td", null, bar));
    }));
}

function turnView(all, number, detail) {
  const texts = all.texts[number];
  if (!texts) return el("p", {class: "muted"}, "Its texts are still being unpacked.");
  const gold = all.names.answer[all.answer[number]];
  const nodes = [said("Prompt", "prompt", texts.prompt)];
  detail.turns.forEach((turn, index) => {
    const reply = texts.said[2 * index + 1];
    const label = detail.turns.length > 1 ? `Completion ${index + 1}` : "Completion";
    const stop = turn.stop === "stop" ? "" : ` (${turn.stop})`;
    const worth = detail.values ? worthOf(detail.values, index) : "";
    nodes.push(said(label + stop + worth, "completion", texts.said[2 * index]));
    nodes.push(...turn.calls.map(toolCall));
    if (reply !== null && reply !== undefined) nodes.push(said("Reply", "reply", reply));
    const documents = detail.trace.filter((step) => step.kind === "document" && step.turn === index);
    if (documents.length) nodes.push(foundDocuments(documents));
  });
  const cited = detail.trace.filter((step) => step.kind === "cite");
  if (cited.length) nodes.push(el("p", null, el("b", null, "Cited: "), cited.map((step) => el("span", {class: "cited"}, supportMark(step.ok), step.text || step.id || "", " "))));
  if (detail.trace.length) nodes.push(el("h3", null, "How the answer was reached"), drawTrace(detail.trace, gold));
  else nodes.push(el("p", null, el("b", null, "Gold: "), el("span", {class: "mono"}, gold)));
  return el("div", {class: "turns"}, nodes);
}

function said(label, kind, text) {
  return el("section", {class: "said " + kind}, el("div", {class: "said-label muted"}, label), el("pre", null, text));
}

function toolCall(call) {
  return el("section", {class: "said call"},
    el("div", {class: "said-label muted"}, call.problem === null ? "Tool call" : "Tool call that could not be used"),
    el("pre", null, (call.name || "(no name)") + " " + jsonText(call.arguments)),
    call.problem === null ? null : el("p", {class: "warn"}, call.problem));
}

/** JSON in one line where it is short. */
function jsonText(value) {
  const line = JSON.stringify(value);
  return line.length <= 80 ? line : JSON.stringify(value, null, 1);
}

function foundDocuments(documents) {
  return el("ul", {class: "documents"}, documents.map((step) =>
    el("li", null, supportMark(step.ok), step.text || step.id, step.ok === true ? el("span", {class: "muted"}, " (supports the gold answer)") : null)));
}

function supportMark(ok) {
  return el("span", {class: "mark " + (ok === true ? "good" : ok === false ? "bad" : "open")}, ok === true ? "✓ " : ok === false ? "✗ " : "· ");
}
