/* daemon/job_paths.h: which files a fine-tune job may name.
 *
 * A job reads below data_dir and writes below state_dir; symbolic links and `..` are followed
 * before that is decided. Both functions touch the file system: worker pool. A path outside is
 * ERR_NOT_PERMITTED. *out is the caller's to free. */
#ifndef TPD_DAEMON_JOB_PATHS_H
#define TPD_DAEMON_JOB_PATHS_H

#include "base/error.h"

/* A regular file, absolute or under data_dir. *out is absolute, without links. field: "data". */
int job_data_path(char **out, const char *data_dir, const char *path, const char *field,
                  struct error *e);
/* A directory, which need not exist yet, absolute or under state_dir, that is none of the daemon's
 * own. *out is absolute, without links. */
int job_out_path(char **out, const char *state_dir, const char *path, struct error *e);

#endif
