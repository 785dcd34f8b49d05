/* base/machine.h: what this process may use of the machine. Any thread. */
#ifndef TPD_BASE_MACHINE_H
#define TPD_BASE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes that can be allocated without swapping: what the kernel calls available (caches that it can
 * drop included), or less where a limit of this process' cgroup (v2), or of one above it, is
 * nearer. 0 when the kernel does not say. */
size_t machine_memory_available(void);

/* Bytes that the machine has, or that the nearest limit of a cgroup lets this process have. */
size_t machine_memory_total(void);

enum { CGROUP_DIR_MAX = 4200 };

/* The directory of this process' cgroup (v2); false when there is none. */
bool cgroup_dir(char dir[CGROUP_DIR_MAX]);
/* Makes dir that of the group above; false at the root. */
bool cgroup_parent(char dir[CGROUP_DIR_MAX]);

#endif
