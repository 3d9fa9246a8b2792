/*
 * The rules of a stand-in: each is broken in a process of its own, which must end by the signal and with the sentence that
 * is expected. A process that keeps all rules must live.
 *
 * A rule is a function,
 *   BREAKS(name, sentence) { … }   ends by SIGABRT with that sentence
 *   FAULTS(name) { … }             ends by SIGSEGV
 *   LIVES(name) { … }              breaks no rule
 * or a row of a table: a call whose arguments are right but for one.
 *   static const rule TABLE[] = {WRONG(call, field, value, sentence), …, RIGHT(call)};
 *   RULES(TABLE)
 * There `call` is, with the arguments that are right, and `r` and `a` in its block,
 *   ARGS(call, int64_t one, other) = {.one = 1};
 *   CALL(call) { … a->one … }
 * These are a struct call_args and its value call_right. A field that a row sets is an int64_t.
 *
 * The including file defines rule_rig, which every rule gets opened, and ends with rules_run.
 */
#ifndef TD_TESTS_RULES_H
#define TD_TESTS_RULES_H

#include "refusal.h"

#define RULE_ARGS_BYTES 128

typedef struct {
    const char *name;
    void (*act)(rule_rig *r); /* NULL: a row */
    void (*call)(rule_rig *r, const void *args);
    const void *right; /* [bytes] arguments of call */
    size_t      bytes;
    size_t      at; /* of the argument that is wrong; bytes: none is */
    int64_t     value;
    int         by_signal; /* 0: it lives */
    const char *sentence;
} rule;

static const char *g_speaker;                  /* what every sentence begins with */
static void (*g_rule_act)(const void *broken); /* opens the rig and breaks the rule */

static inline void check_rule(void **state) {
    const rule *r = *state;
    refusal_check(g_rule_act, r, r->by_signal, r->sentence, g_speaker);
}

#define RULES(table) TEST_ROWS(check_rule, table)
#define RULE_FUNCTION(name_, by_signal_, sentence_)                                                                      \
    static void       name_(rule_rig *r);                                                                                \
    static const rule rule_##name_[] = {{.name = #name_, .act = name_, .by_signal = by_signal_, .sentence = sentence_}}; \
    RULES(rule_##name_)                                                                                                  \
    static void name_(rule_rig *r)
#define BREAKS(name, sentence) RULE_FUNCTION(name, SIGABRT, sentence)
#define FAULTS(name) RULE_FUNCTION(name, SIGSEGV, "")
#define LIVES(name) RULE_FUNCTION(name, 0, "")

#define ARGS(call_, ...) \
    typedef struct {     \
        __VA_ARGS__;     \
    } call_##_args;      \
    static const call_##_args call_##_right
#define CALL(call_)                                               \
    static void call_##_with(rule_rig *r, const call_##_args *a); \
    static void call_(rule_rig *r, const void *args) {            \
        call_##_with(r, args);                                    \
    }                                                             \
    static void call_##_with(rule_rig *r, const call_##_args *a)

#define RULE_ROW(name_, call_, at_, value_, by_signal_, sentence_)                                                        \
    {                                                                                                                     \
        .name = name_, .call = call_, .right = &call_##_right, .bytes = sizeof call_##_right, .at = at_, .value = value_, \
        .by_signal = by_signal_, .sentence = sentence_                                                                    \
    }
/* 0; does not compile for a field of another size, which the value would write past. */
#define INT64_FIELD(call_, field) (0 * sizeof(char[sizeof(((call_##_args *)0)->field) == sizeof(int64_t) ? 1 : -1]))
#define WRONG(call_, field, value_, sentence_)                                                                       \
    RULE_ROW(#call_ " with " #field " = " #value_, call_, offsetof(call_##_args, field) + INT64_FIELD(call_, field), \
             value_, SIGABRT, sentence_)
#define RIGHT(call_) RULE_ROW(#call_ " is right", call_, sizeof(call_##_args), 0, 0, "")

static inline void rule_break(const rule *broken, rule_rig *r) {
    _Alignas(8) char args[RULE_ARGS_BYTES];
    if (broken->act) {
        broken->act(r);
        return;
    }
    if (broken->bytes > sizeof args) abort();
    memcpy(args, broken->right, broken->bytes);
    if (broken->at < broken->bytes) memcpy(args + broken->at, &broken->value, sizeof broken->value);
    broken->call(r, args);
}

/** Break every rule: act opens the rig and calls rule_break. @return main's. */
static inline int rules_run(const char *speaker, void (*act)(const void *broken)) {
    g_speaker = speaker;
    g_rule_act = act;
    return tests_run();
}

#endif
