/* daemon/command_line.h: the arguments of `tpd`. */
#ifndef TPD_DAEMON_COMMAND_LINE_H
#define TPD_DAEMON_COMMAND_LINE_H

#include "daemon/config.h"

enum command { COMMAND_RUN, COMMAND_HELP, COMMAND_VERSION };

/* Fills config (defaults, then the file of --config, then the other flags). A wrong flag is
 * ERR_USAGE with a hint; a wrong value of a known flag ERR_USAGE too; a fault in the file
 * ERR_CONFIG. The caller frees config in every case. */
int command_line_read(struct daemon_config *config, enum command *command, int argc, char **argv,
                      struct error *e);
/* The text of --help, on stdout. */
void command_line_help(void);

#endif
