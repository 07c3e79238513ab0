// One episode: its score, its turns as a conversation, and the work folder after each.

const LONG = { task: 14, command: 40, output: 40, thinking: 400, raw: 400 }; // lines shown before "show all"

class EpisodeView {
  constructor(summary, data) {
    this.summary = summary;
    this.data = data;
    this.at = 0; // the turn shown; 0 is before the first
    this.heat = "off";
    this.states = this.fileStates();
    this.path = null;
    this.mode = "changes";
  }

  /** The recorded files before the first turn and after each. */
  fileStates() {
    const states = [new Map(Object.entries(this.data.files))];
    for (const turn of this.data.turns) {
      const after = new Map(states[states.length - 1]);
      for (const [path, content] of Object.entries(turn.files)) content === null ? after.delete(path) : after.set(path, content);
      states.push(after);
    }
    return states;
  }

  show() {
    const main = document.getElementById("main");
    this.talk = el("section", "talk");
    this.folder = el("section", "folder");
    main.replaceChildren(this.header(), el("div", "columns", this.talk, this.folder));
    this.paintTalk();
    this.goTo(this.data.turns.length, { scroll: false });
  }

  // ---- header and scrubber

  header() {
    const { summary, data } = this;
    const badge = (label, value, className) => el("span", "badge " + (className || ""), el("b", "", label), text(String(value)));
    const badges = el("div", "badges",
      el("span", "badge verdict o-" + summary.outcome.replace(" ", "-"), summary.outcome),
      summary.outcome === "failed" && summary.cause ? badge("cause", summary.cause) : null,
      summary.reward === null || summary.reward === undefined ? null : badge("reward", number(summary.reward, 2)),
      badge("turns", summary.turns),
      summary.tokens === null ? null : badge("tokens", thousands(summary.tokens)),
      summary.streams ? badge("streams", summary.streams) : null,
      summary.kl === null ? null : badge("teacher KL", number(summary.kl, 3) + " nats"),
      badge("time", seconds(summary.seconds)),
      summary.category === null ? null : badge("cid", String(summary.category).padStart(3, "0")),
      summary.difficulty === null ? null : badge("difficulty", summary.difficulty),
      badge("renderer", summary.renderer),
      summary.seed === null ? null : badge("seed", summary.seed),
      badge("ended", summary.stop ?? "not recorded"));
    const title = el("h1", "", text(short(summary.problem)));
    title.title = plain(summary.problem);
    const hasHeat = data.turns.some((turn) => turn.logprobs);
    return el("header", "top", el("div", "titles", title, hasHeat ? this.heatSwitch() : null), badges,
      data.turns.length ? this.scrubber() : null);
  }

  heatSwitch() {
    const box = el("div", "switch", el("span", "label", "heat map"));
    const kinds = [["off", "off"]];
    if (this.data.turns.some((turn) => turn.kl)) kinds.push(["kl", "teacher KL"]);
    kinds.push(["surprise", "surprise"]);
    for (const [kind, label] of kinds) {
      const node = button(kind === this.heat ? "on" : "", label, () => {
        this.heat = kind;
        for (const other of box.querySelectorAll("button")) other.classList.toggle("on", other === node);
        this.paintTalk();
        this.goTo(this.at, { scroll: true });
      });
      node.id = "heat-" + kind;
      box.append(node);
    }
    return box;
  }

  scrubber() {
    const cells = el("div", "cells");
    this.cells = this.data.turns.map((turn, offset) => {
      const node = button("cell " + turnState(turn), String(turn.turn), () => this.goTo(offset + 1, { scroll: true }),
        `turn ${turn.turn}: ${stateWord(turn)}${Object.keys(turn.files).length ? ", changed files" : ""}`);
      if (Object.keys(turn.files).length) node.append(el("span", "wrote"));
      return node;
    });
    cells.append(...this.cells);
    this.range = el("input");
    Object.assign(this.range, { type: "range", id: "scrubber", min: "0", max: String(this.data.turns.length), step: "1" });
    this.range.setAttribute("aria-label", "turn");
    this.range.addEventListener("input", () => this.goTo(Number(this.range.value), { scroll: true }));
    this.where = el("span", "where");
    return el("div", "scrubber", el("div", "track", cells, this.range), this.where);
  }

