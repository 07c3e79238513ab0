"""The persistent shell, and everything a command may do to it."""

from __future__ import annotations

import asyncio
import time

import pytest

from rtl_agent_gym.sandboxes import CommandResult, Sandbox
from rtl_agent_gym.sandboxes.warden.shell import read_report
from tests.sandboxes.providers import on_both_providers

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_both_providers(
        metafunc,
        test_ending_the_shell_starts_another,
        test_a_new_shell_starts_where_the_old_one_ended,
        test_nothing_of_the_protocol_is_in_an_observation,
        test_a_timeout_ends_the_command_and_spares_the_shell,
        test_the_next_command_works_after,
    )


@pytest.fixture
def sandbox(shared_sandbox: Sandbox) -> Sandbox:
    """Clean for each test."""
    return shared_sandbox


async def still_works(sandbox: Sandbox) -> None:
    result = await sandbox.run("echo alive $((6 * 7))")
    assert (result.output, result.exit_code) == ("alive 42\n", 0)


async def timed(sandbox: Sandbox, command: str, timeout: float = 0.5) -> CommandResult:
    """Run with a time-out, and see that it comes back soon after it; on a quiet machine that is within a second."""
    begun = time.monotonic()
    result = await sandbox.run(command, timeout=timeout)
    assert time.monotonic() - begun < timeout + 20.0, command
    return result


async def renew_shell(sandbox: Sandbox) -> None:
    """Let nothing that a command has set in the shell reach the next one."""
    assert (await sandbox.run("cd /code; kill -9 $$")).restarted


async def test_state_lasts_between_commands(sandbox: Sandbox) -> None:
    await sandbox.run(
        "cd /tmp && X=5 && export Y=6 && f() { echo f$X; } && alias ll='echo aliased' && echo data > file"
    )
    result = await sandbox.run("f; echo $Y; pwd; cat file; ll")
    assert result.output == "f5\n6\n/tmp\ndata\naliased\n"
    assert result.cwd == "/tmp"


async def test_background_jobs_last(sandbox: Sandbox) -> None:
    started = time.monotonic()
    await sandbox.run("(sleep 0.5; echo done > /tmp/flag) & sleep 300 & echo $! > /tmp/pid")
    assert time.monotonic() - started < 60
    result = await sandbox.run(
        "until [ -s /tmp/flag ]; do sleep 0.05; done; cat /tmp/flag; kill -0 $(cat /tmp/pid) && echo running",
        timeout=60,
    )
    assert result.output == "done\nrunning\n"


async def test_background_output_comes_with_a_later_observation(sandbox: Sandbox) -> None:
    await sandbox.run("(sleep 0.3; echo from behind) &")
    await asyncio.sleep(0.6)
    assert "from behind\n" in (await sandbox.run("echo now")).output


async def test_background_jobs_outlive_another_commands_timeout(sandbox: Sandbox) -> None:
    await sandbox.run("(while :; do sleep 0.2; done) & echo $! > /tmp/pid")
    assert (await timed(sandbox, "sleep 60")).timed_out
    assert (await sandbox.run("kill -0 $(cat /tmp/pid) && echo running")).output == "running\n"


async def test_a_background_process_outlives_its_parent_and_then_a_timeout(sandbox: Sandbox) -> None:
    start = "sleep 300 & echo $! > /tmp/pid; until [ -e /tmp/go ]; do sleep 0.05; done"
    await sandbox.run(f"rm -f /tmp/pid /tmp/go; sh -c '{start}' & until [ -s /tmp/pid ]; do sleep 0.05; done")
    assert (await timed(sandbox, "touch /tmp/go; wait; sleep 60")).timed_out
    assert (await sandbox.run("kill -0 $(cat /tmp/pid) && echo running")).output == "running\n"


async def test_a_process_beside_the_shell_outlives_a_commands_timeout(sandbox: Sandbox) -> None:
    await sandbox.run("true")
    process = await sandbox.spawn(["cat"])
    assert (await timed(sandbox, "sleep 60")).timed_out
    await process.write(b"still here")
    assert await process.output.readexactly(10) == b"still here"
    await process.kill()


