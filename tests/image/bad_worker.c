/* A picture's process that does not keep to the protocol: how is told by the first letter of the file it is sent. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "image/image_protocol.h"

#define SOCKET STDIN_FILENO

static void hang(void) {
    for (;;) pause();
}

static void say(const void *bytes, size_t n) {
    if (write(SOCKET, bytes, n) != (ssize_t)n) _exit(1);
}

int main(void) {
    static uint8_t    pixels[64 * 64 * 3 + 1];
    td_image_question q;
    td_image_answer   a = {TD_IMAGE_ANSWER, TD_OK, 64, 64, 64, 64, "a sentence"};
    char              how;
    if (read(SOCKET, &q, sizeof q) != sizeof q || read(SOCKET, &how, 1) != 1) return 1;
    switch (how) {
        case 'h': hang(); break;
        case 'd': raise(SIGKILL); break;
        case 'm': a.magic++; break;
        case 's': a.status = TD_EIO; break;
        case 'S': a.status = 77; break;
        case 'n': a.status = TD_EFORMAT, a.text[0] = 0; break;
        case 'c': a.canvas_width = 65; break;
        case 'z': a.height = 0; break;
        case 'p': a.height = a.width = 100000; break;
        case 't': a.status = TD_EFORMAT, memset(a.text, '\n', sizeof a.text); break;
        case 'a': say(&a, sizeof a / 2); return 0; /* half an answer */
    }
    say(&a, sizeof a);
    if (how == 'f') say(pixels, sizeof pixels - 2);                   /* a byte too few */
    if (how == 'x') say(pixels, sizeof pixels);                       /* and one too many */
    if (how == 'o') say(pixels, sizeof pixels - 1);                   /* as it should be */
    if (how == 'l') say(pixels, sizeof pixels - 1), hang();           /* and then it does not end */
    if (how == 'e') say(pixels, sizeof pixels - 1), close(0), hang(); /* nor so */
    return 0;
}
