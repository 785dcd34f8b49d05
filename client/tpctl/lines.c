#include "lines.h"

#include "tpctl.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_LINES = 1000, DROP_KEY = 0x1C /* what getting a character tells of Ctrl-C */ };
static const char fence[] = "\"\"\"";

struct lines {
    EditLine *edit; /* NULL: not a terminal */
    History *history;
    char *path;
    const char *prompt;
    bool dropped;
    char *line; /* getline's */
    size_t capacity;
    char *message; /* several lines */
    size_t size;
};

/* --- the terminal --------------------------------------------------------------------------- */

static char *prompt_of(EditLine *edit) {
    struct lines *l;
    el_get(edit, EL_CLIENTDATA, &l);
    return (char *)l->prompt;
}

/* One byte; -1 at the end, -2 when Ctrl-C came first. The signal is let through only while we wait, so
 * that it is never missed. */
static int read_byte(void) {
    struct pollfd in = {STDIN_FILENO, POLLIN, 0};
    sigset_t block, before;
    unsigned char byte;
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    pthread_sigmask(SIG_BLOCK, &block, &before);
    while (!interrupt_seen() && ppoll(&in, 1, NULL, &before) < 0 && errno == EINTR) {
        if (interrupt_seen()) break;
    }
    bool ready = in.revents != 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!ready) return -2;
    return read(STDIN_FILENO, &byte, 1) == 1 ? byte : -1;
}

/* For libedit: 1 and a character, or 0 at the end. */
static int read_character(EditLine *edit, wchar_t *out) {
    mbstate_t state = {0};
    (void)edit;
    for (int n = 0; n < 8; n++) {
        int byte = read_byte();
        if (byte == -2) {
            *out = DROP_KEY;
            return 1;
        }
        if (byte < 0) return 0;
        char c = (char)byte;
        size_t used = mbrtowc(out, &c, 1, &state);
        if (used != (size_t)-2) {
            if (used == (size_t)-1) *out = L'?';
            return 1;
        }
    }
    *out = L'?';
    return 1;
}

static unsigned char drop_line(EditLine *edit, int key) {
    struct lines *l;
    (void)key;
    el_get(edit, EL_CLIENTDATA, &l);
    l->dropped = true;
    return CC_EOF;
}

static void open_history(struct lines *l) {
    HistEvent event;
    l->history = history_init();
    if (!l->history) return;
    history(l->history, &event, H_SETSIZE, HISTORY_LINES);
    history(l->history, &event, H_SETUNIQUE, 1);
    if (l->path) history(l->history, &event, H_LOAD, l->path);
    el_set(l->edit, EL_HIST, history, l->history);
}

static bool open_terminal(struct lines *l) {
    /* Without a locale that has UTF-8 a letter would be several. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    l->edit = el_init("tpctl", stdin, stdout, stderr);
    if (!l->edit) {
        complain("this terminal can not be edited on");
        return false;
    }
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT, prompt_of);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_SIGNAL, 0);
    el_set(l->edit, EL_GETCFN, read_character);
    el_set(l->edit, EL_ADDFN, "tpd-drop", "take the line back", drop_line);
    el_set(l->edit, EL_BIND, "^\\", "tpd-drop", NULL);
    el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    open_history(l);
    el_source(l->edit, NULL);
    return true;
}

struct lines *lines_open(bool terminal, const char *path) {
    struct lines *l = calloc(1, sizeof *l);
    if (!l) {
        complain("out of memory");
        return NULL;
    }
    if (path) l->path = strdup(path);
    if (terminal && !open_terminal(l)) {
        lines_close(l);
        return NULL;
    }
    return l;
}

void lines_close(struct lines *l) {
    if (!l) return;
    if (l->history) history_end(l->history);
    if (l->edit) el_end(l->edit);
    free(l->path);
    free(l->line);
    free(l->message);
    free(l);
}

/* --- messages ------------------------------------------------------------------------------- */

/* The file is the user's alone, whatever the mask. */
static void remember(struct lines *l, const char *text) {
    HistEvent event;
    if (!l->history || !*text) return;
    history(l->history, &event, H_ENTER, text);
    if (!l->path) return;
    int fd = open(l->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    close(fd);
    history(l->history, &event, H_SAVE, l->path);
}

/* One line without its end. */
static enum lines_end next_line(struct lines *l, const char *prompt, const char **text,
                                size_t *size) {
    ssize_t n;
    if (l->edit) {
        int count = 0;
        l->prompt = prompt;
        l->dropped = false;
        /* libedit shows the prompt before it asks for single keys: a Ctrl-D typed in between would be
         * the terminal's own, and lost. */
        el_set(l->edit, EL_PREP_TERM, 1);
        const char *line = el_gets(l->edit, &count);
        if (l->dropped) {
            el_reset(l->edit);
            putchar('\n');
            return LINES_DROPPED;
        }
        if (!line || count <= 0) return LINES_EOF;
        *text = line;
        *size = (size_t)count;
    } else {
        if ((n = getline(&l->line, &l->capacity, stdin)) <= 0) return LINES_EOF;
        *text = l->line;
        *size = (size_t)n;
    }
    while (*size && ((*text)[*size - 1] == '\n' || (*text)[*size - 1] == '\r')) --*size;
    return LINES_MESSAGE;
}

static bool add(struct lines *l, const char *text, size_t size, bool newline) {
    char *more = realloc(l->message, l->size + size + 2);
    if (!more) return false;
    l->message = more;
    memcpy(more + l->size, text, size);
    l->size += size;
    if (newline) more[l->size++] = '\n';
    more[l->size] = '\0';
    return true;
}

/* What follows a line that goes on, or an opening fence. */
static enum lines_end more_lines(struct lines *l, bool fenced) {
    const char *text;
    size_t size;
    for (;;) {
        enum lines_end end = next_line(l, "… ", &text, &size);
        if (end == LINES_DROPPED) return end;
        bool closes = size == strlen(fence) && !memcmp(text, fence, size);
        if (end == LINES_EOF || (fenced && closes)) {
            if (fenced && l->size && l->message[l->size - 1] == '\n') l->message[--l->size] = '\0';
            return l->size ? LINES_MESSAGE : LINES_EOF;
        }
        bool goes_on = !fenced && size && text[size - 1] == '\\';
        if (!add(l, text, size - goes_on, fenced || goes_on)) return LINES_EOF;
        if (!fenced && !goes_on) return LINES_MESSAGE;
    }
}

enum lines_end lines_next(struct lines *l, const char **text, size_t *size) {
    enum lines_end end = next_line(l, "> ", text, size);
    if (end != LINES_MESSAGE || !l->edit) return end;
    bool fenced = *size == strlen(fence) && !memcmp(*text, fence, *size);
    bool goes_on = *size && (*text)[*size - 1] == '\\';
    l->size = 0;
    if (!add(l, *text, fenced ? 0 : *size - goes_on, goes_on)) return LINES_EOF;
    if (fenced || goes_on) end = more_lines(l, fenced);
    *text = l->message;
    *size = l->size;
    if (end == LINES_MESSAGE) remember(l, l->message);
    return end;
}
