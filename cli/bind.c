/*
 * The program's bind(), which shared libraries call instead of the C library's: where they would listen on every address
 * though they were given one, they listen there (scale/listen_address.h).
 */
#include <sys/syscall.h>
#include <unistd.h>

#include "scale/listen_address.h"

/* By another name here: the C library declares bind() with a type that only it can name. */
int td_program_bind(int fd, const struct sockaddr *address, socklen_t n) __asm__("bind");

int td_program_bind(int fd, const struct sockaddr *address, socklen_t n) {
    struct sockaddr_storage instead;
    socklen_t               n_instead = td_listen_address_instead(address, n, &instead);
    if (n_instead) return (int)syscall(SYS_bind, fd, &instead, n_instead);
    return (int)syscall(SYS_bind, fd, address, n);
}