async def test_stdout_and_stderr_keep_their_order(sandbox: Sandbox) -> None:
    result = await sandbox.run("for i in 1 2 3; do echo out$i; echo err$i >&2; done")
    assert result.output == "out1\nerr1\nout2\nerr2\nout3\nerr3\n"


async def test_exit_codes(sandbox: Sandbox) -> None:
    for command, code in (("true", 0), ("false", 1), ("(exit 7)", 7), ("kill -9 $BASHPID &wait $!", 137)):
        assert (await sandbox.run(command)).exit_code == code, command


async def test_commands_cannot_read_the_protocol(sandbox: Sandbox) -> None:
    for command in ("cat", "read x; echo got:$x", "python3 -c 'import sys; print(repr(sys.stdin.read()))'"):
        result = await timed(sandbox, command, 5.0)
        assert not result.timed_out, command
        assert "__status" not in result.output, command
        await still_works(sandbox)


async def test_ending_the_shell_starts_another(sandbox: Sandbox) -> None:
    for command, code, reason in (
        ("exit 3", 3, "it exited with status 3"),
        ("exec ls /", 0, "it exited with status 0"),
        ("exit -1", 255, "it exited with status 255"),
        ("kill -9 $$", 137, "signal 9 ended it"),
        ("set -e; cd /tmp; false; echo not reached", 1, "it exited with status 1"),
        ("set -u; echo ${missing:?is not set}", 1, None),
        ("exec /no/such/program", 127, None),
    ):
        result = await timed(sandbox, f"cd /tmp; echo before; {command}", 5.0)
        assert "before" in result.output, command
        assert "not reached" not in result.output, command
        assert (result.exit_code, result.restarted) == (code, reason), command
        await still_works(sandbox)
        assert (await sandbox.run("pwd")).output == "/tmp\n", command
        await renew_shell(sandbox)


async def test_a_new_shell_starts_where_the_old_one_ended(sandbox: Sandbox) -> None:
    await sandbox.run("mkdir -p /tmp/deep; ln -s deep /tmp/link")
    for command in (
        "exit 3",
        "exec false",
        "exec python3 -c 'import os; os.kill(os.getpid(), 9)'",
        "kill -9 $$",
        "set -e; false",
        "trap '' INT; while :; do :; done",
        "kill -STOP $$",
    ):
        await sandbox.run("cd /code")
        result = await timed(sandbox, f"cd /tmp/deep; umask 077; {command}")
        assert result.restarted, command
        assert result.cwd == "/tmp/deep", command
        assert (await sandbox.run("pwd; umask")).output == "/tmp/deep\n0022\n", command
    result = await sandbox.run("mkdir gone; cd gone; rmdir ../gone; exit 1")
    assert result.cwd == "/tmp/deep"  # of the last answer
    await sandbox.run("cd /tmp/link")
    assert (await sandbox.run("exit 1")).cwd == "/tmp/link"


async def test_the_shells_folder_and_umask_are_not_those_of_processes(sandbox: Sandbox) -> None:
    await sandbox.run("cd /tmp; umask 077")
    assert (await sandbox.exec(["sh", "-c", "pwd; umask"])).output == "/code\n0022\n"
    await sandbox.write_files({"made/file": "x"})
    assert (await sandbox.run("umask; stat -c %a /code/made/file")).output == "0077\n644\n"


async def test_nothing_of_the_protocol_is_in_an_observation(sandbox: Sandbox) -> None:
    for turns, outputs in (
        (["set -x", "echo a; (echo b)", "set +x", "true"], ["", "+++ echo a\na\n+++ echo b\nb\n", "+++ set +x\n", ""]),
        (["set -v", "echo a\necho b", "set +v"], ["", "a\nb\n", ""]),
        (["trap 'echo debug' DEBUG; true", "true"], ["debug\n", ""]),
        (["trap 'echo return' RETURN", "true", "f() { :; }; f"], ["", "", ""]),
        (["trap 'echo err' ERR; false", "false"], ["err\n", "err\n"]),
        (
            ["exec 2>/tmp/err; ls /none", "ls /none 2>&1"],
            ["", "ls: cannot access '/none': No such file or directory\n"],
        ),
        (["exec /no/such || echo still"], ["bash: /no/such: No such file or directory\nstill\n"]),
        (["echo 'unbalanced"], ["bash: eval: line 1: unexpected EOF while looking for matching `''\n"]),
    ):
        assert [(await sandbox.run(turn)).output for turn in turns] == outputs, turns
        await renew_shell(sandbox)


