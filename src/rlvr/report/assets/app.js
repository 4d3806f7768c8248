// The page: reads the data, shows tabs. Comes last, behind all other files of this folder.
//
// All *.js of assets/ become one script: base.js first (el, svg, number, percent, chunk), app.js last, the others by
// name; all *.css one style. A file is plain JS: `function` and `const` at its top are seen by the others.
//
// The data: `await chunk("main")` is an object
//   kind      "run", "evaluations" or "benchmark"
//   title     heading of the page
//   facts     [[name, value], ...] below the heading, texts
//   notes     sentences about damaged files and what was left out, shown on top
//   runs      (kind "run") [{name, steps: [..], series: {metric: [value or null, ..]}, health: [..],
//             checks: {doctor: [{name, status, says, evidence, remedy}, ..], ..}, settings: text}]
//   sections  (kind "run") [{title, open, names: [metric, ..], still: [metric, ..]}]: what charts.js draws
//   metrics   (kind "run") {metric: {unit, meaning, bad}}, the rows of docs/metrics.md
//   sweep     (kind "run") rows of texts, the head first; null if it is no sweep
//   episodes  (kind "run") number of episodes in chunk "index" (see rollouts.js); 0: there are none
//   live      (kind "run") true for a page that `rlvr report --live` serves: live.js asks for news
//   evaluations  (the other kinds) whatever evaluations.js draws; larger things belong into chunks of their own
//
// In Python: report/page.py `Page(title=..., main={...}, chunks={name: pack(value)})` and `write_page(path, page)`;
// commands/report/__init__.py `_write` chooses by what the folder is.
//
// Where other files mount:
//   evaluationTabs(main)    -> [{id, label, mount(panel)}]   (evaluations.js) called where main.evaluations is there;
//                              `mount` is called when its tab is opened for the first time, and may be async
//   drawTrace(steps, gold)  -> element   (trace.js) steps: [{kind, text, ok, id, turn}], gold: text
//   lineChart(...)          -> element   (charts.js) for anybody who draws a curve
// Classes: card, muted, note, mono, scroll, number (right-aligned cell), no-print. Colors: the variables of base.css.

const THEMES = ["auto", "light", "dark"];

/** Tabs of the page; `shown` has the runs that its charts are of. */
function tabsOf(main, shown = main) {
  const tabs = [];
  if (main.sweep) tabs.push({id: "sweep", label: "Sweep", mount: (panel) => mountSweep(panel, main.sweep)});
  if (main.runs) tabs.push({id: "curves", label: "Curves", mount: (panel) => mountCurves(panel, shown)});
  if (main.runs) tabs.push({id: "health", label: healthLabel(shown), mount: (panel) => mountHealth(panel, shown)});
  if (main.runs) tabs.push(...checkTabs(shown));
  if (main.episodes) tabs.push({id: "rollouts", label: "Rollouts", mount: (panel) => mountRollouts(panel, main)});
  if (main.evaluations && typeof evaluationTabs === "function") tabs.push(...evaluationTabs(main));
  if (main.runs) tabs.push({id: "settings", label: "Settings", mount: (panel) => mountSettings(panel, shown)});
  return tabs;
}

/** With the number of signals that look wrong: a flat curve's cause stands one tab away. */
function healthLabel(main) {
  const wrong = main.runs.reduce((sum, run) => sum + run.health.filter((row) => row.state === "wrong").length, 0);
  return wrong ? `Health ▲ ${wrong}` : "Health";
}

function mountSweep(panel, [head, ...rows]) {
  panel.append(el("div", {class: "card scroll"}, el("table", null,
    el("thead", null, el("tr", null, head.map((name) => el("th", null, name)))),
    el("tbody", null, rows.map((row) => el("tr", null, row.map((text) => el("td", null, text))))))));
}

function mountSettings(panel, main) {
  for (const run of main.runs) {
    panel.append(el("h2", null, run.name), el("pre", {class: "card"}, run.settings || "There is no config.yaml."));
  }
}

