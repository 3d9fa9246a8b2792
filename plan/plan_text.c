/* Prints a plan as tables. */
#include <math.h>

#include "core/plural.h"
#include "plan/plan.h"

#define GIB (double)(1 << 30)

/* "4 streams", to the right of a column. */
static void print_count(uint32_t n, const char *thing, FILE *f) {
    char text[32];
    snprintf(text, sizeof text, "%u %s%s", n, thing, td_plural(n));
    fprintf(f, " %14s", text);
}

static void print_machine(const td_plan_machine *m, FILE *f) {
    fprintf(f, "machine: %s%s\n", m->name, m->measured ? ", measured now" : "");
    for (uint32_t i = 0, n; i < m->n_nodes; i += n) { /* equal nodes share a line */
        const td_plan_node *x = &m->node[i];
        for (n = 1;
             i + n < m->n_nodes && m->node[i + n].cores == x->cores && m->node[i + n].memory_bytes == x->memory_bytes &&
             m->node[i + n].read_bytes_per_s == x->read_bytes_per_s && m->node[i + n].int8_ops_per_s == x->int8_ops_per_s &&
             m->node[i + n].float_ops_per_s == x->float_ops_per_s;)
            n++;
        fprintf(f, "  %u node%s of %.0f core%s, %.1f GiB, read %.1f GB/s, int8 %.0f GOP/s, f32 %.0f GFLOP/s\n", n,
                td_plural(n), x->cores, td_plural((uint64_t)x->cores), x->memory_bytes / GIB, 1e-9 * x->read_bytes_per_s,
                1e-9 * x->int8_ops_per_s, 1e-9 * x->float_ops_per_s);
    }
    if (m->spread > TD_PLAN_BUSY_SPREAD)
        fprintf(f,
                "  the machine was busy: rounds of reading differed by %.0f %%. Plan again when nothing else runs, or give "
                "--machine\n",
                100 * m->spread);
    const td_plan_cards *c = &m->cards;
    if (c->count > 0)
        fprintf(f,
                "  %.0f card%s of %.1f GiB, read %.0f GB/s, int8 %.0f TOP/s, bf16 %.0f TFLOP/s; link %.1f GB/s, %.1f us a "
                "copy, hand-over %.1f us\n",
                c->count, td_plural((uint64_t)c->count), c->memory_bytes / GIB, 1e-9 * c->read_bytes_per_s,
                1e-12 * c->int8_ops_per_s, 1e-12 * c->float_ops_per_s, 1e-9 * c->link_bytes_per_s, 1e6 * c->link_s,
                1e6 * c->handover_s);
    else
        fprintf(f, "  no cards: the CPU is the device too, and the tiers take turns\n");
    fprintf(f, "  kernels %s (shares: %s)\n", m->kernels->name, m->kernels->source);
    if (c->count > 0)
        fprintf(
            f, "  the backend for cards has never run on one, and nothing was measured there: its shares are assumptions\n");
}

static void print_memory(const td_plan *p, FILE *f) {
    fprintf(f, "\n%-10s %10s %10s %10s %10s %10s %10s %10s\n", "GiB", "capacity", "usable", "experts", "device w.",
            "working", "KV", "lacks");
    for (uint32_t i = 0; i < p->n_memories; i++) {
        const td_plan_memory *x = &p->memory[i];
        fprintf(f, "%-10s %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f ", x->name, x->capacity / GIB, x->usable / GIB,
                x->experts / GIB, x->weights / GIB, x->working / GIB, x->kv / GIB);
        if (x->lacks > 0)
            fprintf(f, "%10.2f\n", x->lacks / GIB);
        else
            fprintf(f, "%10s\n", "-");
    }
    if (!p->fits) {
        fprintf(f, "\nIt does not fit: %s\nThe times below are those of a machine with enough memory.\n", p->lack.text);
        return;
    }
    fprintf(
        f,
        "\nIt fits. KV for %llu tokens with these flags, %llu at most; a token takes %.1f KiB%s. Longest sequence: %llu.\n",
        (unsigned long long)p->kv_tokens, (unsigned long long)p->kv_tokens_most, p->kv_token_bytes / 1024,
        p->n_cards > 1 ? " on each card" : "", (unsigned long long)p->longest);
    if (!p->n_cards) fprintf(f, "The cache takes memory only as tokens fill it.\n");
    if (p->kv_window)
        fprintf(f,
                "%.1f KiB of a token's are in layers that read the last %u tokens alone: they have room for %llu tokens, "
                "and give "
                "back those behind their windows.\n",
                p->kv_sliding_bytes / 1024, p->kv_window, (unsigned long long)p->kv_sliding_tokens);
    if (p->images.max_tokens)
        fprintf(
            f,
            "For images of %u tokens at most, the vision encoder takes %.2f GiB of weights and %.2f of working memory, and "
            "images %.2f of the host.\n",
            p->images.max_tokens, p->images.weights / GIB, p->images.working / GIB, p->images.cache / GIB);
    fprintf(f, "Room for");
    for (uint32_t i = 0; i < p->n_rooms; i++)
        fprintf(f, "%s %llu stream%s of %u token%s", i ? "," : "", (unsigned long long)p->room[i].streams,
                td_plural(p->room[i].streams), p->room[i].tokens, td_plural(p->room[i].tokens));
    fputc('\n', f);
}