async def test_a_timeout_ends_the_command_and_spares_the_shell(sandbox: Sandbox) -> None:
    await sandbox.run("KEPT=yes")
    for command in (
        "sleep 60",
        "while true; do sleep 1; done",
        "while :; do :; done",
        "sleep 60 | cat | cat",
        "setsid sleep 60; true",
        "(trap '' INT TERM; while :; do sleep 1; done)",
        "python3 -c 'import signal,time; signal.signal(2, signal.SIG_IGN); time.sleep(60)'",
        "vvp /dev/fd/0 < <(sleep 60)",
    ):
        result = await timed(sandbox, f"echo begun; {command}")
        assert result.timed_out, command
        assert result.exit_code is None, command
        assert result.restarted is None, command
        assert "begun" in result.output, command
        result = await sandbox.run("ps -e -o stat=,comm= > /tmp/ps; echo $KEPT; cat /tmp/ps")
        kept, *rows = result.output.splitlines()
        alive = [name for state, name in (row.split() for row in rows) if "Z" not in state]
        assert kept == "yes", command
        assert sorted(alive) == ["bash", "ps", "python3"], command


async def test_a_timed_out_process_that_looks_like_a_zombie_does_not_survive(sandbox: Sandbox) -> None:
    """Its first thread has ended, and another one runs."""
    program = (
        "import ctypes, platform, threading, time\n"
        "def write():\n    while True: print(file=open('/tmp/alive', 'a')); time.sleep(0.05)\n"
        "threading.Thread(target=write).start(); time.sleep(0.2)\n"
        "ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[platform.machine()], 0)\n"
    )
    await sandbox.write_files({"zombie.py": program}, root="/tmp")
    assert (await sandbox.run("setsid python3 /tmp/zombie.py & sleep 30", timeout=2)).timed_out
    await sandbox.run("sleep 0.3; wc -c < /tmp/alive > /tmp/before; sleep 0.5")
    assert (await sandbox.run("wc -c < /tmp/alive | diff - /tmp/before")).exit_code == 0


async def test_timed_out_daemons_do_not_survive(sandbox: Sandbox) -> None:
    result = await timed(sandbox, "(setsid sleep 1234 &) ; setsid bash -c 'sleep 1235 & sleep 1236' & sleep 60")
    assert result.timed_out
    assert (await sandbox.run("pgrep -c sleep")).output == "0\n"


async def test_unfinished_syntax_comes_back_at_once(sandbox: Sandbox) -> None:
    for command, says in (
        ('echo "unbalanced', "unexpected EOF"),
        ("echo 'unbalanced", "unexpected EOF"),
        ("if true; then", "syntax error"),
        ("cat <<EOF\nabc", "abc"),
        ("(", "syntax error"),
        ("echo $(", "unexpected EOF"),
        ("}", "syntax error"),
    ):
        result = await timed(sandbox, command, 5.0)
        assert not result.timed_out, command
        assert says in result.output, command
        await still_works(sandbox)


