/* `tandem doctor` checks whether a device computes what it should. It prints a row for each check, and writes a JSON report
 * for an issue. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/engine_flags.h"
#include "cli/standard_output.h"
#include "core/log/log.h"
#include "core/log/trace.h"
#include "core/machine/cpu.h"
#include "core/plural.h"
#include "doctor/doctor.h"
#include "server/api/json_writer.h"

#define PATIENCE_S 60
#define FIGURES 6

typedef struct {
    const char *json;
    uint32_t    n_cards, patience_s;
} options;

typedef struct {
    const char *device;
    options     o;
    uint32_t    count[TD_DOCTOR_FAILED + 1];
    td_jbuf     rows; /* JSON, for the report */
} report;

static const char *const OUTCOMES[] = {"ok", "note", "FAILED"};

/* One row for each flag. clang-format would put every member on a line of its own. */
/* clang-format off */
static const td_flag FLAGS[] = {
    {{"tensor-parallel-size", "tp-size", "tp"}, TD_FLAG_U32, offsetof(options, n_cards), .min = 1, .max = 64, .arg = "N",
     .by_default = "all", .help = "Cards that sum; the first one is examined. By default all that there are, or two that the cores play."},
    {{"json"}, TD_FLAG_TEXT, offsetof(options, json), .arg = "FILE", .help = "Write the report here, to be attached to an issue."},
    {{"timeout"}, TD_FLAG_U32, offsetof(options, patience_s), .min = 1, .max = 3600, .arg = "SECONDS", .by_default = "60",
     .help = "A check that takes longer hangs: the report ends there."},
};
/* clang-format on */

/* @return -1 to go on, or the exit status. */
static int parse_options(int argc, char **argv, report *v) {
    td_engine_options     engine;
    td_flag_group         groups[] = {td_engine_flags(TD_IN_DOCTOR, &engine),
                                      {.flags = FLAGS, .n = sizeof FLAGS / sizeof *FLAGS, .options = &v->o}};
    const td_flag_command command = {
        .name = "doctor",
        .synopsis = "[flags]",
        .about =
            "Checks a device without a model, in less than a minute: its installation, memory, link, hand-overs, each "
            "block against the host\n"
            "device, captures, and sums over its cards. A line a check. The exit status is 0 when nothing failed, 1 "
            "when something did.\n",
        .groups = groups,
        .n_groups = 2};
    td_engine_options_init(&engine);
    int rc = td_flags_take(&command, argc, argv);
    td_engine_flags_settle(&engine);
    v->device = engine.device ? engine.device : "host";
    return rc;
}

/* ---- rows -------------------------------------------------------------------------------------- */

static void print_row(const td_doctor_row *r) {
    printf("%-6s  %-12s  %-38s ", OUTCOMES[r->outcome], r->part, r->what);
    if (!isnan(r->value) && !isnan(r->bound))
        printf(" %.3g (at most %.3g) %s", r->value, r->bound, r->unit);
    else if (!isnan(r->value))
        printf(" %.4g %s", r->value, r->unit);
    if (r->found && *r->found) printf("%s%s", isnan(r->value) ? " " : "; ", r->found);
    putchar('\n');
    if (r->advice) printf("%-6s  %-12s    %s\n", "", "", r->advice);
    fflush(stdout); /* so that, when a check hangs, the last line shows which check came before it */
}

static void write_row(td_jbuf *b, const td_doctor_row *r) {
    td_jw_open(b, '{');
    td_jw_member_str(b, "part", r->part);
    td_jw_member_str(b, "what", r->what);
    td_jw_member_str(b, "outcome", OUTCOMES[r->outcome]);
    td_jw_member_str(b, "found", r->found);
    td_jw_member_str(b, "advice", r->advice);
    td_jw_key(b, "value");
    td_jw_real(b, r->value, FIGURES);
    td_jw_key(b, "bound");
    td_jw_real(b, r->bound, FIGURES);
    td_jw_member_str(b, "unit", r->unit);
    td_jw_key(b, "seconds");
    td_jw_real(b, r->seconds, FIGURES);
    td_jw_close(b, '}');
}

static void tell(void *user, const td_doctor_row *r) {
    report *v = user;
    v->count[r->outcome]++;
    print_row(r);
    write_row(&v->rows, r);
}

/* ---- the report -------------------------------------------------------------------------------- */

static bool write_report(report *v, double seconds) {
    td_jbuf b = {0};
    if (!v->o.json) return true;
    td_jw_close(&v->rows, ']');
    td_jw_open(&b, '{');
    td_jw_member_str(&b, "tandem", TD_VERSION);
    td_jw_member_str(&b, "device", v->device);
    td_jw_member_str(&b, "instructions", td_cpu_tier_name(td_cpu_features()));
    td_jw_member_bool(&b, "passed", !v->count[TD_DOCTOR_FAILED]);
    td_jw_key(&b, "seconds");
    td_jw_real(&b, seconds, FIGURES);
    td_jw_key(&b, "checks");
    td_jw_raw(&b, v->rows.data, v->rows.len);
    td_jw_close(&b, '}');
    td_jbuf_puts(&b, "\n");
    bool  failed = v->rows.failed || b.failed;
    FILE *f = failed ? NULL : fopen(v->o.json, "w");
    bool  written = f && fwrite(b.data, 1, b.len, f) == b.len;
    if (f && fclose(f) != 0) written = false;
    if (!written) fprintf(stderr, "tandem doctor: cannot write the report to %s\n", v->o.json);
    td_jbuf_free(&b);
    return written;
}

static int end(report *v, uint64_t begin) {
    double seconds = (double)(td_trace_now() - begin) * 1e-9;
    printf("\n%u ok, %u note%s, %u failed in %.1f s\n", v->count[TD_DOCTOR_OK], v->count[TD_DOCTOR_NOTE],
           td_plural(v->count[TD_DOCTOR_NOTE]), v->count[TD_DOCTOR_FAILED], seconds);
    bool written = write_report(v, seconds);
    int  rc = td_standard_output_end("tandem doctor");
    td_jbuf_free(&v->rows);
    return rc || !written || v->count[TD_DOCTOR_FAILED] ? 1 : 0;
}

int td_cmd_doctor(int argc, char **argv) {
    report   v = {.o.patience_s = PATIENCE_S};
    td_error err = {0};
    int      rc = parse_options(argc, argv, &v);
    if (rc >= 0) return rc;
    uint64_t begin = td_trace_now();
    td_log_set_level(TD_LOG_WARNING);
    td_jw_open(&v.rows, '[');
    td_status st = td_doctor_visit(v.device, v.o.n_cards, v.o.patience_s, tell, &v, &err);
    if (st != TD_OK) fprintf(stderr, "tandem doctor: %s\n", err.text);
    rc = end(&v, begin);
    if (st == TD_EDEVICE) _exit(1); /* a check hangs: its thread still uses the device, which therefore cannot be closed */
    return st == TD_OK ? rc : 1;
}
