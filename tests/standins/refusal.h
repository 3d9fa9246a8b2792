/* Runs code that breaks a rule of a stand-in in a process of its own, which must end by the expected signal and with the
 * expected sentence. */
#ifndef TD_TESTS_REFUSAL_H
#define TD_TESTS_REFUSAL_H

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/td_test.h"

static inline _Noreturn void refusal_act_alone(void (*act)(const void *), const void *what, int standard_error) {
    const struct rlimit none = {0};
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGSEGV, SIG_DFL); /* not the test library's */
    signal(SIGABRT, SIG_DFL);
    dup2(standard_error, STDERR_FILENO);
    act(what);
    _exit(0);
}

/**
 * @param by_signal 0: act(what) lives
 * @param sentence  a part of what it says on standard error; "" nothing
 * @param speaker   what every sentence begins with
 */
static inline void refusal_check(void (*act)(const void *), const void *what, int by_signal, const char *sentence,
                                 const char *speaker) {
    char said[1024] = {0};
    int  status, ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) refusal_act_alone(act, what, ends[1]);
    close(ends[1]);
    FILE  *f = fdopen(ends[0], "r");
    size_t n = fread(said, 1, sizeof said - 1, f);
    fclose(f);
    assert_int_equal(waitpid(child, &status, 0), child);
    int ended_by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (ended_by != by_signal || (!ended_by && WEXITSTATUS(status))) fail_msg("status %d: %s", status, said);
    if (by_signal == SIGSEGV) return; /* an emulator has something to say about that */
    if (n && !strstr(said, sentence)) fail_msg("%s", said);
    assert_true((n > 0) == (sentence[0] != 0));
    if (n) assert_non_null(strstr(said, speaker));
}

#endif