  /** Show the state after turn `at`. */
  goTo(at, { scroll }) {
    this.at = Math.max(0, Math.min(this.data.turns.length, at));
    if (this.range) {
      this.range.value = String(this.at);
      this.where.textContent = this.at ? `after turn ${this.at} of ${this.data.turns.length}` : "before the first turn";
      this.cells.forEach((cell, offset) => cell.classList.toggle("now", offset + 1 === this.at));
    }
    for (const card of this.talk.querySelectorAll(".turn")) card.classList.toggle("now", Number(card.dataset.turn) === this.at);
    const card = this.talk.querySelector(`[data-turn="${this.at}"]`);
    if (scroll && card) card.scrollIntoView({ block: "start" });
    const changed = this.changedAt(this.at);
    if (!this.states[this.at].has(this.path) || changed.length) this.path = changed[0] || [...this.states[this.at].keys()].sort(rtlFirst)[0] || null;
    this.paintFolder();
    history.replaceState(null, "", "#" + encodeURIComponent(this.summary.name) + "/" + this.at);
  }

  // ---- the conversation

  paintTalk() {
    const { data } = this;
    this.talk.replaceChildren(this.scoreCard(), this.taskCard(), ...data.turns.map((turn, offset) => this.turnCard(turn, offset + 1)));
    if (!data.end || this.summary.outcome === "cut off") this.talk.append(el("div", "note",
      `The transcript ends here: ${data.end ? "" : "the episode is still running, or "}the run was cut off.`));
    else if (data.end.error) this.talk.append(el("div", "note", el("b", "", "The machine failed: "), text(data.end.error)));
  }

  taskCard() {
    const card = el("article", "card task", el("h2", "", "Task"), folded(this.data.user, LONG.task, (part) => el("div", "prose", text(part))));
    card.dataset.turn = "0";
    if (this.data.system) card.append(details("system message", () => el("div", "prose", text(this.data.system))));
    card.append(details("options and digests", () => el("pre", "code", text(JSON.stringify({ ...this.data.options, ...this.data.digests, version: this.data.version }, null, 1)))));
    return card;
  }

  turnCard(turn, offset) {
    const kl = turn.kl ? mean(turn.kl) : null;
    const facts = [turn.stream, turn.count === null ? "" : `${thousands(turn.count)} tokens`, kl === null ? "" : `KL ${number(kl, 3)}`, seconds(turn.seconds), turn.cutOff ? "cut off by the token limit" : ""];
    const head = el("div", "turn-head", button("turn-name", `turn ${turn.turn}`, () => this.goTo(offset, { scroll: false })),
      el("span", "state " + turnState(turn), stateWord(turn)), el("span", "facts", text(facts.filter(Boolean).join(" · "))));
    const card = el("article", "card turn", head);
    card.dataset.turn = offset;
    if (this.heat !== "off" && turn.logprobs) card.append(heatMap(turn, this.heat));
    else this.completion(turn, card);
    turn.commands.forEach((command, number) => card.append(this.shell(turn, command, number)));
    if (turn.kind === "malformed" && turn.outputs.length) card.append(el("div", "correction", folded(turn.outputs.join("\n"), LONG.output, (part) => text(part))));
    return card;
  }

  completion(turn, card) {
    if (turn.thinking) {
      const words = turn.thinking.split(/\s+/).length;
      card.append(details(`thinking · ${thousands(words)} words`, () => folded(turn.thinking, LONG.thinking, (part) => el("div", "prose", text(part))), "thinking"));
    }
    if (turn.text) card.append(folded(turn.text, LONG.raw, (part) => el("div", "prose", text(part))));
    if (turn.kind === "malformed") card.append(folded(turn.raw, LONG.command, (part) => el("pre", "code raw", text(part))));
    else card.append(details("as the model wrote it", () => folded(turn.raw, LONG.raw, (part) => el("pre", "code raw", text(part)))));
  }

