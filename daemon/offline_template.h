/* daemon/offline_template.h: `tpd template`, which needs no daemon. */
#ifndef TPD_DAEMON_OFFLINE_TEMPLATE_H
#define TPD_DAEMON_OFFLINE_TEMPLATE_H

/* PATH [--chat-template NAME]: JSON lines {"messages": …, "add_generation_prompt": …, …} on stdin →
 * {"text": …, "generated": [[from, to], …]?} or {"error": …, "line", "column"} on stdout. Exit codes
 * as those of offline_text.h. */
int offline_template(int argc, char **argv);

#endif
