// The signals that go wrong in silence, each with its value, its course and what it means.

const STATES = {
  wrong: {label: "▲ looks wrong", title: "Looks wrong"},
  notice: {label: "△ look here", title: "Worth a look"},
  fine: {label: "✓ no alarm", title: "Checked, no alarm"},
  look: {label: "· you judge", title: "No rule can judge these, or not yet: look at the curve"},
};

function mountHealth(panel, main) {
  for (const run of main.runs) {
    if (main.runs.length > 1) panel.append(el("h2", null, run.name));
    panel.append(el("p", null, verdict(run)));
    for (const [state, {title}] of Object.entries(STATES)) {
      const rows = run.health.filter((row) => row.state === state);
      if (!rows.length) continue;
      panel.append(el("details", {class: "section", open: state !== "look"},
        el("summary", null, `${title} `, el("span", {class: "muted"}, `(${rows.length})`)),
        el("div", {class: "card"}, rows.map((row) => signal(row, run, main)))));
    }
  }
}

function verdict(run) {
  const count = (state) => run.health.filter((row) => row.state === state).length;
  if (!run.health.length) return "No step has been recorded yet: there is nothing to check.";
  const wrong = count("wrong"), notice = count("notice"), fine = count("fine");
  const start = wrong ? `${plural(wrong, "signal")} ${wrong === 1 ? "looks" : "look"} wrong` : "Nothing looks wrong";
  return `${start} in the last steps; ${notice} ${wrong ? "more " : ""}worth a look, ${fine} checked without an alarm.`;
}

function signal(row, run, main) {
  const about = main.metrics[row.metric];
  const quiet = row.state === "look" || row.state === "fine";
  const texts = row.texts.map((text) => el("p", null, text));
  if (quiet && row.bad) texts.push(el("p", {class: "muted"}, "Looks wrong when: " + row.bad));
  texts.push(...row.past.map((text) => el("p", null, text)));
  return el("div", {class: "signal"},
    el("span", null, el("span", {class: "badge " + row.state}, STATES[row.state].label)),
    el("span", {class: "mono name", title: about ? about.meaning : null}, row.metric),
    el("span", {class: "mono value"}, number(row.value)),
    el("span", {class: "spark-cell"}, sparkline(run.series[row.metric] || [])),
    el("div", {class: "texts"}, texts));
}
