#include "tandem.h"
td_status td_chat_template_compile(const char *s, size_t l, td_chat_template **o, td_error *e){(void)s;(void)l;(void)e;*o=NULL;return TD_ENOTSUP;}
void td_chat_template_free(td_chat_template *t){(void)t;}
