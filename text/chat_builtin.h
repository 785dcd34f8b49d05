/* text/chat_builtin.h: the templates that tpd has itself, for models that come without one. */
#ifndef TPD_TEXT_CHAT_BUILTIN_H
#define TPD_TEXT_CHAT_BUILTIN_H

/* NULL: there is none of that name. */
const char *chat_builtin_find(const char *name);
/* All names, with commas between. */
extern const char chat_builtin_names[];

#endif
