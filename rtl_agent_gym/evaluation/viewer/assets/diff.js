// Differences of two texts, line by line.

const MOST_CELLS = 4_000_000; // of the table of common lines; larger differences are shown as one replacement

/** Lines as [sign, text] where sign is " ", "-" or "+". */
function diffLines(before, after) {
  const a = before === "" ? [] : before.replace(/\n$/, "").split("\n");
  const b = after === "" ? [] : after.replace(/\n$/, "").split("\n");
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let endA = a.length, endB = b.length;
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) { endA--; endB--; }
  const same = (lines) => lines.map((line) => [" ", line]);
  return [...same(a.slice(0, start)), ...middle(a.slice(start, endA), b.slice(start, endB)), ...same(a.slice(endA))];
}

function middle(a, b) {
  const replaced = [...a.map((line) => ["-", line]), ...b.map((line) => ["+", line])];
  if (!a.length || !b.length || a.length * b.length > MOST_CELLS) return replaced;
  const width = b.length + 1;
  const table = new Uint32Array((a.length + 1) * width); // length of the longest common suffix
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      table[i * width + j] = a[i] === b[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
  const lines = [];
  let i = 0, j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) { lines.push([" ", a[i]]); i++; j++; }
    else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) lines.push(["-", a[i++]]);
    else lines.push(["+", b[j++]]);
  }
  while (i < a.length) lines.push(["-", a[i++]]);
  while (j < b.length) lines.push(["+", b[j++]]);
  return lines;
}

/** A diff with three lines around each change, coloured. */
function diffBlock(before, after, language) {
  const lines = diffLines(before, after);
  const near = new Uint8Array(lines.length);
  lines.forEach(([sign], at) => { if (sign !== " ") near.fill(1, Math.max(0, at - 3), at + 4); });
  const node = el("pre", "code diff");
  let skipped = 0;
  const skip = () => { if (skipped) node.append(el("div", "l-hunk", `⋯ ${skipped} unchanged line${skipped > 1 ? "s" : ""}`)); skipped = 0; };
  lines.forEach(([sign, line], at) => {
    if (!near[at]) { skipped++; return; }
    skip();
    const row = el("div", sign === "+" ? "l-added" : sign === "-" ? "l-removed" : "", el("span", "sign", sign), highlight(line, language));
    node.append(row);
  });
  skip();
  return node;
}
