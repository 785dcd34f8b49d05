/* daemon/tidy.h: gives back what only starting needed. */
#ifndef TPD_DAEMON_TIDY_H
#define TPD_DAEMON_TIDY_H

/* Freed memory that the allocator keeps goes back to the system, and pages of programs and libraries leave this
 * process (not under a debugger); those that are needed again come from the page cache. Any thread; takes about a
 * millisecond. */
void tidy_after_start(void);

#endif
