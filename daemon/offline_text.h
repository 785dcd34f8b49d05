/* daemon/offline_text.h: `tpd tokenize` and `tpd detokenize`, which need no daemon.
 *
 * JSON lines on stdin, one JSON line on stdout for each; a line that cannot be done gets
 * {"error": …} and the next one follows. argv begins at PATH (argv[0]). Return an exit code: 0, 64
 * for a wrong command line, 65 for a bad file, 66 for a missing one, 74 when stdout breaks; all but
 * 0 with one line on stderr. */
#ifndef TPD_DAEMON_OFFLINE_TEXT_H
#define TPD_DAEMON_OFFLINE_TEXT_H

/* PATH [--special]: {"text": …} → {"ids": […], "decoded": …} */
int offline_tokenize(int argc, char **argv);
/* PATH [--stream]: {"ids": […]} → {"text": …}, with --stream also "pieces": what a stream sends
 * after each id; what is left at the end is part of the last piece. */
int offline_detokenize(int argc, char **argv);

#endif