  shell(turn, command, number) {
    const output = turn.outputs.length === turn.commands.length ? turn.outputs[number] : number + 1 === turn.commands.length ? turn.outputs.join("\n") : "";
    const ok = command.exit_code === 0 && !command.timed_out;
    const unknown = isUnknown(command);
    const status = command.timed_out ? "timed out" : unknown ? "status unknown" : command.exit_code === null ? "no exit code" : `exit ${command.exit_code}`;
    const marks = [status, unknown ? "" : seconds(command.seconds), command.truncated_output ? "output cut" : "", command.restarted ? "shell restarted: " + command.restarted : ""];
    const block = el("div", "shell",
      this.heat !== "off" && turn.logprobs ? null : folded(command.command, LONG.command, (part) => el("pre", "code command", highlightCommand(part))),
      el("div", "status " + (ok ? "good" : unknown ? "unknown" : "bad"), text(marks.filter(Boolean).join(" · "))));
    if (command.submission) block.lastChild.prepend(submissionBadge(command.submission), " ");
    if (output.trim()) block.append(folded(output.replace(/\n+$/, ""), LONG.output, (part) => el("pre", "code output", highlightOutput(part))));
    return block;
  }

  scoreCard() {
    const score = this.data.score;
    if (!score) return el("article", "card score", el("h2", "", "Score"), el("p", "", "None: the episode was not graded."));
    const share = score.tests_total ? score.tests_passed / score.tests_total : Number(score.passed);
    const stages = el("div", "stages", ...["format", "syntax", "interface", "compile"].map((name) => stage(name, score[name], `${Math.round(score[name] * 100)} %`)),
      stage("tests", share, `${score.tests_passed}/${score.tests_total}`));
    for (const name of ["quality", "coverage"])
      if (name in (score.measures || {})) stages.append(stage(name, score[name], `${Math.round(score[name] * 100)} %`));
    const card = el("article", "card score", el("h2", "", "Score"), stages, el("p", "reason", text(score.reason || "")));
    for (const violation of score.violations || []) card.append(el("p", "violation", text("violation: " + violation)));
    if ((score.tests || []).length) card.append(details(`${score.tests.length} tests`, () => el("ul", "tests", ...score.tests.map((test) =>
      el("li", test.outcome === "passed" ? "good" : test.outcome === "skipped" ? "" : "bad", el("span", "mark", text(test.outcome)), text(test.name))))));
    card.append(el("p", "facts", `graded in ${seconds(score.seconds)}${score.cached ? ", from the cache" : ""}`));
    return card;
  }

  // ---- the work folder

  changedAt(at) {
    if (!at) return [];
    const before = this.states[at - 1], after = this.states[at];
    return [...new Set([...before.keys(), ...after.keys()])].filter((path) => before.get(path) !== after.get(path)).sort(rtlFirst);
  }

  paintFolder() {
    const state = this.states[this.at], before = this.states[Math.max(0, this.at - 1)], first = this.states[0];
    const changed = new Set(this.changedAt(this.at));
    const paths = [...new Set([...state.keys(), ...changed])].sort();
    const files = el("div", "files", ...paths.map((path) => {
      const mark = !state.has(path) ? "D" : !changed.has(path) ? "" : before.has(path) ? "M" : "A";
      const node = button(`file m-${mark || "none"}${path === this.path ? " now" : ""}`, "", () => { this.path = path; this.paintFolder(); }, path);
      node.append(el("span", "mark", mark || "·"), text(path));
      return node;
    }));
    const modes = el("div", "switch", ...[["file", "file"], ["changes", "this turn"], ["start", "since start"]].map(([mode, label]) =>
      button(mode === this.mode ? "on" : "", label, () => { this.mode = mode; this.paintFolder(); })));
    const title = el("div", "folder-head", el("h2", "", "Work folder"), modes);
    const place = el("div", "contents");
    this.folder.replaceChildren(title, files, place);
    if (!paths.length) {
      place.append(el("p", "note", "No files were recorded in this transcript."));
      return;
    }
    if (this.path === null) return;
    const language = languageOf(this.path), now = state.get(this.path) ?? "";
    const base = (this.mode === "start" ? first : before).get(this.path) ?? "";
    if (this.mode !== "file" && base !== now) place.append(diffBlock(base, now, language));
    else if (!state.has(this.path)) place.append(el("p", "note", "This turn removed the file."));
    else place.append(numbered(now, language));
  }
}

