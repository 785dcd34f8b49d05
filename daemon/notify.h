/* daemon/notify.h: telling the service manager how we are (sd_notify, without libsystemd). */
#ifndef TPD_DAEMON_NOTIFY_H
#define TPD_DAEMON_NOTIFY_H

/* Sends lines like "READY=1\nSTATUS=…" to $NOTIFY_SOCKET; does nothing when it is not set. Never
 * blocks; a failure is only logged. Any thread. */
void notify_send(const char *lines);

#endif
