/* The wall around the files of a simulation: decides what a design's system tasks may open, at the moment of opening.

   The guard preloads it into `vvp`. Every system task that opens a file calls `fopen` from the simulator's program or
   one of its modules; tests compare this with the symbols that they import. The wall looks at the file that such a call
   really reaches:

   - what would be written goes nowhere (/dev/null), so a debug log is harmless;
   - what is read must be a regular file of the problem's folders;
   - a file of the checker's is refused, as a violation.

   The supervisor receives a report of each denial before the task continues.

   Python, which cocotb loads into the same process, opens its own files. Its libraries are recognised by their folders.
   RTL_GYM_WALL holds the policy: the checker's folders, the folders that may be read, and the endings of names that a
   checker would load; ':' between entries, '|' between the lists. Without a supervisor the simulation ends. There is no
   time limit on the supervisor's reply: the machine may be frozen or busy. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { SYS_TF_CALL = 85, NAME = 2, FILE_NAME = 5, LINE = 6, MOST = 20, REFUSED = 125, LONG = 4 * PATH_MAX };

static FILE *(*real_fopen)(const char *, const char *);
static int (*real_unlink)(const char *);
static int (*real_rename)(const char *, const char *);
static char *secret, *readable, *loaded;
static int line = -1, reported_count[2], design_runs;
static unsigned long reported[2][MOST];

static void stop(const char *why)
{
    dprintf(2, "rtl-agent-gym: the simulation ends: %s\n", why);
    _exit(REFUSED);
}

__attribute__((constructor)) static void initialize(void)
{
    const char *policy = getenv("RTL_GYM_WALL");
    char *rest = policy ? strdup(policy) : NULL;
    real_fopen = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
    real_unlink = (int (*)(const char *))dlsym(RTLD_NEXT, "unlink");
    real_rename = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    secret = strsep(&rest, "|"), readable = strsep(&rest, "|"), loaded = strsep(&rest, "|");
    unsetenv("RTL_GYM_WALL");
    unsetenv("LD_PRELOAD");
}

/* Whether code at this address belongs to the simulator, not to a library of Python or of the harness. */
static int from_simulator(void *address)
{
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname || strstr(info.dli_fname, "/libstdc++"))
        return 1;
    return strncmp(info.dli_fname, "/venv/", 6) && strncmp(info.dli_fname, "/src/", 5) &&
           strncmp(info.dli_fname, "/usr/lib/", 9) && strncmp(info.dli_fname, "/lib/", 5);
}

static int from_module(void *address)
{
    Dl_info info;
    return dladdr(address, &info) && info.dli_fname && strstr(info.dli_fname, ".vpi");
}

/* Whether a path is one of the folders or lies below one. */
static int below(const char *path, const char *folders)
{
    while (*folders) {
        size_t size = strcspn(folders, ":");
        if (size && !strncmp(path, folders, size) && (path[size] == '/' || !path[size]))
            return 1;
        folders += size + (folders[size] == ':');
    }
    return 0;
}

static int ends(const char *path, const char *endings)
{
    size_t length = strlen(path);
    while (*endings) {
        size_t size = strcspn(endings, ":");
        if (size && length >= size && !strncmp(path + length - size, endings, size))
            return 1;
        endings += size + (endings[size] == ':');
    }
    return 0;
}

/* The absolute path without '.', '..' and doubled slashes; links are not resolved. Returns 0 if it is too long. */
static int make_absolute(const char *path, char *out)
{
    char absolute[2 * PATH_MAX], *rest = absolute, *part;
    size_t at = 0;
    absolute[0] = 0;
    if (*path != '/' && !getcwd(absolute, PATH_MAX))
        return 0;
    if (strlen(path) >= PATH_MAX)
        return 0;
    strcat(strcat(absolute, "/"), path);
    out[0] = 0;
    while ((part = strsep(&rest, "/"))) {
        if (!strcmp(part, "..")) {
            while (at && out[--at] != '/')
                ;
            out[at] = 0;
        } else if (*part && strcmp(part, ".")) {
            at += sprintf(out + at, "/%s", part);
        }
    }
    if (!at)
        strcpy(out, "/");
    return 1;
}

static void await_reply(const char *expected)
{
    char letter = 0;
    size_t count = 0, right = 0;
    while (letter != '\n') {
        ssize_t got = read(line, &letter, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got != 1)
            stop("the supervisor did not answer");
        right += expected && count < strlen(expected) && expected[count] == letter;
        count++;
    }
    if (expected && (right != strlen(expected) || count != right))
        stop("the supervisor sent an unexpected reply");
}

/* Whether to send a report: it is new, and one of the first few of its kind. */
static int is_new(int violation, const char *text)
{
    unsigned long hash = 5381;
    while (*text)
        hash = hash * 33 + (unsigned char)*text++;
    for (int at = 0; at < reported_count[violation]; at++)
        if (reported[violation][at] == hash)
            return 0;
    if (reported_count[violation] == (violation ? MOST : MOST / 4))
        return 0;
    reported[violation][reported_count[violation]++] = hash;
    return 1;
}