static void print_streams(const td_plan *p, FILE *f) {
    fprintf(f, "\n%8s %8s %10s %12s %14s %14s\n", "streams", "context", "TPOT, ms", "a stream/s", "tokens/s, all",
            "waits, ms");
    for (uint32_t i = 0; i < p->n_decodes; i++) {
        const td_plan_decode *d = &p->decode[i];
        fprintf(f, "%8u %8u %10.1f %12.2f %14.1f %14.1f%s\n", d->streams, d->context, 1e3 * d->tpot_s, 1 / d->tpot_s,
                d->streams / d->tpot_s, 1e3 * d->step.waited_s,
                d->has_kv || !p->fits ? "" : "  more than the KV cache holds");
    }
    fprintf(f, "\n%8s %8s %10s %14s %14s%s\n", "prompt", "chunks", "TTFT, s", "tokens/s", "waits, s",
            p->streams ? "  streamed experts" : "");
    for (uint32_t i = 0; i < p->n_prefills; i++) {
        const td_plan_prefill *x = &p->prefill[i];
        fprintf(f, "%8u %8u %10.2f %14.1f %14.2f", x->prompt, x->chunks, x->ttft_s, x->prompt / x->ttft_s, x->step.waited_s);
        if (p->streams) fprintf(f, " %12u a layer", x->step.streamed);
        fprintf(f, "%s\n", x->has_kv || !p->fits ? "" : "  more than the KV cache holds");
    }
    if (p->n_left_out)
        fprintf(f, "%u row%s left out: the longest sequence is %u token%s, and at most %u stream%s run at a time\n",
                p->n_left_out, td_plural(p->n_left_out), p->context_length, td_plural(p->context_length),
                p->engine.model.max_running, td_plural(p->engine.model.max_running));
}

/* How many layers have the part; 0: the part does not belong to layers. */
static uint32_t layers_with(const td_plan *p, td_plan_part_kind part) {
    switch (part) {
        case TD_PLAN_ATTENTION:
        case TD_PLAN_KEYS:
        case TD_PLAN_SUMS:
        case TD_PLAN_ROWS: return p->n_layers;
        case TD_PLAN_ROUTER:
        case TD_PLAN_SHARED:
        case TD_PLAN_EXPERTS:
        case TD_PLAN_RESIDENT:
        case TD_PLAN_UPLOADS:
        case TD_PLAN_HANDOVER: return p->n_moe_layers;
        case TD_PLAN_DENSE: return p->n_layers - p->n_moe_layers;
        case TD_PLAN_HEAD:
        case TD_PLAN_EMBED:
        case TD_PLAN_PARTS: break;
    }
    return 0;
}

static void print_parts(const td_plan *p, const td_plan_step *s, FILE *f) {
    fprintf(f, "%-24s %10s %12s %10s %10s %8s\n", "part", "ms", "ms a layer", "GB", "TOP", "bound");
    for (int i = 0; i < TD_PLAN_PARTS; i++) {
        const td_plan_part *x = &s->part[i];
        uint32_t            layers = layers_with(p, (td_plan_part_kind)i);
        if (x->time_s <= 0) continue;
        fprintf(f, "%-24s %10.2f ", td_plan_part_name((td_plan_part_kind)i), 1e3 * x->time_s);
        if (layers)
            fprintf(f, "%12.3f ", 1e3 * x->time_s / layers);
        else
            fprintf(f, "%12s ", "");
        fprintf(f, "%10.3f %10.3f %8s\n", 1e-9 * x->bytes, 1e-12 * (x->int8_ops + x->float_ops), td_plan_part_bound(x));
    }
    fprintf(f, "%-24s %10.2f\n", "step", 1e3 * s->step_s);
    if (p->n_cards)
        fprintf(f, "%-24s %10.2f  of the step, the device waits for the experts; the rest of their time is beside its own\n",
                "waits", 1e3 * s->waited_s);
}