/** Tabs as in w3.org/WAI/ARIA/apg/patterns/tabs: arrows move, the open one is in the address behind #. */
function showTabs(root, tabs) {
  const panels = tabs.map((tab) =>
    el("section", {role: "tabpanel", id: "panel-" + tab.id, "aria-labelledby": "tab-" + tab.id, class: "hidden"}));
  const buttons = tabs.map((tab, index) =>
    el("button", {role: "tab", id: "tab-" + tab.id, "aria-controls": "panel-" + tab.id, onclick: () => open(index)},
      tab.label));
  const mounted = new Set();

  function open(index) {
    buttons.forEach((button, other) => {
      button.setAttribute("aria-selected", String(other === index));
      button.tabIndex = other === index ? 0 : -1;
      panels[other].classList.toggle("hidden", other !== index);
    });
    history.replaceState(null, "", "#" + tabs[index].id);
    if (mounted.has(index)) return;
    mounted.add(index);
    Promise.resolve().then(() => tabs[index].mount(panels[index])).catch((error) => failed(panels[index], error));
  }

  function onkeydown(event) {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    const next = (buttons.indexOf(document.activeElement) + step + tabs.length) % tabs.length;
    open(next);
    buttons[next].focus();
  }

  root.replaceChildren(el("nav", {class: "tabs", role: "tablist", onkeydown}, buttons), ...panels);
  open(Math.max(0, tabs.findIndex((tab) => "#" + tab.id === location.hash)));
}

function themeButton() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = "auto";
  try { chosen = localStorage.getItem("rlvr-theme") || "auto"; } catch { /* storage is closed to files in some browsers */ }
  const button = el("button", {class: "no-print", onclick: () => {
    chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
    try { localStorage.setItem("rlvr-theme", chosen); } catch { /* then it lasts for this page only */ }
    apply();
  }});

  function apply() {
    const theme = chosen === "auto" ? (dark.matches ? "dark" : "light") : chosen;
    document.documentElement.dataset.theme = theme;
    button.textContent = "Colors: " + chosen;
  }

  dark.addEventListener("change", apply);
  apply();
  return button;
}

let runText = ""; // what the field below holds

/** With the runs whose name or settings have each word of the field: `seed-3`, `learning_rate=0.001`. */
function shownOf(main) {
  const words = runText.toLowerCase().split(/\s+/).filter(Boolean);
  const says = (run, word) => run.name.toLowerCase().includes(word) ||
    run.settings.toLowerCase().includes(word.replace("=", ": "));
  return {...main, runs: (main.runs || []).filter((run) => words.every((word) => says(run, word)))};
}

/** A field that chooses the runs of all tabs but the rollouts', which have filters of their own. */
function runFilter(root, main) {
  const told = el("span", {class: "muted", role: "status"});
  const say = (shown) => { told.textContent = runText ? ` ${shown.runs.length} of ${plural(main.runs.length, "run")}` : ""; };
  const input = el("input", {type: "search", id: "runs", value: runText, placeholder: "Runs: name or setting=value",
    "aria-label": "Filter runs", oninput: () => {
      runText = input.value.trim();
      const shown = shownOf(main);
      say(shown);
      if (shown.runs.length) showTabs(root, tabsOf(main, shown));
    }});
  say(shownOf(main));
  return el("p", {class: "no-print"}, input, told);
}

/** Facts of one run stand open; those of many would fill a phone's screen. */
function showHeader(root, main) {
  const facts = (main.facts || []).map(([name, value]) => el("span", null, el("span", {class: "muted"}, name + " "), value));
  const many = main.runs && main.runs.length > 2;
  root.replaceChildren(
    el("div", {class: "head"}, el("h1", null, main.title), root.querySelector("button")),
    many ? el("details", null, el("summary", null, plural(main.runs.length, "run")), el("div", {class: "facts"}, facts))
      : el("div", {class: "facts"}, facts),
    ...(many ? [runFilter(document.getElementById("main"), main)] : []),
    ...(main.notes || []).map((text) => el("p", {class: "note"}, text)));
}

async function start() {
  const header = document.getElementById("header"), root = document.getElementById("main");
  header.append(themeButton());
  try {
    const main = await chunk("main");
    showHeader(header, main);
    showTabs(root, tabsOf(main));
    if (main.live) follow(header, root);
  } catch (error) {
    failed(root, error);
  }
}

start();
