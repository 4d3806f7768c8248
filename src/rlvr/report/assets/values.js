// What the states of an episode were worth, by `rlvr explain`.
//
// {states: [[turn, tokens], ...], gold: P(gold) at each, right: how many of `count` samples from there were right, or
//   null, decisive: the turn in which P(gold) rose most, or null}

const CURVE = {height: 130, left: 34, right: 14, top: 10, bottom: 34, step: 76, width: 300};

/** ` - P(gold) 0.05 to 0.95, the largest rise` for the label of a turn. */
function worthOf(values, turn) {
  const place = values.states.findIndex(([at]) => at === turn);
  if (place < 0) return "";
  const next = values.states.findIndex(([at]) => at > turn);
  const worth = next < 0 ? number(rounded(values.gold[place])) : `${rounded(values.gold[place])} to ${rounded(values.gold[next])}`;
  return ` \u00b7 P(gold) ${worth}` + (values.decisive === turn ? ", the largest rise" : "");
}

function rounded(share) {
  return Number(share.toFixed(2));
}

/** A dot a state: filled on a line for P(gold), hollow with a whisker (95 %) for P(right). */
function valueCurve(values) {
  const {height, left, right, top, bottom} = CURVE, count = values.states.length;
  const width = Math.max(CURVE.width, left + right + CURVE.step * Math.min(count, 8));
  const x = (place) => left + (count < 2 ? 0.5 : place / (count - 1)) * (width - left - right);
  const y = (share) => top + (1 - share) * (height - top - bottom);
  const inside = values.states.some(([, tokens]) => tokens > 0);
  const every = Math.ceil(count / 8); // labels that have room
  const label = ([turn, tokens]) => (tokens ? `+${tokens}` : `turn ${turn + 1}`);
  const parts = [0, 0.5, 1].map((share) => svg("g", null,
    svg("line", {x1: left, x2: width - right, y1: y(share), y2: y(share), class: "grid"}),
    svg("text", {x: left - 5, y: y(share) + 4, class: "tick", "text-anchor": "end"}, String(share))));
  values.states.slice(0, -1).forEach(([turn], place) => {
    if (turn === values.decisive) parts.push(svg("rect", {x: x(place), y: top, width: x(place + 1) - x(place), height: height - top - bottom, class: "decisive"}));
  });
  parts.push(svg("path", {class: "line series-0", d: values.gold.map((share, place) => `${place ? "L" : "M"}${x(place)} ${y(share)}`).join("")}));
  values.states.forEach((state, place) => {
    parts.push(svg("circle", {cx: x(place), cy: y(values.gold[place]), r: 4, class: "worth-gold"},
      svg("title", null, `${label(state)}: P(gold) ${number(values.gold[place])}`)));
    if (place % every === 0) parts.push(svg("text", {x: x(place), y: height - bottom + 16, class: "tick", "text-anchor": count > 1 && place === 0 ? "start" : count > 1 && place === count - 1 ? "end" : "middle"}, label(state)));
    if (values.right) parts.push(chance(x(place) + 6, y, values.right[place], values.count));
  });
  const last = number(rounded(values.gold[count - 1]));
  const said = `P(gold) from ${number(rounded(values.gold[0]))} to ${last} over ${plural(count, "state")}`
    + (values.decisive === null ? "" : `; the largest rise in turn ${values.decisive + 1}`);
  return el("figure", {class: "worth"},
    el("figcaption", {class: "muted"}, said, ". ", el("b", {class: "worth-key"}, "\u25cf"), " P(gold) if it had to answer there",
      values.right ? ["; ", el("b", {class: "worth-key right-key"}, "\u25cb"), ` P(right) of ${values.count} samples from there`] : null,
      values.decisive === null ? null : "; shaded: the largest rise", inside ? "; +n: after n tokens." : "."),
    el("div", {class: "scroll"}, svg("svg", {viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": said}, parts)));
}

/** Wilson's interval of k right samples of n. */
function chance(x, y, right, count) {
  const share = right / count, z = 1.96, spread = 1 + z * z / count;
  const middle = (share + z * z / (2 * count)) / spread;
  const half = (z / spread) * Math.sqrt(share * (1 - share) / count + z * z / (4 * count * count));
  return svg("g", {class: "worth-right"}, svg("line", {x1: x, x2: x, y1: y(Math.max(0, middle - half)), y2: y(Math.min(1, middle + half))}),
    svg("circle", {cx: x, cy: y(share), r: 4}, svg("title", null, `${right} of ${count} samples right`)));
}
