"""Attempts to exhaust what the machine has, and to end or silence the warden."""

from __future__ import annotations

from tests.episodes.test_hostile_agents import SLOW_ATTACKS

from .attempts import Attempt, python, syscall

PIDS, MEMORY, FILE, FILES, INODES, SHARED = 512, 2048, 256, 1024, 32_768, 16
"""The limits of an agent's container: processes, MiB, MiB, open files of a process, files of a folder, MiB."""

EXHAUSTING = (
    Attempt(
        "processes",
        "exhaust",
        python("""
            import os, signal, time
            made = []
            try:
                while len(made) < 700:
                    pid = os.fork()
                    if pid == 0:
                        time.sleep(30)
                        os._exit(0)
                    made.append(pid)
            except OSError as error:
                print(error)
            print('made', len(made))
            for pid in made:
                os.kill(pid, signal.SIGKILL)
        """),
        (),
        least=100,
        most=PIDS,
    ),
    Attempt(
        "threads",
        "exhaust",
        python("""
            import os, threading, time
            threading.stack_size(65536)
            count = 0
            try:
                while count < 700:
                    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
                    count += 1
            except (OSError, RuntimeError) as error:
                print(error)
            print('made', count, flush=True)
            os._exit(0)
        """),
        (),
        least=100,
        most=PIDS,
    ),
    Attempt(
        "memory",
        "exhaust",
        python("""
            import os
            if os.fork() == 0:
                kept = []
                while len(kept) < 36:
                    kept.append(bytearray(64 << 20))
                    print('made', 64 * len(kept), flush=True)
                os._exit(0)
            os.wait()
        """),
        (),
        least=1024,
        most=MEMORY,
    ),
    Attempt(
        "a large file",
        "exhaust",
        python("""
            size = 0
            try:
                with open('/tmp/large', 'wb', buffering=0) as file:
                    while size < 300:
                        size += file.write(bytes(1 << 20)) >> 20
            except OSError as error:
                print(error)
            print('made', size)
            __import__('os').unlink('/tmp/large')
        """),
        (),
        least=100,
        most=FILE,
    ),
    Attempt(
        "inodes",
        "exhaust",
        python("""
            import os, shutil
            os.mkdir('/tmp/many')
            count = 0
            try:
                while count < 34_000:
                    os.close(os.open(f'/tmp/many/{count}', os.O_CREAT | os.O_WRONLY))
                    count += 1
            except OSError as error:
                print(error)
            print('made', count)
            shutil.rmtree('/tmp/many')
        """),
        (),
        least=10_000,
        most=INODES,
    ),
    Attempt(
        "open files of one process",
        "exhaust",
        python("""
            import os
            count = 0
            try:
                while count < 9000:
                    os.open('/dev/null', os.O_RDONLY)
                    count += 1
            except OSError as error:
                print(error)
            print('made', count)
        """),
        ("--ulimit", "nofile=10000"),
        least=100,
        most=FILES,
    ),
    Attempt(
        "open files of many processes",
        "exhaust",
        python("""
            import os, signal, time
            read, write = os.pipe()
            os.set_blocking(read, False)
            pids = []
            try:
                for _ in range(150):
                    pid = os.fork()
                    if pid == 0:
                        count = 0
                        try:
                            while count < 2000:
                                os.open('/dev/null', os.O_RDONLY)
                                count += 1
                        except OSError:
                            pass
                        os.write(write, b'%d ' % count)
                        time.sleep(60)
                    pids.append(pid)
            except OSError as error:
                print(error)
            seen, until = b'', time.monotonic() + 60
            while seen.count(b' ') < len(pids) and time.monotonic() < until:
                time.sleep(0.1)
                try:
                    seen += os.read(read, 1 << 16)
                except BlockingIOError:
                    pass
            print('made', sum(map(int, seen.split())))
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        """),
        ("--ulimit", "nofile=10000"),
        least=50_000,
        most=150 * FILES,
        seconds=150.0,
    ),
    Attempt(
        "System V shared memory",
        "exhaust",
        python("""
            import ctypes
            libc = ctypes.CDLL(None)
            libc.shmat.restype = ctypes.c_void_p
            made = []
            while len(made) < 40 and (one := libc.shmget(0, 1 << 20, 0o1600)) >= 0:
                ctypes.memset(libc.shmat(one, None, 0), 1, 1 << 20)
                made.append(one)
            print('made', len(made))
            for one in made:
                libc.shmctl(one, 0, None)
        """),
        (),
        least=8,
        most=SHARED,
    ),
    Attempt(
        "what the kernel counts by user",
        "exhaust",
        python("""
            import ctypes, select
            libc = ctypes.CDLL(None)
            watches = 0
            while libc.inotify_init() >= 0:
                watches += 1
            timer = ctypes.c_void_p()
            timers = 0
            while timers < 20_000 and libc.timer_create(1, None, ctypes.byref(timer)) == 0:
                timers += 1
                if timers % 1000 == 0:
                    print(watches, 'watches', flush=True)
                    print('made', timers, flush=True)
        """),
        None,
        least=1000,
    ),
    Attempt("processors", "exhaust", "for i in $(seq 200); do (while :; do :; done) & done; sleep 4; kill $(jobs -p)"),
    Attempt("endless output", "exhaust", "timeout 4 yes; timeout 4 cat /dev/zero; (timeout 6 yes >&2 &)"),
    Attempt("fork bomb", "exhaust", SLOW_ATTACKS["fork bomb"]),
    Attempt("all folders full", "exhaust", SLOW_ATTACKS["memory folders full"]),
)
WARDEN = (
    Attempt("every signal", "warden", "for s in $(seq 64); do kill -$s 1; kill -$s -1; done 2>/dev/null; echo tried"),
    Attempt(
        "its limits", "warden", "prlimit --pid 1 --nofile=3:3 && echo won; prlimit --pid 1 --cpu=9 && echo won", ()
    ),
    Attempt("its priority", "warden", "chrt -i -p 0 1 && echo won; renice 19 1 && echo won", ()),
    Attempt("its place when memory is short", "warden", "echo 999 > /proc/1/oom_score_adj && echo won", ()),
    Attempt(
        "its open files",
        "warden",
        "ls /proc/1/fd >/dev/null && echo won; cat /proc/1/environ >/dev/null && echo won",
        (),
    ),
    Attempt("to trace it", "warden", syscall(101, "0x4206", "1", "0", "0"), ("--user", "0", "--cap-add", "SYS_PTRACE")),
    Attempt(
        "its answers",
        "warden",
        "for fd in /proc/$$/fd/*; do timeout 0.3 cat /dev/zero > $fd; printf 'x 0 /code\\0' > $fd; done 2>/dev/null; "
        "exec 0<&- 1>&- 2>&-",
    ),
    Attempt("every bash killed", "warden", SLOW_ATTACKS["every bash killed"]),
)
