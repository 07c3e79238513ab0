// The page: the list on the left, the open episode on the right, and the keyboard.

const PAGE = JSON.parse(document.getElementById("index").textContent);
const INDEX = PAGE.episodes.map((row, at) => ({ ...row, at }));
let view = null;

function openEpisode(at, turn) {
  const data = JSON.parse(document.getElementById("episode-" + at).textContent);
  view = new EpisodeView(INDEX[at], data);
  view.show();
  if (turn !== undefined) view.goTo(turn, { scroll: true });
  list.mark(at);
}

function openHash() {
  let place = "";
  try { place = decodeURIComponent(location.hash.slice(1)); } catch { /* not an address of this page */ }
  const [name, turn] = place.split("/");
  const row = name && INDEX.find((other) => other.name === name);
  if (row) openEpisode(row.at, turn === undefined ? undefined : Number(turn) || 0);
  return Boolean(row);
}

const list = new EpisodeList(INDEX, (at) => openEpisode(at));
if (!openHash() && list.shown.length) openEpisode(list.shown[0].at);
window.addEventListener("hashchange", openHash);
if (!INDEX.length) document.getElementById("main").replaceChildren(el("p", "note", "No episode could be read."));
if (PAGE.unreadable.length)
  document.getElementById("unreadable").append(details(`${PAGE.unreadable.length} files could not be read`, () => el("div", "", ...PAGE.unreadable.map((line) => el("p", "", text(line))))));

document.addEventListener("keydown", (event) => {
  if (event.target.matches("input[type=search], select") || event.ctrlKey || event.metaKey || event.altKey) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const onRange = event.target.matches("input[type=range]");
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  if (event.key === "/") { document.getElementById("search").focus(); event.preventDefault(); }
  else if (view && !onRange && (event.key === "ArrowRight" || event.key === "l")) view.goTo(view.at + 1, { scroll: true });
  else if (view && !onRange && (event.key === "ArrowLeft" || event.key === "h")) view.goTo(view.at - 1, { scroll: true });
  else if (step && !onRange && (event.key === "j" || event.key === "k" || event.shiftKey)) {
    const next = list.neighbour(step);
    if (next !== null) openEpisode(next);
    event.preventDefault();
  }
});
