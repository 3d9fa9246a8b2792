/*
 * The program's own bind(), which the loader gives to shared libraries in place of the C library's. It makes a library that
 * would listen on every address of the host listen on one given address (scale/listen_address.h).
 */
#include <sys/syscall.h>
#include <unistd.h>

#include "scale/listen_address.h"

/* The function has another name in C, because the C library declares bind() with a type that only its headers can write. */
int td_program_bind(int fd, const struct sockaddr *address, socklen_t n) __asm__("bind");

int td_program_bind(int fd, const struct sockaddr *address, socklen_t n) {
    struct sockaddr_storage instead;
    socklen_t               n_instead = td_listen_address_instead(address, n, &instead);
    if (n_instead) return (int)syscall(SYS_bind, fd, &instead, n_instead);
    return (int)syscall(SYS_bind, fd, address, n);
}
