/* tpctl jobs plot: a job's loss by step, in the terminal or as an SVG. */
#include "tpctl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

const struct option_def jobs_plot_options[] = {
    {"output", 'o', OPTION_TEXT, "FILE.svg", NULL, "write an SVG instead"},
    {0},
};

enum { ROWS = 12, LEVELS = 8, MIN_COLUMNS = 20, MAX_COLUMNS = 200, LABEL = 10 };
enum {
    SVG_WIDTH = 720,
    SVG_HEIGHT = 400,
    SVG_LEFT = 64,
    SVG_RIGHT = 16,
    SVG_TOP = 40,
    SVG_BOTTOM = 40
};

struct point {
    double step, loss;
};

struct series {
    struct point *points;
    size_t n;
};

struct curve {
    struct series loss, eval;
    double first, last, low, high; /* of steps, of all losses */
};

static bool add(struct series *s, double step, double loss) {
    if (s->n % 1024 == 0) {
        struct point *more = realloc(s->points, (s->n + 1024) * sizeof *more);
        if (!more) return false;
        s->points = more;
    }
    s->points[s->n++] = (struct point){step, loss};
    return true;
}

/* After a rollback or a restart steps come again: the later ones count. */
static void forget_from(struct series *s, double step) {
    while (s->n && s->points[s->n - 1].step >= step) s->n--;
}

static void widen(struct curve *c, const struct series *s) {
    for (size_t i = 0; i < s->n; i++) {
        const struct point *p = &s->points[i];
        c->first = fmin(c->first, p->step);
        c->last = fmax(c->last, p->step);
        c->low = fmin(c->low, p->loss);
        c->high = fmax(c->high, p->loss);
    }
}

static bool read_curve(struct curve *c, const json_t *events) {
    size_t i;
    json_t *event;
    *c = (struct curve){.first = INFINITY, .last = -INFINITY, .low = INFINITY, .high = -INFINITY};
    json_array_foreach((json_t *)events, i, event) {
        const char *what = json_string_value(json_object_get(event, "event"));
        bool eval = what && !strcmp(what, "eval");
        const json_t *loss = json_object_get(event, eval ? "eval_loss" : "loss");
        double step = json_number_value(json_object_get(event, "step"));
        if (!what || (!eval && strcmp(what, "step")) || !json_is_number(loss)) continue;
        struct series *s = eval ? &c->eval : &c->loss;
        forget_from(s, step);
        if (!add(s, step, json_number_value(loss))) return false;
    }
    widen(c, &c->loss);
    widen(c, &c->eval);
    return true;
}

/* --- in the terminal -------------------------------------------------------------------------- */