async def test_the_next_command_works_after(sandbox: Sandbox) -> None:
    for command in (
        "printf() { :; }; builtin() { :; }; trap() { :; }; unset() { :; }; eval() { :; }; set() { :; }",
        "PROMPT_COMMAND='echo prompt; false'",
        "trap 'echo debug' DEBUG",
        "trap 'echo err' ERR; trap 'echo bye' EXIT",
        "PS1='$ '; PS4='trace '",
        "set -x",
        "set -v; set +v",
        "exec 1>/dev/null",
        "exec 2>&-",
        "exec 0<&-",
        "exec 1>&- 2>&-",
        "enable -n printf builtin",
        "unset PWD; set -u",
        ". /dev/null; source() { :; }; command() { :; }; set -o posix",
        "alias printf=false builtin=false eval=false",
        "IFS=/; set -f; shopt -s extglob nocasematch",
        "unset PATH HOME PWD",
        "LANG=xx LC_ALL=yy",
        "ulimit -n 10",
        "set -o posix",
        "history -s x; set -o history",
        "cd /; rm -rf /code/* 2>/dev/null",
        "cd /tmp && mkdir gone && cd gone && rmdir /tmp/gone",
        "rm -rf /code /tmp /home 2>/dev/null",
        "stty -echo; clear; tput reset; reset",
        "kill -9 -1",
        "kill -TERM 1; kill -KILL 1; kill -INT 1",
        "sudo ls; su -c ls",
        "chmod 000 /code; chmod 755 /code",
        "stop() { kill -STOP $$; }; true",
        "cat /dev/tty",
        "exec 201>&-",
        "readonly POSIXLY_CORRECT=1 __status",
    ):
        await timed(sandbox, command, 3.0)
        result = await timed(sandbox, "/bin/echo still here", 3.0)
        assert "still here" in result.output, command
        assert "__status" not in result.output, command
        await renew_shell(sandbox)


async def test_programs_for_a_terminal_come_back(sandbox: Sandbox) -> None:
    for program in ("vim -n", "less /etc/passwd", "vi", "nano", "top -b -n 1", "more /etc/passwd"):
        await timed(sandbox, program, 2.0)
        await still_works(sandbox)


async def test_endless_output_is_cut_and_memory_stays_bounded(sandbox: Sandbox) -> None:
    result = await timed(sandbox, "yes", 1.0)
    assert result.timed_out
    assert result.truncated
    assert len(result.output) < 17_000
    assert result.output_chars > 1_000_000
    await still_works(sandbox)


async def test_a_hundred_megabytes_keep_head_and_tail(sandbox: Sandbox) -> None:
    command = "echo first; head -c 100000000 /dev/zero | tr '\\0' a; echo; echo last"
    result = await sandbox.run(command, max_output=1000)
    assert result.truncated
    assert result.output.startswith("first\naaa")
    assert result.output.endswith("aaa\nlast\n")
    assert "[output cut from 100000012 to 1000 characters: the middle is missing]" in result.output
    assert result.output_chars == 100_000_012


async def test_output_is_never_cut_inside_a_character(sandbox: Sandbox) -> None:
    result = await sandbox.run("python3 -c 'print(\"漢字é🙂\" * 200000)'", max_output=501)
    assert "\ufffd" not in result.output
    assert "from 800001 to" in result.output


async def test_a_command_with_every_kind_of_character(sandbox: Sandbox) -> None:
    text = "back\\slash 'single' \"double\" $dollar `tick` tab\t é漢🙂 \\n !bang #hash %d"
    result = await sandbox.run(f"cat <<'EOF'\n{text}\nEOF")
    assert result.output == text + "\n"
    assert (await sandbox.run("printf 'a\r\nb'")).output == "a\nb"
    assert (await sandbox.run("echo a\0b")).output == "ab\n"
    assert (await sandbox.run("echo '\ud800'")).exit_code == 0
    result = await sandbox.run(r"printf 'a\0b\xff\xfe\x1b[31mred\x1b[0m\x1b]0;title\x07 end\r\n'")
    assert result.output == "a\ufffdb\ufffd\ufffdred end\n"


async def test_a_command_longer_than_pipes_and_arguments(sandbox: Sandbox) -> None:
    text = "x" * 79 + "\n"
    result = await sandbox.run(f"wc -c <<'EOF'\n{text * 30_000}EOF", timeout=30)
    assert result.output.strip() == str(80 * 30_000)


async def test_output_without_a_last_newline(sandbox: Sandbox) -> None:
    assert (await sandbox.run("printf abc")).output == "abc"
    assert (await sandbox.run("")).output == ""
    assert (await sandbox.run("# only a comment")).exit_code == 0


