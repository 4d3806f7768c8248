// The browser of recorded episodes: filters, a list that draws only what is seen, and panes for opened episodes.
//
// Chunk "index": {files: [{run, step}], names: {example, answer, stop, status: [text, ..]}, columns: {file, example,
//   answer, stop, status: numbers into those lists; group, sample, reward, advantage, tokens, turns; influence: shares of
//   the update by `rlvr replay --influence`, and rise: the largest of P(gold) by `rlvr explain`, if there are any},
//   texts: [first episode of each chunk "text-0", ..], details: [the same of "detail-0", ..]}
// Chunk "text-<n>": {prompts: [text, ..], episodes: [[number of the prompt, [completion, reply, completion, ..]], ..]}
// Chunk "detail-<n>" and "tokens-<run>": see episode.js and tokens.js.

const ROW_HEIGHT = 58; // pixels, as in rollouts.css
const EPISODE_ORDERS = {
  file: {label: "as recorded"},
  reward_down: {label: "reward, highest first", column: "reward", sign: -1},
  reward_up: {label: "reward, lowest first", column: "reward", sign: 1},
  tokens_down: {label: "longest first", column: "tokens", sign: -1},
  tokens_up: {label: "shortest first", column: "tokens", sign: 1},
  advantage_down: {label: "advantage, highest first", column: "advantage", sign: -1},
  advantage_up: {label: "advantage, lowest first", column: "advantage", sign: 1},
  influence_down: {label: "influence, helped most first", column: "influence", sign: -1},
  influence_up: {label: "influence, hurt most first", column: "influence", sign: 1},
  rise: {label: "rise of P(gold), largest first", column: "rise", sign: -1},
};

/** All episodes of the page by their number; texts come chunk by chunk behind the index. */
class Episodes {
  constructor(index, runs) {
    Object.assign(this, index.columns);
    this.index = index;
    this.names = index.names;
    this.runs = runs;
    this.count = this.file.length;
    this.texts = new Array(this.count).fill(null); // {prompt, said: [completion, reply, completion, ..]}
    this.lower = new Array(this.count).fill(null); // the same as one lowercase text, to search in
  }

  async loadTexts(onprogress) {
    for (let number = 0; number < this.index.texts.length; number++) {
      const {prompts, episodes} = await chunk("text-" + number);
      const start = this.index.texts[number];
      episodes.forEach(([prompt, said], offset) => {
        this.texts[start + offset] = {prompt: prompts[prompt], said};
        this.lower[start + offset] = [prompts[prompt], ...said].join("\n").toLowerCase();
      });
      onprogress(number + 1 === this.index.texts.length);
    }
  }

  async detail(number) {
    const starts = this.index.details;
    let part = starts.length - 1;
    while (starts[part] > number) part--;
    return (await chunk("detail-" + part))[number - starts[part]];
  }

  run(number) { return this.index.files[this.file[number]].run; }

  /** "step 10", with the run's name where there are several. */
  place(file) {
    const {run, step} = this.index.files[file];
    return (this.runs.length > 1 ? this.runs[run].name + ", " : "") + "step " + step;
  }

  /** Numbers of the episodes that fit, in the order asked for. Missing numbers come last. */
  find({file, low, high, stop, status, text, group, order}) {
    const words = (text || "").toLowerCase(), found = [];
    for (let number = 0; number < this.count; number++) {
      const reward = this.reward[number];
      if (file !== null && this.file[number] !== file) continue;
      if (low !== null && !(reward !== null && reward >= low)) continue;
      if (high !== null && !(reward !== null && reward <= high)) continue;
      if (stop !== null && this.stop[number] !== stop) continue;
      if (status !== null && this.status[number] !== status) continue;
      if (group !== null && (this.group[number] !== group.group || this.file[number] !== group.file)) continue;
      if (words && !(this.lower[number] || "").includes(words)) continue;
      found.push(number);
    }
    const {column, sign} = EPISODE_ORDERS[order];
    if (!column) return found;
    const values = this[column];
    const rank = (number) => (values[number] === null ? Infinity : sign * values[number]);
    return found.sort((a, b) => rank(a) - rank(b) || a - b);
  }

