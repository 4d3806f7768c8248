// What `rlvr doctor` and `rlvr audit` found about a run: a row a check, the failed ones first.

const CHECK_STATES = {
  fail: {badge: "wrong", label: "▲ wrong"},
  notice: {badge: "notice", label: "△ look here"},
  ok: {badge: "fine", label: "✓ ok"},
  skipped: {badge: "look", label: "· skipped"},
};

function checkTabs(main) {
  const kinds = [...new Set(main.runs.flatMap((run) => Object.keys(run.checks)))];
  return kinds.map((kind) => {
    const failed = main.runs.flatMap((run) => run.checks[kind] || []).filter((check) => check.status === "fail").length;
    const label = kind[0].toUpperCase() + kind.slice(1);
    return {id: kind, label: failed ? `${label} ▲ ${failed}` : label, mount: (panel) => mountChecks(panel, main, kind)};
  });
}

function mountChecks(panel, main, kind) {
  for (const run of main.runs.filter((run) => run.checks[kind])) {
    if (main.runs.length > 1) panel.append(el("h2", null, run.name));
    const states = Object.keys(CHECK_STATES);
    const rows = [...run.checks[kind]].sort((a, b) => states.indexOf(a.status) - states.indexOf(b.status));
    panel.append(el("div", {class: "card"}, rows.map(checkRow)));
  }
}

function checkRow(check) {
  const {badge, label} = CHECK_STATES[check.status];
  const texts = [el("p", null, check.says)];
  if (check.status !== "ok" && check.remedy) texts.push(el("p", null, "Do: " + check.remedy));
  if (Object.keys(check.evidence).length) {
    texts.push(el("details", null, el("summary", {class: "muted"}, "evidence"),
      el("pre", {class: "scroll"}, JSON.stringify(check.evidence, null, 1))));
  }
  return el("div", {class: "signal check"},
    el("span", null, el("span", {class: "badge " + badge}, label)),
    el("span", {class: "mono name"}, check.name),
    el("div", {class: "texts"}, texts));
}
