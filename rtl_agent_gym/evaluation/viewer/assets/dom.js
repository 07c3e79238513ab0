// Building nodes. Text from models and shells enters the page only through `text`, as text nodes, never as markup.

/** An element with a class, properties by name, and children (nodes, trusted strings, or null). */
function el(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function button(className, label, onClick, title) {
  const node = el("button", className, label);
  node.type = "button";
  if (title) node.title = plain(title);
  node.addEventListener("click", onClick);
  return node;
}

// Control characters, marks that reorder or hide text, and lone surrogates. They are shown as codes, since they could
// make a line look different from what it is.
const HIDDEN =
  /[\u{0}-\u{8}\u{b}-\u{1f}\u{7f}-\u{9f}\u{ad}\u{34f}\u{600}-\u{605}\u{61c}\u{6dd}\u{70f}\u{890}-\u{891}\u{8e2}\u{115f}-\u{1160}\u{17b4}-\u{17b5}\u{180b}-\u{180f}\u{200b}-\u{200f}\u{2028}-\u{202e}\u{2060}-\u{206f}\u{2800}\u{3164}\u{d800}-\u{dfff}\u{fe00}-\u{fe0d}\u{feff}\u{ffa0}\u{fff9}-\u{fffb}\u{110bd}\u{110cd}\u{13430}-\u{1343f}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

const code = (character) => "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");

/** Untrusted text as a string, for tooltips and options, which cannot contain nodes. */
const plain = (value) => String(value).replace(HIDDEN, code);

/** Untrusted text as nodes, with hidden characters made visible. */
function text(value, className) {
  value = String(value);
  const node = el("span", className || "");
  let from = 0;
  for (const match of value.matchAll(HIDDEN)) {
    if (match[0] === "\r" && value[match.index + 1] === "\n") continue;
    node.append(value.slice(from, match.index));
    node.append(el("span", "hidden-char", match[0] === "\u001b" ? "␛" : code(match[0])));
    from = match.index + match[0].length;
  }
  node.append(value.slice(from));
  return node;
}

/** The first `limit` lines of a block, with a button for the rest. */
function folded(value, limit, build) {
  const lines = value.split("\n");
  if (lines.length <= limit + 5) return build(value);
  const box = el("div", "folded");
  const more = button("more", `show all ${lines.length} lines`, () => box.replaceChildren(build(value)));
  box.append(build(lines.slice(0, limit).join("\n")), more);
  return box;
}

const seconds = (value) => (value === null || value === undefined ? "–" : value < 100 ? value.toFixed(2) + " s" : Math.round(value) + " s");
const number = (value, digits = 3) => (value === null || value === undefined ? "–" : Number(value).toFixed(digits));
const thousands = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));