  /** The episode at another step to hold beside this one, and a sentence where it is not of the same example. */
  counterpart(number, file) {
    const there = [];
    for (let other = 0; other < this.count; other++) if (this.file[other] === file && other !== number) there.push(other);
    const same = there.filter((other) => this.example[other] === this.example[number]);
    const sample = same.find((other) => this.sample[other] === this.sample[number]);
    if (sample !== undefined || same.length) return {other: sample ?? same[0], note: null};
    const place = there.find((other) => this.group[other] === this.group[number] && this.sample[other] === this.sample[number]);
    const note = `There is no episode of this example at ${this.place(file)}; this is ` +
      (place === undefined ? "the first one of that step." : "the one at the same place in the batch.");
    return {other: place ?? there[0] ?? null, note};
  }
}

async function mountRollouts(panel, main) {
  const episodes = new Episodes(await chunk("index"), main.runs);
  const view = new EpisodeViews(episodes);
  const list = new EpisodeList(episodes, (number) => view.open(number));
  const count = el("p", {class: "muted", role: "status"});
  const controls = filterControls(episodes, update);
  view.showGroup = (number) => controls.setGroup({file: episodes.file[number], group: episodes.group[number]});
  view.walk = (number, step) => list.neighbor(number, step);
  panel.append(controls.form, el("div", {class: "browser"}, el("div", {class: "left"}, count, list.node), view.node));

  function update() {
    const found = episodes.find(controls.value());
    list.show(found);
    const rewards = found.map((number) => episodes.reward[number]).filter((reward) => reward !== null);
    const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
    const tokens = found.reduce((sum, number) => sum + episodes.tokens[number], 0) / found.length;
    count.textContent = `${found.length.toLocaleString("en")} of ${plural(episodes.count, "episode")}` +
      (found.length ? `; mean reward ${number(mean)}, mean length ${number(tokens)} tokens` : "");
  }

  update();
  await episodes.loadTexts((done) => { list.draw(); if (done || controls.value().text) update(); });
  panel.dataset.ready = "true";
}

function filterControls(episodes, onchange) {
  let group = null;
  const changed = () => onchange();
  const choice = (label, options) => el("select", {"aria-label": label, onchange: changed},
    el("option", {value: ""}, "all"), options.map((text, index) => el("option", {value: index}, text)));
  const bound = (label) => el("input", {type: "number", step: "any", "aria-label": label, class: "bound", oninput: changed});
  const file = choice("step", episodes.index.files.map((_, index) => episodes.place(index)));
  const stop = choice("stop reason", episodes.names.stop);
  const status = choice("score status", episodes.names.status);
  const low = bound("lowest reward"), high = bound("highest reward");
  const text = el("input", {type: "search", "aria-label": "text in prompt, completion or reply", placeholder: "text in prompt or completion", oninput: changed});
  const order = el("select", {"aria-label": "order", onchange: changed},
    Object.entries(EPISODE_ORDERS).filter(([, {column}]) => !column || episodes[column])
      .map(([name, {label}]) => el("option", {value: name}, label)));
  const chip = el("button", {type: "button", class: "hidden", onclick: () => setGroup(null)});
  const field = (label, ...nodes) => el("label", {class: "field"}, el("span", {class: "muted"}, label), el("span", null, nodes));
  const form = el("form", {class: "filters no-print", onsubmit: (event) => event.preventDefault()},
    field("Step", file), field("Reward from", low), field("to", high), field("Stop reason", stop), field("Score", status),
    field("Text", text), field("Order", order), chip,
    el("button", {type: "button", onclick: () => { form.reset(); setGroup(null); }}, "Reset"));

  function setGroup(chosen) {
    group = chosen;
    chip.classList.toggle("hidden", group === null);
    if (group) chip.textContent = `Only group ${group.group} of ${episodes.place(group.file)} ✕`;
    onchange();
  }

  const index = (select) => (select.value === "" ? null : Number(select.value));
  const amount = (input) => (input.value === "" ? null : Number(input.value));
  const value = () => ({file: index(file), low: amount(low), high: amount(high), stop: index(stop), status: index(status),
    text: text.value, group, order: order.value});
  return {form, value, setGroup};
}

