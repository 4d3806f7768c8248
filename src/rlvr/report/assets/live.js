// A served page (`rlvr report --live`): an event says that files have changed, then the data is fetched and drawn again.
//
// Who reads an episode is not disturbed: on the tab "rollouts" a button offers what is new.

function follow(header, root) {
  const state = el("p", {class: "muted no-print", role: "status", id: "live"}, "Live: follows the runs.");
  header.append(state);
  const events = new EventSource("events");
  events.onmessage = () => {
    if (location.hash === "#rollouts") offer();
    else show();
  };
  events.onerror = () => { state.textContent = "Live: the server is not there; this is what was last seen."; };
  events.onopen = () => { state.textContent = "Live: follows the runs."; };

  function offer() {
    state.replaceChildren("Live: there is more. ", el("button", {onclick: show}, "Show it"));
  }

  async function show() {
    try {
      const answer = await fetch("data");
      renew(await answer.json());
      const main = await chunk("main");
      const open = [...root.querySelectorAll("details")].map((one) => one.open), top = scrollY;
      showHeader(header, main);
      header.append(state);
      const shown = shownOf(main);
      showTabs(root, tabsOf(main, shown.runs.length ? shown : main));
      await new Promise(requestAnimationFrame);
      const now = [...root.querySelectorAll("details")];
      if (now.length === open.length) now.forEach((one, index) => { one.open = open[index]; });
      scrollTo(0, top);
      state.textContent = "Live: as of " + new Date().toLocaleTimeString() + ".";
    } catch (error) {
      state.textContent = "Live: " + (error.message || error);
    }
  }
}