// ---- parts

const mean = (values) => { const real = values.filter((value) => value !== null); return real.length ? real.reduce((a, b) => a + b, 0) / real.length : null; };
const rtlFirst = (a, b) => Number(!a.startsWith("rtl/")) - Number(!b.startsWith("rtl/")) || (a < b ? -1 : 1);

/** Whether an agent's own program ran a command. */
const isUnknown = (command) => command.exit_code === null && !command.timed_out && !command.restarted;

function turnState(turn) {
  if (turn.kind !== "command") return turn.kind;
  if (turn.commands.some((command) => command.timed_out)) return "timeout";
  return turn.commands.every((command) => command.exit_code === 0 || isUnknown(command)) ? "good" : "bad";
}

function stateWord(turn) {
  return { final: "done", malformed: "malformed", timeout: "timed out", good: "ran", bad: "exit not 0" }[turnState(turn)];
}

/** A fold whose content is built when first opened. */
function details(label, build, className) {
  const node = el("details", className || "", el("summary", "", label));
  node.addEventListener("toggle", () => { if (node.open && node.childNodes.length === 1) node.append(build()); });
  return node;
}

function stage(name, share, label) {
  const fill = el("div", "fill " + (share >= 1 ? "good" : share > 0 ? "doubtful" : "bad"));
  fill.style.width = Math.max(2, Math.min(100, share * 100)) + "%";
  return el("div", "stage", el("div", "stage-name", el("b", "", name), el("span", "", label)), el("div", "bar", fill));
}

/** A submission: its number, the passed tests, and its reward. */
function submissionBadge(submission) {
  const { tests_passed: passed, tests_total: total, reason } = submission.score;
  const node = el("span", "badge submission", el("b", "", `submission ${submission.number}`), text(`${passed}/${total} tests · ${submission.reward < 0 ? "" : "+"}${number(submission.reward, 3)}`));
  node.title = plain(`${submission.left} left. ${reason || ""}`);
  return node;
}

function numbered(content, language) {
  const count = content.replace(/\n$/, "").split("\n").length;
  const gutter = el("pre", "gutter", Array.from({ length: count }, (_, at) => at + 1).join("\n"));
  return el("div", "numbered", gutter, el("pre", "code", highlight(content, language)));
}

/** The sampled tokens, coloured by the teacher KL, or by how unlikely the student found each. */
function heatMap(turn, kind) {
  const values = kind === "kl" ? turn.kl : turn.logprobs.map((value) => (value === null ? null : -value));
  const node = el("pre", "code heat");
  if (!values) return el("pre", "code heat", text(turn.raw));
  turn.tokens.forEach((token, at) => {
    const span = text(token.replace(/\n/g, "↵\n"), "tok");
    span.dataset.at = at;
    const value = values[at];
    if (value !== null && value !== undefined) span.style.backgroundColor = heatColour(kind, value);
    else span.classList.add("unknown");
    node.append(span);
  });
  const shown = el("div", "token-facts", kind === "kl" ? "red: the token is more likely under the student than under the teacher; blue: less likely. Point at a token." : "darker: less likely. Point at a token.");
  node.addEventListener("mouseover", (event) => {
    const span = event.target.closest(".tok");
    if (!span) return;
    const at = Number(span.dataset.at);
    const teacher = turn.kl && turn.kl[at] !== null && turn.logprobs[at] !== null ? turn.logprobs[at] - turn.kl[at] : null;
    shown.replaceChildren(el("b", "", "token "), text(JSON.stringify(turn.tokens[at])), ` · log p student ${number(turn.logprobs[at])}`,
      turn.kl ? ` · teacher ${number(teacher)} · KL ${number(turn.kl[at])} nats` : "");
  });
  return el("div", "heat-box", node, shown);
}

function heatColour(kind, value) {
  const strength = Math.min(0.85, Math.abs(value) / (kind === "kl" ? 2.5 : 5));
  return kind === "kl" ? (value >= 0 ? `rgba(226, 72, 61, ${strength})` : `rgba(56, 132, 255, ${strength})`) : `rgba(222, 146, 21, ${strength})`;
}
