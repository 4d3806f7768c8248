// Pages about evaluations and benchmarks: scores with their intervals, and examples, two models side by side.
//
// main.evaluations
//   cells  [{name, model, task, split, retriever, settings, num_examples, samples_per_example, num_right,
//             scores: {name: [value, low, high]}, numbers: {name: value}, cost: {name: value},
//             kinds: [{tag, num_examples, accuracy: [value, low, high], numbers}]}]
//             (`num_right` only where nothing was analyzed)
//   sets     [{task, split, cells: [number of a cell, ...], tags: [...],
//             comparisons: [{first, second, num_common, difference: [value, low, high], sampled, only_first, only_second,
//             p_value, adjusted_p_value, is_real, sentence}]}]
//   tokens   whether there is a chunk "tokens": {model: {token id: text}}
// chunk "examples"  [{set, id, tags, expected, text, chunk, results: {cell: [right, answer, stop reason, reward, tokens,
//             right samples, samples]}}], right: 1, 0 or null (not graded); chunk: number or null (left out)
// chunk "texts-N"   {number of the example: {prompt, expected, records: {cell: [{sample, turns: [{said, ids, logprobs,
//             calls: [[text, problem]], reply}], answer, correct, reward, stop, tokens: [read, written], seconds, parts,
//             facts, trace, failure, prompt, expected}]}}}; prompt and expected only where they differ

const COST_NAMES = {
  prompt_tokens: "tokens read", completion_tokens: "tokens written", turns: "turns", tool_calls: "calls of tools",
  seconds: "seconds, others beside it", tokens_per_right: "tokens for one right answer",
};

function evaluationTabs(main) {
  const data = main.evaluations;
  labelCells(data.cells);
  return [
    {id: "scores", label: "Scores", mount: (panel) => mountScores(panel, data)},
    {id: "examples", label: "Examples", mount: (panel) => mountExamples(panel, data)}, // examples.js,
  ];
}

/** Short names: without the folders that all models are in. */
function labelCells(cells) {
  const folders = cells.map((cell) => cell.name.split("/").slice(0, -1));
  let shared = 0;
  while (cells.length > 1 && folders.every((folder) => shared < folder.length && folder[shared] === folders[0][shared])) shared += 1;
  for (const cell of cells) cell.label = cell.name.split("/").slice(shared).join("/");
}

// ------------------------------------------------------------------------------------------------------------ scores

function mountScores(panel, data) {
  if (data.sets.length > 1) panel.append(overview(data));
  for (const set of data.sets) {
    const cells = set.cells.map((number) => data.cells[number]);
    panel.append(el("section", {class: "ev-set"}, el("h2", null, setName(set)), scoreCards(cells), comparisonCard(set, data), kindCard(cells),
      tableCard("Cost of an episode", cells, "cost", (name) => COST_NAMES[name] || name),
      tableCard("Other numbers", cells, "numbers", (name) => name.replaceAll("_", " "))));
  }
}

function setName(set) {
  return set.task + (set.split === "test" ? "" : ", split " + set.split);
}

/** One line a model, one column a task: what a benchmark is read for. */
function overview(data) {
  const names = [...new Set(data.cells.map((cell) => cell.label))];
  const cellOf = (name, set) => {
    const cell = set.cells.map((number) => data.cells[number]).find((one) => one.label === name);
    const score = cell && cell.scores.accuracy;
    return el("td", {class: "number"}, score ? percent(score[0]) : "-", score ? el("span", {class: "muted ev-range"}, range(score)) : null);
  };
  return el("div", null, el("h2", null, "Accuracy"), el("div", {class: "card scroll"}, el("table", null,
    el("thead", null, el("tr", null, el("th", null, "model"), data.sets.map((set) => el("th", {class: "number"}, setName(set))))),
    el("tbody", null, names.map((name) => el("tr", null, el("td", {class: "ev-name"}, name), data.sets.map((set) => cellOf(name, set))))))));
}

function range(score) {
  return `${(100 * score[1]).toFixed(1)} to ${(100 * score[2]).toFixed(1)}`;
}

function scoreCards(cells) {
  const names = [...new Set(cells.flatMap((cell) => Object.keys(cell.scores)))];
  if (!names.length) {
    return [el("div", {class: "card"}, cells.map((cell) => el("p", null, el("span", {class: "ev-name"}, cell.name),
      cell.num_right === undefined ? ": nothing was graded" : `: ${cell.num_right} of ${plural(cell.num_examples, "example")} right`)))];
  }
  return [el("div", {class: "card ev-bars"}, names.map((name) => el("div", {class: "ev-block"},
    el("h3", null, scoreName(name)), cells.filter((cell) => cell.scores[name]).map((cell) =>
      barRow(cell, cell.scores[name], plural(cell.num_examples, "example"), cells.indexOf(cell))))),
    el("p", {class: "muted"}, "The thin line is the 95 % interval: where the score would lie with other examples of the same kind."))];
}

function scoreName(name) {
  return name.replaceAll("_", " ").replace(/^pass at /, "pass@").replace(/^maj at /, "maj@").replace("sampled accuracy", "accuracy of samples (avg@k)");
}

