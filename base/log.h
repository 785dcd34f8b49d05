/* base/log.h: one line an event, on stderr. Any thread; a line is written with one call, so lines
 * do not mix. The level and the form are global; log_setup is for the start. */
#ifndef TPD_BASE_LOG_H
#define TPD_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Lines above level are dropped. json: an object a line instead of plain text. */
void log_setup(enum log_level level, bool json);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