/* Send a message of the grader's messages.py to the supervisor, and wait for its reply. */
static void report(int violation, const char *task, const char *place, int number, const char *verb, const char *path,
                   const char *end)
{
    char text[LONG + 1024], *at = text;
    if (!violation && !strncmp(task, "$dump", 5)) /* waveforms are not worth a note */
        return;
    at += sprintf(at, "{\"kind\":\"file\",\"%s\":[],\"%s\":[\"", violation ? "notes" : "violations",
                  violation ? "violations" : "notes");
    const char *parts[] = {place, NULL, task, " ", verb, " '", path, "'", end};
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) {
        if (!parts[part]) {
            at += sprintf(at, ":%d: ", number);
            continue;
        }
        const char *from = parts[part];
        for (size_t count = 0; *from && count < 300; from++, count++)
            if (*from < ' ' || *from > '~' || *from == '"' || *from == '\\') /* other bytes as PEP 383 */
                at += sprintf(at, "\\u%04x", (unsigned char)*from + (*from & 0x80 ? 0xdc00 : 0));
            else
                *at++ = *from;
        if (*from)
            at += sprintf(at, " ...");
    }
    at += sprintf(at, "\"]}\n");
    if (!is_new(violation, text))
        return;
    if (line < 0) {
        static const char name[] = "\0rtl-agent-gym";
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        line = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        memcpy(address.sun_path, name, sizeof name - 1);
        if (line < 0 ||
            connect(line, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + sizeof name - 1))
            stop("nobody supervises it");
        await_reply(NULL);
    }
    for (const char *from = text; from < at;) {
        ssize_t sent = send(line, from, (size_t)(at - from), MSG_NOSIGNAL);
        if (sent <= 0 && errno != EINTR)
            stop("the supervisor is gone");
        from += sent > 0 ? sent : 0;
    }
    await_reply("ok\n");
}

static FILE *refuse(int number)
{
    errno = number;
    return NULL;
}

static FILE *decide(const char *path, const char *mode, const char *task, const char *place, int number)
{
    char absolute[2 * PATH_MAX], found[PATH_MAX], link[64], here[PATH_MAX] = "";
    int reads = *mode == 'r' && !strchr(mode, '+');
    if (!make_absolute(path, absolute))
        return refuse(ENAMETOOLONG);
    int forbidden = below(absolute, secret);
    if (!strcmp(absolute, "/proc/self/statm") || !strcmp(absolute, "/proc/meminfo")) /* the simulator reads these */
        forbidden = 0;
    if (!reads) {
        struct stat entry;
        const char *end = " for writing, which only the checker may";
        if (forbidden || ends(absolute, loaded)) {
            report(1, task, place, number, "opens", path, end);
            return refuse(EACCES);
        }
        strcpy(found, *path == '/' ? "/" : ".");
        if (strrchr(path, '/') && strrchr(path, '/') != path)
            snprintf(found, sizeof found, "%.*s", (int)(strrchr(path, '/') - path), path);
        if (!stat(path, &entry)) {
            if (S_ISDIR(entry.st_mode) || access(path, W_OK))
                return refuse(S_ISDIR(entry.st_mode) ? EISDIR : EACCES);
        } else if (*mode == 'r' || errno != ENOENT || access(found, W_OK | X_OK)) {
            return refuse(errno);
        }
        report(0, task, place, number, "opens", path, " for writing; what a design writes goes nowhere");
        return real_fopen("/dev/null", mode);
    }
    if (*path != '/' && getcwd(here, sizeof here) && !strcmp(here, "/"))
        *here = 0;
    int inside = below(absolute, readable) || (*here && below(absolute, here));
    int file = forbidden || !inside ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file < 0 && inside && !forbidden)
        return NULL;
    if (file >= 0) {
        struct stat entry;
        sprintf(link, "/proc/self/fd/%d", file);
        ssize_t size = readlink(link, found, sizeof found - 1);
        found[size < 0 ? 0 : size] = 0;
        forbidden = below(found, secret);
        inside = below(found, readable) || (*here && below(found, here));
        if (!forbidden && inside && !fstat(file, &entry) && S_ISREG(entry.st_mode))
            return fdopen(file, mode);
        close(file);
    }
    report(forbidden, task, place, number, "reads", path, ", which is none of the problem's files");
    return refuse(EACCES);
}

static FILE *intercept(const char *path, const char *mode, void *caller)
{
    if (!real_fopen)
        initialize();
    if (!from_simulator(caller))
        return real_fopen(path, mode);
    void *(*handle)(int, void *) = (void *(*)(int, void *))dlsym(RTLD_DEFAULT, "vpi_handle");
    char *(*text)(int, void *) = (char *(*)(int, void *))dlsym(RTLD_DEFAULT, "vpi_get_str");
    int (*get)(int, void *) = (int (*)(int, void *))dlsym(RTLD_DEFAULT, "vpi_get");
    void *call = handle ? handle(SYS_TF_CALL, NULL) : NULL;
    design_runs |= call != NULL || from_module(caller);
    if (!design_runs) /* the simulator's own files: the compiled design and its log */
        return real_fopen(path, mode);
    if (!secret || !readable || !loaded)
        stop("it has no policy");
    char task[256] = "a task", place[PATH_MAX] = "?", *shown = place;
    char name[PATH_MAX], how[8];
    if (strlen(path) >= sizeof name || strlen(mode) >= sizeof how)
        return refuse(ENAMETOOLONG);
    strcpy(name, path), strcpy(how, mode); /* these may be in a buffer that the next calls overwrite */
    if (call && text && get) {
        snprintf(task, sizeof task, "%s", text(NAME, call));
        snprintf(place, sizeof place, "%s", text(FILE_NAME, call));
        shown += strncmp(place, "/code/", 6) ? 0 : 6;
    }
    return decide(name, how, task, shown, call && get ? get(LINE, call) : 0);
}

FILE *fopen(const char *path, const char *mode)
{
    return intercept(path, mode, __builtin_return_address(0));
}

FILE *fopen64(const char *path, const char *mode)
{
    return intercept(path, mode, __builtin_return_address(0));
}

int unlink(const char *path)
{
    if (!real_unlink)
        initialize();
    return from_simulator(__builtin_return_address(0)) ? 0 : real_unlink(path);
}

int rename(const char *from, const char *to)
{
    if (!real_rename)
        initialize();
    return from_simulator(__builtin_return_address(0)) ? 0 : real_rename(from, to);
}
