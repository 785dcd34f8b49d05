/* daemon/offline_plan.h: the command `tpd plan PATH --tp N --ctx N [--batch B] [--train lora|full] …`. */
#ifndef TPD_DAEMON_OFFLINE_PLAN_H
#define TPD_DAEMON_OFFLINE_PLAN_H

/* argv begins at PATH. The plan goes to stdout; a failure is one line on stderr. Returns the exit code: 0
 * also for a plan that does not fit (--check: then 1). */
int offline_plan(int argc, char **argv);

#endif
