// Syntax colours. Each language is one expression; a named group is the CSS class of its match.

const WORDS = {
  verilog:
    "module endmodule input output inout wire reg logic bit byte int integer real time genvar parameter localparam assign " +
    "always always_ff always_comb always_latch initial final begin end if else case casex casez endcase default for while " +
    "repeat forever do foreach generate endgenerate function endfunction task endtask return break continue posedge negedge " +
    "or and not signed unsigned typedef enum struct packed union interface endinterface modport package endpackage import " +
    "export class endclass property endproperty assert assume cover sequence endsequence unique priority automatic static " +
    "void string inside fork join join_any join_none wait disable program endprogram covergroup endgroup bind const",
  bash: "if then else elif fi for while until do done case esac in function select return exit local export readonly set unset " +
    "cd echo printf cat ls grep sed awk head tail mkdir rm mv cp test source trap wait kill sleep true false time " +
    "iverilog vvp verilator yosys python3 python make git",
  python: "and as assert async await break class continue def del elif else except finally for from global if import in is " +
    "lambda nonlocal not or pass raise return try while with yield None True False self",
};
const words = (language) => `\\b(?:${WORDS[language].split(" ").join("|")})\\b`;

const LANGUAGES = {
  verilog: new RegExp(
    "(?<comment>//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$))|(?<string>\"(?:\\\\.|[^\"\\\\\\n])*\"?)|(?<directive>`\\w+)|(?<builtin>\\$\\w+)" +
      "|(?<number>\\b\\d[\\d_]*'s?[bodhBODH][\\w?]+|'[01xzXZ]\\b|\\b\\d[\\d_.]*\\b)|(?<keyword>" + words("verilog") + ")", "g"),
  bash: new RegExp(
    "(?<comment>(?<![^\\s;])#[^\\n]*)|(?<string>'[^']*'?|\"(?:\\\\.|[^\"\\\\])*\"?)|(?<builtin>\\$\\{?\\w+\\}?|\\$[?#@*!$])" +
      "|(?<directive>(?<=\\s)--?[A-Za-z][\\w-]*)|(?<keyword>" + words("bash") + ")|(?<number>\\b\\d+\\b)", "g"),
  python: new RegExp(
    "(?<comment>#[^\\n]*)|(?<string>\"\"\"[\\s\\S]*?(?:\"\"\"|$)|'''[\\s\\S]*?(?:'''|$)|'(?:\\\\.|[^'\\\\\\n])*'?|\"(?:\\\\.|[^\"\\\\\\n])*\"?)" +
      "|(?<directive>@\\w+)|(?<keyword>" + words("python") + ")|(?<number>\\b\\d[\\w.]*\\b)", "g"),
  markdown: /(?<keyword>^#{1,6} .*$)|(?<string>`[^`\n]+`)|(?<builtin>\*\*[^*\n]+\*\*)/gm,
};
const MOST_COLOURED = 200_000; // characters; longer text stays plain for speed

function languageOf(path) {
  const ending = (path.match(/\.([A-Za-z0-9]+)$/) || ["", ""])[1].toLowerCase();
  const known = { v: "verilog", sv: "verilog", vh: "verilog", svh: "verilog", py: "python", sh: "bash", md: "markdown" };
  return known[ending] || "plain";
}

function highlight(value, language) {
  const rule = LANGUAGES[language];
  if (!rule || value.length > MOST_COLOURED) return text(value);
  const node = el("span");
  let from = 0;
  for (const match of value.matchAll(rule)) {
    if (match.index > from) node.append(text(value.slice(from, match.index)));
    const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
    node.append(text(match[0], "c-" + kind));
    from = match.index + match[0].length;
  }
  node.append(text(value.slice(from)));
  return node;
}

/** A bash command: here-documents in the language of the file that they write. */
function highlightCommand(command) {
  const node = el("span");
  let shell = [];
  const flush = () => {
    if (shell.length) node.append(highlight(shell.join("\n") + "\n", "bash"));
    shell = [];
  };
  const lines = command.split("\n");
  for (let at = 0; at < lines.length; at++) {
    shell.push(lines[at]);
    const opening = lines[at].match(/<<-?\s*(['"]?)([A-Za-z_]\w*)\1/);
    const end = opening ? lines.indexOf(opening[2], at + 1) : -1;
    if (end < 0) continue;
    const target = lines[at].match(/(?:>|\btee(?: -a)?)\s*['"]?([\w./-]+)/);
    const language = target ? languageOf(target[1]) : /\bpython3?\b/.test(lines[at]) ? "python" : "plain";
    flush();
    node.append(highlight(lines.slice(at + 1, end).join("\n") + "\n", language));
    shell.push(lines[end]);
    at = end;
  }
  if (shell.length) node.append(highlight(shell.join("\n"), "bash"));
  return node;
}

const LINES = [
  ["bad", /\b(?:error|fatal|fail(?:ed|ure|s)?|traceback|assert(?:ion)?error|segmentation fault|no such file)\b|%Error/i],
  ["doubtful", /\bwarning\b|%Warning|\btimed? ?out\b/i],
  ["good", /\b(?:pass(?:ed|es)?|success(?:ful)?|ok)\b/i],
];

/** What a shell printed: ANSI colours, diffs, and lines of compilers and tests by their text. */
function highlightOutput(value) {
  const isDiff = /^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@/m.test(value);
  const node = el("span");
  const lines = value.split("\n");
  lines.forEach((line, at) => {
    const row = ansi(line);
    const kind = isDiff && diffClass(line) ? diffClass(line) : (LINES.find(([, rule]) => rule.test(line)) || [""])[0];
    if (kind) row.classList.add("l-" + kind);
    node.append(row, at + 1 < lines.length ? "\n" : "");
  });
  return node;
}

function diffClass(line) {
  if (/^(?:diff |index |--- |\+\+\+ )/.test(line)) return "meta";
  if (line.startsWith("@@")) return "hunk";
  return line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";
}

function ansi(line) {
  if (!line.includes("\u001b[")) return text(line);
  const node = el("span");
  let colour = "";
  for (const part of line.split(/(\u001b\[[0-9;]*m)/)) {
    const codes = part.match(/^\u001b\[([0-9;]*)m$/);
    if (!codes) node.append(text(part, colour));
    else for (const code of codes[1].split(";").map(Number)) colour = code >= 30 && code <= 37 ? "a-" + (code - 30) : code >= 90 && code <= 97 ? "a-" + (code - 90) : code ? colour : "";
  }
  return node;
}
