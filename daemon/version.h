/* daemon/version.h: what this build calls itself. */
#ifndef TPD_DAEMON_VERSION_H
#define TPD_DAEMON_VERSION_H

#define TPD_VERSION "0.1.0"
enum { TPD_PROTOCOL = 1 };

#endif
