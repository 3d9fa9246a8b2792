/*
 * Checks of a request's first line and headers that libmicrohttpd leaves out. Without them two readers of the same bytes, a
 * proxy and this server, could see requests of different lengths in them. RFC 9112, sections 3, 5.1 and 6.
 */
#ifndef TD_SERVER_CONNECTION_FRAMING_H
#define TD_SERVER_CONNECTION_FRAMING_H

#include <microhttpd.h>

#include "server/api/api_error.h"

/** Called by libmicrohttpd when it has divided a first line, with the URI as it came: remembers where the URI lies. */
void *td_note_uri(void *cls, const char *uri, struct MHD_Connection *connection);

/**
 * @param method, version as libmicrohttpd gives them with the headers.
 * @return TD_EINVAL with err a 400, the 415 of a body that is encoded, or the 501 of a transfer coding other than chunked;
 * the connection must then end.
 */
TD_NODISCARD td_status td_check_framing(struct MHD_Connection *connection, const char *method, const char *version,
                                        td_api_error *err);

#endif