/** A list of any length: only the rows in sight are in the page. Up and down walk, Enter and click open. */
class EpisodeList {
  constructor(episodes, onopen) {
    this.episodes = episodes;
    this.onopen = onopen;
    this.found = [];
    this.chosen = -1; // place in `found`
    this.rows = el("div", {class: "rows"});
    this.space = el("div", {class: "space"}, this.rows);
    this.node = el("div", {class: "list card", tabindex: 0, role: "listbox", "aria-label": "episodes",
      onscroll: () => this.draw(), onkeydown: (event) => this.key(event)}, this.space);
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  show(found) {
    const open = this.found[this.chosen];
    this.found = found;
    this.chosen = found.indexOf(open);
    this.space.style.height = found.length * ROW_HEIGHT + "px";
    this.node.scrollTop = this.chosen > 0 ? this.chosen * ROW_HEIGHT : 0;
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / ROW_HEIGHT) - 5);
    const last = Math.min(this.found.length, first + Math.ceil((this.node.clientHeight || 600) / ROW_HEIGHT) + 10);
    this.rows.style.transform = `translateY(${first * ROW_HEIGHT}px)`;
    this.rows.replaceChildren(...this.found.slice(first, last).map((number, offset) => this.row(number, first + offset)));
    const active = this.chosen >= first && this.chosen < last ? "episode-" + this.found[this.chosen] : "";
    this.node.setAttribute("aria-activedescendant", active);
  }

  row(number, place) {
    const all = this.episodes, texts = all.texts[number];
    const said = texts ? texts.said.filter((_, index) => index % 2 === 0).join(" … ") : "";
    const prompt = texts ? texts.prompt : all.names.example[all.example[number]];
    return el("div", {class: "row", role: "option", id: "episode-" + number, "aria-selected": String(place === this.chosen),
      "aria-posinset": place + 1, "aria-setsize": this.found.length, onclick: () => this.open(place)},
      el("div", {class: "row-head"}, rewardBadge(all.reward[number]), el("span", null, all.place(all.file[number])),
        el("span", {class: "muted"}, `group ${all.group[number]}.${all.sample[number]}`),
        all.influence && all.influence[number] !== null ? el("span", {class: "muted"}, "influence " + percent(all.influence[number])) : null,
        all.rise && all.rise[number] !== null ? el("span", {class: "muted"}, `P(gold) ${all.rise[number] < 0 ? "" : "+"}${all.rise[number].toFixed(2)}`) : null,
        el("span", {class: "muted"}, plural(all.tokens[number], "token")),
        all.names.stop[all.stop[number]] === "stop" ? null : el("span", {class: "warn"}, all.names.stop[all.stop[number]]),
        all.names.status[all.status[number]] === "scored" ? null : el("span", {class: "warn"}, all.names.status[all.status[number]])),
      el("div", {class: "mono snippet"}, el("span", {class: "muted"}, tail(prompt, 44) + " "), said.slice(0, 120)));
  }

  open(place) {
    this.chosen = place;
    this.draw();
    this.onopen(this.found[place]);
  }

  /** The episode before or behind an episode in the list as it is filtered, opened; used by the panes. */
  neighbor(number, step) {
    const place = this.found.indexOf(number) + step;
    if (place < 0 || place >= this.found.length) return;
    this.reveal(place);
    this.open(place);
  }

  reveal(place) {
    const top = place * ROW_HEIGHT, height = this.node.clientHeight;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    else if (top + ROW_HEIGHT > this.node.scrollTop + height) this.node.scrollTop = top + ROW_HEIGHT - height;
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.node.clientHeight / ROW_HEIGHT) - 1);
    const steps = {ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity};
    const step = event.key === "Enter" ? 0 : steps[event.key];
    if (step === undefined || !this.found.length) return;
    event.preventDefault();
    const place = Math.min(this.found.length - 1, Math.max(0, this.chosen + step));
    this.reveal(place);
    this.open(place);
  }
}

function rewardBadge(reward) {
  const kind = reward === null ? "none" : reward > 0 ? "plus" : reward < 0 ? "minus" : "zero";
  return el("span", {class: "reward " + kind, title: "reward"}, number(reward));
}

/** The end of a text, where the question usually is. */
function tail(text, length) {
  return text.length > length ? "…" + text.slice(text.length - length) : text;
}
