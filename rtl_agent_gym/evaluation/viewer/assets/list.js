// The list of episodes: filters and order. Only visible rows are built.

const ROW = 62; // pixels, as in page.css
const FILTERS = ["run", "outcome", "cause", "problem", "category", "difficulty", "stop", "renderer"];
const ORDERS = {
  "as recorded": (a, b) => a.at - b.at,
  "newest first": (a, b) => (b.time || 0) - (a.time || 0),
  "lowest reward": (a, b) => (a.reward ?? -1) - (b.reward ?? -1),
  "highest reward": (a, b) => (b.reward ?? -1) - (a.reward ?? -1),
  "highest KL": (a, b) => (b.kl ?? -Infinity) - (a.kl ?? -Infinity),
  "most turns": (a, b) => b.turns - a.turns,
  "most tokens": (a, b) => (b.tokens ?? -1) - (a.tokens ?? -1),
  "longest": (a, b) => (b.seconds ?? -1) - (a.seconds ?? -1),
};

class EpisodeList {
  constructor(index, onOpen) {
    this.index = index;
    this.onOpen = onOpen;
    this.shown = index;
    this.open = -1;
    this.chosen = {};
    this.runs = new Set(index.map((row) => row.run)).size;
    this.view = document.getElementById("rows");
    this.space = el("div", "space");
    this.view.append(this.space);
    this.view.addEventListener("scroll", () => this.paint(), { passive: true });
    new ResizeObserver(() => this.paint()).observe(this.view);
    this.search = document.getElementById("search");
    this.search.addEventListener("input", () => this.apply());
    this.buildFilters();
    this.apply();
  }

  buildFilters() {
    const box = document.getElementById("filters");
    for (const name of FILTERS) {
      const counts = new Map();
      for (const row of this.index) counts.set(String(row[name] ?? "–"), (counts.get(String(row[name] ?? "–")) || 0) + 1);
      if (counts.size < 2) continue;
      const options = [...counts].sort().map(([value, count]) => [value, `${plain(short(value))} (${count})`]);
      box.append(this.select(name, [["", name + ": all"], ...options], (value) => (this.chosen[name] = value)));
    }
    this.order = "as recorded";
    box.append(this.select("order", Object.keys(ORDERS).map((name) => [name, "order: " + name]), (value) => (this.order = value)));
  }

  select(name, options, onChange) {
    const node = el("select");
    node.id = "filter-" + name;
    node.setAttribute("aria-label", name);
    for (const [value, label] of options) {
      const option = el("option", "", label);
      option.value = value;
      node.append(option);
    }
    node.addEventListener("change", () => { onChange(node.value); this.apply(); });
    return node;
  }

  apply() {
    const wanted = this.search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const filters = Object.entries(this.chosen).filter(([, value]) => value);
    this.shown = this.index.filter((row) => {
      if (filters.some(([name, value]) => String(row[name] ?? "–") !== value)) return false;
      const words = `${row.problem} ${row.name} ${row.run} ${row.outcome} ${row.cause ?? ""} ${row.stop}`.toLowerCase();
      return wanted.every((word) => words.includes(word));
    });
    this.shown.sort(ORDERS[this.order]);
    // As in an evaluation's summary, episodes that ended in a machine fault have no verdict and do not count.
    const passed = this.shown.filter((row) => row.outcome === "passed").length;
    const judged = this.shown.filter((row) => row.outcome === "passed" || row.outcome === "failed").length;
    const among = judged === this.shown.length ? "" : ` of ${thousands(judged)} with a verdict`;
    document.getElementById("count").textContent = this.shown.length
      ? `${thousands(this.shown.length)} of ${thousands(this.index.length)} episodes · ${thousands(passed)}${among} passed` +
        (judged ? ` (${Math.round((100 * passed) / judged)} %)` : "")
      : "no episode matches";
    this.view.scrollTop = 0;
    this.paint();
  }

  paint() {
    this.space.style.height = this.shown.length * ROW + "px";
    const first = Math.max(0, Math.floor(this.view.scrollTop / ROW) - 4);
    const last = Math.min(this.shown.length, Math.ceil((this.view.scrollTop + this.view.clientHeight) / ROW) + 4);
    this.space.replaceChildren(...this.shown.slice(first, last).map((row, offset) => this.row(row, first + offset)));
  }

  row(row, place) {
    const node = el("button", `row o-${row.outcome.replace(" ", "-")}${row.at === this.open ? " open" : ""}`,
      el("span", "dot"),
      el("span", "name", text(short(row.problem))),
      el("span", "reward", row.reward === null || row.reward === undefined ? row.outcome : number(row.reward, 2)),
      el("span", "sub", text([this.runs > 1 ? row.run : "", plural(row.turns, "turn"), row.tests ? `${row.tests[0]}/${row.tests[1]} tests` : "",
        row.tokens === null ? "" : `${thousands(row.tokens)} tokens`, row.kl === null ? "" : `KL ${number(row.kl, 2)}`,
        row.violations ? plural(row.violations, "violation") : ""].filter(Boolean).join(" · "))));
    node.type = "button";
    node.title = plain(row.name);
    node.style.top = place * ROW + "px";
    node.dataset.at = row.at;
    node.addEventListener("click", () => this.onOpen(row.at));
    return node;
  }

  mark(at) {
    this.open = at;
    const place = this.shown.findIndex((row) => row.at === at);
    if (place >= 0) {
      const top = place * ROW;
      if (top < this.view.scrollTop) this.view.scrollTop = top;
      else if (top + ROW > this.view.scrollTop + this.view.clientHeight) this.view.scrollTop = top + ROW - this.view.clientHeight;
    }
    this.paint();
  }

  /** The episode `step` rows below the open one. */
  neighbour(step) {
    const place = this.shown.findIndex((row) => row.at === this.open);
    const row = this.shown[Math.min(this.shown.length - 1, Math.max(0, place + step))];
    return row ? row.at : null;
  }
}

/** A count with its noun. */
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** A problem's id without the common prefix. */
const short = (name) => name.replace(/^cvdp_agentic_(?:rtlgym_)?/, "");