/** A bar with whiskers on a scale from 0 to 1, its name before it and its value behind. */
function barRow(cell, score, note, series) {
  const [value, low, high] = score;
  const at = (share) => (100 * Math.min(1, Math.max(0, share))).toFixed(3) + "%";
  const drawn = svg("svg", {class: "ev-bar series-" + series % 4, role: "img", "aria-label": `${percent(value)}, 95 % interval ${range(score)}`},
    svg("rect", {class: "ev-track", width: "100%", height: "100%"}),
    [0.25, 0.5, 0.75].map((share) => svg("line", {class: "ev-grid", x1: at(share), x2: at(share), y1: 0, y2: "100%"})),
    svg("rect", {class: "ev-value", width: at(value), y: "22%", height: "56%"}),
    svg("line", {class: "ev-whisker", x1: at(low), x2: at(high), y1: "50%", y2: "50%"}),
    [low, high].map((end) => svg("line", {class: "ev-whisker", x1: at(end), x2: at(end), y1: "28%", y2: "72%"})));
  return el("div", {class: "ev-row"}, el("span", {class: "ev-name", title: `${cell.name}, ${note}`}, cell.label), drawn,
    el("span", {class: "ev-number"}, percent(value), el("span", {class: "muted ev-range"}, range(score))));
}

function kindCard(cells) {
  const tags = [...new Set(cells.flatMap((cell) => cell.kinds.map((kind) => kind.tag)))];
  if (!tags.length) return [];
  return [el("h3", null, "Accuracy by kind of example"), el("div", {class: "card ev-bars"}, tags.map((tag) => {
    const found = cells.map((cell) => cell.kinds.find((kind) => kind.tag === tag));
    const counts = [...new Set(found.filter((kind) => kind).map((kind) => kind.num_examples))];
    return el("div", {class: "ev-block"}, el("h3", null, tag.replaceAll("_", " "), el("span", {class: "muted"}, ` ${counts.join(" / ")} examples`)),
      cells.map((cell, index) => (found[index] ? barRow(cell, found[index].accuracy, plural(found[index].num_examples, "example"), index) : null)));
  }))];
}

/** Differences of every two models, zero in the middle: what crosses it may be chance. */
function comparisonCard(set, data) {
  if (!set.comparisons.length) return [];
  const reach = Math.max(0.02, ...set.comparisons.flatMap((one) => one.difference.map(Math.abs))) * 1.05;
  const at = (value) => (50 + (50 * value) / reach).toFixed(3) + "%";
  const labels = new Map(data.cells.map((cell) => [cell.name, cell.label]));
  const label = (name) => labels.get(name) || name;
  const rows = set.comparisons.map((one) => {
    const [value, low, high] = one.difference;
    const drawn = svg("svg", {class: "ev-difference" + (one.is_real ? " real" : ""), role: "img", "aria-label": one.sentence},
      svg("rect", {class: "ev-track", width: "100%", height: "100%"}),
      svg("line", {class: "ev-zero", x1: "50%", x2: "50%", y1: 0, y2: "100%"}),
      svg("line", {class: "ev-whisker", x1: at(low), x2: at(high), y1: "50%", y2: "50%"}),
      [low, high].map((end) => svg("line", {class: "ev-whisker", x1: at(end), x2: at(end), y1: "28%", y2: "72%"})),
      svg("circle", {class: "ev-point", cx: at(value), cy: "50%", r: 5}));
    const points = (share) => (share > 0 ? "+" : "") + (100 * share).toFixed(1);
    return el("div", {class: "ev-pair"},
      el("div", {class: "ev-row"}, el("span", {class: "ev-name"}, label(one.second), el("span", {class: "muted"}, " against "), label(one.first)), drawn,
        el("span", {class: "ev-number"}, points(value) + " points", el("span", {class: "muted ev-range"}, `${points(low)} to ${points(high)}`))),
      el("p", null, el("strong", {class: one.is_real ? "ev-real" : "muted"}, one.is_real ? "Real: " : "May be chance: "), one.sentence),
      el("p", {class: "muted"}, `Examples that one of them alone gets right: ${one.only_second} by ${label(one.second)}, ${one.only_first} by ${label(one.first)}.`));
  });
  return [el("h3", null, "Paired differences"), el("div", {class: "card"},
    el("p", {class: "muted ev-axis"}, el("span", null, el("span", null, "worse"), el("span", null, "equal"), el("span", null, "better"))), rows)];
}

function tableCard(title, cells, key, nameOf) {
  const names = [...new Set(cells.flatMap((cell) => Object.keys(cell[key] || {})))];
  if (!names.length) return null;
  return el("details", {class: "ev-more", open: key === "cost"}, el("summary", null, title), el("div", {class: "card scroll"}, el("table", null,
    el("thead", null, el("tr", null, el("th", null, ""), cells.map((cell) => el("th", {class: "number ev-name", title: cell.name}, cell.label)))),
    el("tbody", null, names.map((name) => el("tr", null, el("td", null, nameOf(name)),
      cells.map((cell) => el("td", {class: "number"}, number(cell[key][name])))))))));
}