async def test_a_command_cannot_fake_the_end_marker(sandbox: Sandbox) -> None:
    forged = "0" * 32 + " 0 /tmp"
    for number in (*range(10, 18), 201, 202):  # bash keeps its socket in one of them meanwhile
        result = await sandbox.run(f"printf '{forged}\\0' 2>/dev/null >&{number}; echo shown; (exit 9)")
        assert result.output.endswith("shown\n")
        assert result.exit_code == 9


async def test_commands_inherit_nothing_of_the_wardens_and_die_before_it(sandbox: Sandbox) -> None:
    result = await sandbox.run("python3 -c 'import os; print(*sorted(os.listdir(\"/proc/self/fd\")))'")
    assert result.output == "0 1 2 3\n"  # 3 is the folder that is listed
    opened = await sandbox.run("for fd in /proc/$$/fd/*; do : 2>/dev/null >$fd && readlink $fd; done | grep -c socket")
    assert opened.output == "0\n"
    assert (await sandbox.run("ps -o args= -p 1")).output == "warden\n"
    # When memory runs out, only a warden that lives can report it: the kernel kills commands before it.
    badness = "echo $(($(cat /proc/self/oom_score_adj) - $(cat /proc/1/oom_score_adj)))"
    for command, output in (("grep SigIgn /proc/self/status", f"SigIgn:\t{0:016}\n"), (badness, "500\n")):
        assert (await sandbox.run(command)).output == (await sandbox.exec(["sh", "-c", command])).output == output


@pytest.mark.parametrize(
    "report", [b"", b"\0" * 1_000_000, b"W x /\0" * 50_000, b"W 99999 /\0W -1 /\0", b"W 1 " + b"/" * 99_999]
)
async def test_what_is_no_report_is_none(report: bytes) -> None:
    word = b"f" * 32
    begun = time.monotonic()
    assert read_report(report.replace(b"W", word), word) is None
    assert time.monotonic() - begun < 10  # milliseconds; quadratic reading would take minutes
    assert read_report(word + b" 7 /tmp\0" + report.replace(b"W", word), word) == (7, b"/tmp")


async def test_a_fork_bomb_is_over_with_its_time(sandbox: Sandbox) -> None:
    result = await timed(sandbox, "f() { f | f & }; f; sleep 60", 1.0)
    assert result.timed_out
    await still_works(sandbox)


async def test_a_full_disk_and_a_file_too_large(sandbox: Sandbox) -> None:
    result = await sandbox.run("head -c 600M /dev/zero > /code/big; ls -l /code/big | awk '{print $5}'", timeout=30)
    assert result.exit_code == 0
    await sandbox.run("for i in 1 2 3; do head -c 250M /dev/zero > /code/f$i; done", timeout=30)
    assert "No space left" in (await sandbox.run("echo x > /code/y || true; echo x > /code/z")).output
    await still_works(sandbox)
    await sandbox.run("rm -f /code/*")
    assert (await sandbox.run("echo x > /code/y; cat /code/y")).output == "x\n"


async def test_memory_exhaustion_kills_the_hog(sandbox: Sandbox) -> None:
    result = await sandbox.run("python3 -c 'x = bytearray(3 << 30); print(len(x))'", timeout=30)
    assert result.exit_code in (1, 137)
    await still_works(sandbox)


async def test_an_error_of_a_caller_that_listens_is_raised_as_it_is(sandbox: Sandbox) -> None:
    def listen(data: bytes) -> None:
        raise BrokenPipeError(data)

    with pytest.raises(BrokenPipeError, match="one") as raised:
        await sandbox.run("echo one; sleep 0.1; echo two", on_output=listen)
    assert raised.value.__cause__ is None
    await still_works(sandbox)


async def test_output_is_passed_on_while_it_comes(sandbox: Sandbox) -> None:
    heard: list[tuple[float, bytes]] = []
    begun = time.monotonic()
    command = "echo one; sleep 0.5; echo two"
    result = await sandbox.run(command, on_output=lambda data: heard.append((time.monotonic() - begun, data)))
    assert b"".join(data for _, data in heard) == b"one\ntwo\n"
    assert heard[0][0] < 0.4
    assert result.output == "one\ntwo\n"
