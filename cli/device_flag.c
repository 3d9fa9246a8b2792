#include "cli/device_flag.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/flags.h"
#include "npu/npu.h"

#define ALIAS_BYTES 32

td_device_flag td_device_flag_texts;

static void fill_choices(td_device_flag *f) {
    static char spelled[TD_DEVICE_CHOICES_MAX][ALIAS_BYTES]; /* "alias=name" */
    size_t      n_names = 0, n = 0;
    f->choices[n++] = "auto";
    for (const td_backend *const *b = td_backends; *b && n < TD_DEVICE_CHOICES_MAX; b++) {
        f->names[n_names++] = f->choices[n++] = (*b)->name;
        for (const char *const *alias = (*b)->aliases; alias && *alias && n < TD_DEVICE_CHOICES_MAX; alias++) {
            snprintf(spelled[n], ALIAS_BYTES, "%s=%s", *alias, (*b)->name);
            f->choices[n] = spelled[n];
            n++;
        }
    }
    f->names[n_names] = f->choices[n] = NULL;
}

static void append(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t bytes, const char *format, ...) {
    size_t  used = strlen(text);
    va_list list;
    va_start(list, format);
    vsnprintf(text + used, bytes - used, format, list);
    va_end(list);
}

static bool serves(const td_backend *b) {
    return !b->is_for_tests;
}

static bool lists_cards(const td_backend *b) {
    return b->list_accelerators != NULL;
}

/* Writes the names of the backends for which `is` returns true, as "a, b or c". @return false if there are none. */
static bool append_names(char *text, size_t bytes, bool (*is)(const td_backend *b)) {
    const char *last = NULL, *before = "";
    for (const td_backend *const *b = td_backends; *b; b++)
        if (is(*b)) last = (*b)->name;
    for (const td_backend *const *b = td_backends; *b; b++) {
        if (!is(*b)) continue;
        append(text, bytes, "%s%s", *before && (*b)->name == last ? " or " : before, (*b)->name);
        before = ", ";
    }
    return last != NULL;
}

static void fill_help(char *text, size_t bytes) {
    const char *before = "Where everything but the routed experts runs; ";
    text[0] = 0;
    for (const td_backend *const *b = td_backends; *b; b++) {
        if ((*b)->is_for_tests) continue;
        append(text, bytes, "%s%s is %s", before, (*b)->name, (*b)->help);
        before = ", ";
    }
    append(text, bytes, ". auto is ");
    append(text, bytes, append_names(text, bytes, lists_cards) ? " where there is such a card, else host." : "host.");
    for (const td_backend *const *b = td_backends; *b; b++)
        if ((*b)->is_for_tests) append(text, bytes, " %s is for tests: %s.", (*b)->name, (*b)->help);
}

void td_device_flag_fill(void) {
    td_device_flag *f = &td_device_flag_texts;
    fill_choices(f);
    fill_help(f->help, sizeof f->help);
    snprintf(f->refusal, sizeof f->refusal, TD_NOT_YET "; this build serves with --device ");
    append_names(f->refusal, sizeof f->refusal, serves);
}
