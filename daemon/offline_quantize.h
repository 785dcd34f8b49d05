/* daemon/offline_quantize.h: the command `tpd quantize`. */
#ifndef TPD_DAEMON_OFFLINE_QUANTIZE_H
#define TPD_DAEMON_OFFLINE_QUANTIZE_H

/* argv begins behind the command's name. Returns the exit code. */
int offline_quantize(int argc, char **argv);

#endif