static int columns_of(const struct tool *tool) {
    struct winsize size;
    int columns = 80;
    if (tool->out_terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
        columns = size.ws_col;
    columns -= LABEL + 2;
    return columns < MIN_COLUMNS ? MIN_COLUMNS : columns > MAX_COLUMNS ? MAX_COLUMNS : columns;
}

/* heights[column]: the mean loss of its steps as eighths of a row; a column without steps is as
 * high as the one before it. */
static void fill_heights(const struct curve *c, int columns, int *heights) {
    double sum[MAX_COLUMNS] = {0}, count[MAX_COLUMNS] = {0};
    double span = c->last > c->first ? c->last - c->first : 1;
    double range = c->high > c->low ? c->high - c->low : 1;
    for (size_t i = 0; i < c->loss.n; i++) {
        const struct point *p = &c->loss.points[i];
        int at = (int)((p->step - c->first) / span * (columns - 1) + 0.5);
        sum[at] += p->loss;
        count[at]++;
    }
    int height = 1;
    for (int x = 0; x < columns; x++) {
        if (count[x] > 0)
            height = 1 + (int)((sum[x] / count[x] - c->low) / range * (ROWS * LEVELS - 1) + 0.5);
        heights[x] = height;
    }
}

static void put_curve(const struct tool *tool, const struct curve *c, const char *name) {
    static const char *const blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    int heights[MAX_COLUMNS], columns = columns_of(tool);
    fill_heights(c, columns, heights);
    printf("%s", bold(tool));
    put_text(tool, name, strlen(name));
    printf(": loss %.4f to %.4f%s\n", c->loss.points[0].loss, c->loss.points[c->loss.n - 1].loss,
           unbold(tool));
    for (int row = ROWS - 1; row >= 0; row--) {
        if (row == ROWS - 1 || row == 0) printf("%*.4f ", LABEL, row == 0 ? c->low : c->high);
        else printf("%*s ", LABEL, "");
        for (int x = 0; x < columns; x++) {
            int level = heights[x] - row * LEVELS;
            fputs(blocks[level < 0 ? 0 : level > LEVELS ? LEVELS : level], stdout);
        }
        putchar('\n');
    }
    printf("%*s step %-*.0f%.0f\n", LABEL, "", columns - 10 > 1 ? columns - 10 : 1, c->first,
           c->last);
    if (c->eval.n)
        printf("%*s eval loss %.4f to %.4f\n", LABEL, "", c->eval.points[0].loss,
               c->eval.points[c->eval.n - 1].loss);
}

static void put_points(const char *what, const struct series *s) {
    for (size_t i = 0; i < s->n; i++)
        printf("%s\t%.0f\t%.9g\n", what, s->points[i].step, s->points[i].loss);
}

static json_t *points_json(const struct series *s) {
    json_t *list = json_array();
    for (size_t i = 0; i < s->n; i++)
        json_array_append_new(list, json_pack("[f, f]", s->points[i].step, s->points[i].loss));
    return list;
}

/* --- as an SVG -------------------------------------------------------------------------------- */

static double svg_x(const struct curve *c, double step) {
    double span = c->last > c->first ? c->last - c->first : 1;
    return SVG_LEFT + (step - c->first) / span * (SVG_WIDTH - SVG_LEFT - SVG_RIGHT);
}

static double svg_y(const struct curve *c, double loss) {
    double range = c->high > c->low ? c->high - c->low : 1;
    return SVG_TOP + (c->high - loss) / range * (SVG_HEIGHT - SVG_TOP - SVG_BOTTOM);
}

static void svg_text(FILE *file, const char *text) {
    for (; *text; text++) {
        if (*text == '<') fputs("&lt;", file);
        else if (*text == '&') fputs("&amp;", file);
        else if ((unsigned char)*text >= 0x20) fputc(*text, file);
    }
}

static void svg_series(FILE *file, const struct curve *c, const struct series *s,
                       const char *colour) {
    fprintf(file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", colour);
    for (size_t i = 0; i < s->n; i++)
        fprintf(file, "%s%.1f,%.1f", i ? " " : "", svg_x(c, s->points[i].step),
                svg_y(c, s->points[i].loss));
    fputs("\"/>\n", file);
}

static void svg_grid(FILE *file, const struct curve *c) {
    enum { LINES = 4 };
    for (int i = 0; i <= LINES; i++) {
        double loss = c->low + (c->high - c->low) * i / LINES, y = svg_y(c, loss);
        double step = c->first + (c->last - c->first) * i / LINES;
        fprintf(file, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n",
                SVG_LEFT, SVG_WIDTH - SVG_RIGHT, y, y);
        fprintf(file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n", SVG_LEFT - 6,
                y + 4, loss);
        fprintf(file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n",
                svg_x(c, step), SVG_HEIGHT - SVG_BOTTOM + 18, step);
    }
}

static int write_svg(const char *path, const struct curve *c, const char *name) {
    FILE *file = fopen(path, "w");
    if (!file) {
        complain("%s: cannot write: %s", path, strerror(errno));
        return TPD_EXIT_IO;
    }
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" "
            "fill=\"white\"/>\n<text x=\"%d\" y=\"22\" font-size=\"15\">",
            SVG_WIDTH, SVG_HEIGHT, SVG_LEFT);
    svg_text(file, name);
    fputs(": loss by step</text>\n", file);
    svg_grid(file, c);
    svg_series(file, c, &c->loss, "#1f77b4");
    if (c->eval.n) {
        svg_series(file, c, &c->eval, "#d62728");
        fprintf(file, "<text x=\"%d\" y=\"22\" text-anchor=\"end\" fill=\"#d62728\">eval</text>\n",
                SVG_WIDTH - SVG_RIGHT);
    }
    fputs("</svg>\n", file);
    bool failed = ferror(file);
    if (fclose(file) == 0 && !failed) return EXIT_OK;
    complain("%s: cannot write: %s", path, strerror(errno));
    return TPD_EXIT_IO;
}

static int put_plot(const struct tool *tool, const struct curve *c, const char *name,
                    const char *path) {
    if (path) return write_svg(path, c, name);
    if (tool->format == OUT_JSON) {
        json_t *json = json_pack("{s:o, s:o}", "loss", points_json(&c->loss), "eval_loss",
                                 points_json(&c->eval));
        put_json(json);
        json_decref(json);
    } else if (tool->format == OUT_PLAIN) {
        put_points("loss", &c->loss);
        put_points("eval_loss", &c->eval);
    } else put_curve(tool, c, name);
    return EXIT_OK;
}

int cmd_jobs_plot(struct tool *tool, const struct args *args) {
    json_t *job = NULL, *log = NULL;
    struct curve c = {0};
    int rc = job_choose(tool, args, true);
    if (rc == EXIT_OK) rc = tool_ask(tool, "finetune.get", args->params, &job);
    if (rc == EXIT_OK) rc = job_read_log(tool, args->params, &log);
    if (rc == EXIT_OK && !read_curve(&c, json_object_get(log, "events"))) {
        complain("out of memory");
        rc = TPD_EXIT_BUSY;
    } else if (rc == EXIT_OK && c.loss.n == 0) {
        complain("the job has made no step yet: there is nothing to draw");
        rc = TPD_EXIT_FAILED;
    }
    const char *name = json_string_value(json_object_get(job, "name"));
    if (rc == EXIT_OK) rc = put_plot(tool, &c, name ? name : "job", args_text(args, "output"));
    free(c.loss.points);
    free(c.eval.points);
    json_decref(job);
    json_decref(log);
    return rc;
}