static void print_changes(const td_plan *p, FILE *f) {
    const td_plan_decode  *first = &p->decode[0], *last = &p->decode[p->n_decodes ? p->n_decodes - 1 : 0];
    const td_plan_prefill *middle = &p->prefill[p->n_prefills / 2];
    fprintf(f, "\n%-46s %14s %14s %14s %12s\n", "what would change", "TPOT, ms", "TPOT, ms", "TTFT, s", "KV tokens");
    fprintf(f, "%-46s", "");
    if (p->n_decodes) {
        print_count(first->streams, "stream", f);
        print_count(last->streams, "stream", f);
    } else {
        fprintf(f, " %14s %14s", "", "");
    }
    if (p->n_prefills) print_count(middle->prompt, "token", f);
    fputc('\n', f);
    td_plan_change now = {.fits = p->fits, .kv_tokens = p->kv_tokens_most, .change = "as it is"};
    now.tpot_s[0] = p->n_decodes ? first->tpot_s : NAN;
    now.tpot_s[1] = p->n_decodes ? last->tpot_s : NAN;
    now.ttft_s = p->n_prefills ? middle->ttft_s : NAN;
    for (uint32_t i = 0; i <= p->n_changes; i++) {
        const td_plan_change *c = i ? &p->change[i - 1] : &now;
        fprintf(f, "%-46s %14.1f %14.1f %14.2f ", c->change, 1e3 * c->tpot_s[0], 1e3 * c->tpot_s[1], c->ttft_s);
        if (c->fits)
            fprintf(f, "%12llu\n", (unsigned long long)c->kv_tokens);
        else
            fprintf(f, "%12s\n", "does not fit");
    }
}

/* Of experts that move to a card. */
static void print_moving(const td_plan *p, FILE *f) {
    const td_stream_speeds *v = &p->stream_speeds;
    if (p->streams) {
        fprintf(
            f,
            "  streamed experts: an upload takes %.3f ms; a row of one takes %.3f us on the %s, %.3f us on the CPU; they ",
            1e3 * v->upload, 1e6 * v->card_row, p->n_cards > 1 ? "cards" : "card", 1e6 * v->cpu_row);
        if (p->stream_crossover)
            fprintf(f, "pay from %u row%s of a step on\n", p->stream_crossover, td_plural(p->stream_crossover));
        else
            fprintf(f, "never pay\n");
    }
    if (p->n_cards && p->resident)
        fputs("  experts do not move on npu yet (docs/residency.md): there this is what they would give\n", f);
}

void td_plan_print(const td_plan *p, const td_plan_machine *m, FILE *f) {
    print_machine(m, f);
    fprintf(f, "model: %s, %u layer%s, %u with experts; device tier %s, experts %s", p->architecture, p->n_layers,
            td_plural(p->n_layers), p->n_moe_layers, p->engine.quantization, p->expert_quantization);
    if (p->experts_in_use < p->n_experts) fprintf(f, ", %u of %u in use", p->experts_in_use, p->n_experts);
    if (p->resident)
        fprintf(f, ", %u of %u %s the card, which %.1f %% of decoded tokens' choices find there", p->resident, p->n_experts,
                p->engine.model.drop_experts ? "only on" : "also on", 100 * p->expert_hits);
    uint32_t deferred = p->engine.model.experts.max_deferred;
    if (deferred) fprintf(f, ", %u deferred per token", deferred);
    fprintf(f, "; %u stream%s at most, prefill in chunks of %u\n", p->engine.model.max_running,
            td_plural(p->engine.model.max_running), p->engine.chunk);
    print_moving(p, f);
    print_memory(p, f);
    print_streams(p, f);
    for (uint32_t i = 0; i<p->n_decodes; i += p->n_decodes> 1 ? p->n_decodes - 1 : 1) {
        const td_plan_decode *d = &p->decode[i];
        fprintf(f, "\na step of %u stream%s at %u token%s of context\n", d->streams, td_plural(d->streams), d->context,
                td_plural(d->context));
        print_parts(p, &p->decode[i].step, f);
    }
    if (p->n_prefills) {
        const td_plan_prefill *x = &p->prefill[p->n_prefills / 2];
        fprintf(f, "\na prompt of %u token%s\n", x->prompt, td_plural(x->prompt));
        print_parts(p, &x->step, f);
    }
    print_changes(p, f);
}
